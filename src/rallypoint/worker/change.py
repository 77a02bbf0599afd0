"""A change of the round that is on its way: how an agent announces it to its workers.

One small file for each agent, named in the workers' environment (`CHANGE_FILE`): not there
while nothing pends, replaced whole otherwise, so a reader sees one announcement or the next.
Looking costs one `stat`, and no request to anybody. The end of the time that workers have is
a value of the monotonic clock, which all processes of one machine share.
"""

import contextlib
import os
import time
from enum import StrEnum
from pathlib import Path

import msgspec

CHANGE_FILE = "RALLYPOINT_CHANGE_FILE"


class ChangeKind(StrEnum):
    """What is about to happen."""

    JOINING = "joining"
    LEAVING = "leaving"


class PendingChange(msgspec.Struct, frozen=True):
    """A change of the round that waits until the workers have saved.

    Args:
        number: counts the announcements of an agent.
        kind: nodes are "joining", or one is "leaving".
        who: the node it is about, or how many, for people.
        why: for people.
        until: when the round changes at the latest, saved or not (monotonic seconds).
    """

    number: int
    kind: ChangeKind
    who: str
    why: str
    until: float

    @property
    def seconds_left(self) -> float:
        """Time in which to save; 0 when it is over."""
        return max(0.0, self.until - time.monotonic())


def nothing_pends() -> PendingChange | None:
    """Return None: there is no agent that could announce a change."""
    return None


class ChangeReader:
    """Reads an agent's announcements; calling it returns the present one, or None.

    Args:
        path: of the agent's file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = os.fspath(path)
        self._seen: tuple[int, int, int] | None = None
        self._change: PendingChange | None = None

    def __call__(self) -> PendingChange | None:
        """Return the change that is announced now, None if none is."""
        try:
            found = os.stat(self._path)
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                content = Path(self._path).read_bytes()
                self._change = msgspec.json.decode(content, type=PendingChange)
                self._seen = seen
        except FileNotFoundError:
            self._seen = self._change = None
        return self._change


class ChangeWriter:
    """An agent's end of it.

    Args:
        path: of the file, which nobody else uses; it is there only while a change pends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0

    def announce(self, kind: ChangeKind, who: str, why: str, seconds: float) -> None:
        """Say that a change pends, `seconds` from now at the latest."""
        self._number += 1
        change = PendingChange(self._number, kind, who, why, time.monotonic() + seconds)
        scratch = self.path.with_suffix(f".{self._number}")
        scratch.write_bytes(msgspec.json.encode(change))
        scratch.replace(self.path)

    def take_back(self) -> None:
        """Say that nothing pends any more."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
