"""How an agent announces a membership change to its workers.

Each agent has one small file, named in the workers' environment (`CHANGE_FILE`). It exists only
while a change is pending, and is replaced atomically. Reading it costs one `stat` and no
request. The deadline is a value of the monotonic clock, which all processes of a machine share.
"""

import contextlib
import os
import time
from enum import StrEnum
from pathlib import Path

import msgspec

CHANGE_FILE = "RALLYPOINT_CHANGE_FILE"


class ChangeKind(StrEnum):
    """Whether nodes join or a node leaves."""

    JOINING = "joining"
    LEAVING = "leaving"


class PendingChange(msgspec.Struct, frozen=True):
    """A membership change that waits until the workers have saved.

    Args:
        number: counts the announcements of an agent.
        kind: nodes are "joining", or one is "leaving".
        who: the node, or the number of nodes, for people.
        why: reason, for people.
        until: when the round ends at the latest, saved or not (monotonic seconds).
    """

    number: int
    kind: ChangeKind
    who: str
    why: str
    until: float

    @property
    def seconds_left(self) -> float:
        """Seconds left in which to save, at least 0."""
        return max(0.0, self.until - time.monotonic())


def no_change() -> PendingChange | None:
    """Return None: there is no agent to announce a change."""
    return None


class ChangeReader:
    """Reads an agent's announcements.

    Args:
        path: of the agent's file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = os.fspath(path)
        self._seen: tuple[int, int, int] | None = None
        self._change: PendingChange | None = None

    def __call__(self) -> PendingChange | None:
        """Return the pending change, None if there is none."""
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
    """Writes an agent's announcements.

    Args:
        path: of the agent's file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0

    def announce(self, kind: ChangeKind, who: str, why: str, seconds: float) -> None:
        """Announce a change that happens in `seconds` at the latest."""
        self._number += 1
        change = PendingChange(self._number, kind, who, why, time.monotonic() + seconds)
        scratch = self.path.with_suffix(f".{self._number}")
        scratch.write_bytes(msgspec.json.encode(change))
        scratch.replace(self.path)

    def cancel(self) -> None:
        """Withdraw the announcement, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
