"""The engine contract: what a database such as etcd or Redis must do so that Rallypoint can use it.

An engine keeps entries: bytes under a key, with the version of the write that made them. Beyond
reading, Rallypoint needs only one conditional write of several keys, and a way to wait for a
change. `EngineStore` makes a whole `Store` of it and `EngineRendezvousBackend` a place for the
state of runs. Servers use it as a fence: a write that also expects the leader's entry fails once
another server leads.

Guarantees of every engine, checked by `rallypoint.testing.engine_suite.EngineSuite`:

* `read` and `commit` are linearizable and see or change all their keys in one step;
* versions are above zero, the same for all keys of a commit, and grow from commit to commit
  over the whole engine; no version occurs twice, even for a key deleted in between;
* a commit whose connection broke is sent again and takes effect at most once, and the answer
  says whether it did;
* an entry is any bytes, of at least 16 MiB; a commit takes at least `COMMIT_KEYS` keys;
* any thread may call it, and a waiting thread blocks no other.

Errors: StoreConnectionError if it cannot be reached until the deadline (there is always one
try), AuthenticationError for credentials, StoreLimitError if it is full or a limit of its own is
exceeded (nothing was changed), StoreError for anything else.
"""

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError

COMMIT_KEYS = 1000
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 1.0
LOOK_SECONDS = 5.0  # a wait looks again this often, should the engine have lost a message


@dataclass(frozen=True, slots=True)
class Entry:
    """The value of a key.

    Args:
        version: of the commit that wrote it.
        value: its bytes.
        detail: for the engine itself; ignored in comparisons.
    """

    version: int
    value: bytes
    detail: Any = field(default=None, repr=False, compare=False)


Entries = dict[str, Entry]
"""Entries by key, without the keys that do not exist."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The result of a commit.

    Args:
        done: whether it took effect.
        version: of all entries that it wrote; 0 if refused.
        present: if refused, the present entries of all expected keys.
        details: if done, `Entry.detail` of the entries written, where they have one.
    """

    done: bool
    version: int
    present: Entries
    details: Mapping[str, Any] = field(default_factory=dict)


class Engine(ABC):
    """A database with conditional writes (see the module's guarantees)."""

    name: str
    where: str
    """Where it is, for people; without secrets."""
    hosts: Sequence[tuple[str, int]] = ()
    """Host and port of each of its servers, for diagnosis."""

    @abstractmethod
    def read(self, keys: Sequence[str], deadline: Deadline) -> Entries:
        """Return the entries of those keys that exist."""

    @abstractmethod
    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        """Write all changes if every expected key is unchanged, else nothing.

        Args:
            expected: by key the last seen entry (only its version counts), None for no entry;
                keys without a change may be among them.
            changes: by key the new value, None to delete it. All must be expected as well.
            deadline: until when to retry if the engine cannot be reached.
            expire: by key after how many seconds a written entry is deleted; the deletion may
                take up to twice as long.
        """

    @abstractmethod
    def renew(self, key: str, seen: Entry, seconds: float, deadline: Deadline) -> bool:
        """Extend an expiring entry to `seconds` from now; its version stays the same.

        Returns whether the entry is unchanged since it was seen.
        """

    @abstractmethod
    def scan(self, prefix: str, deadline: Deadline) -> list[str]:
        """Return the keys that begin with `prefix`, sorted; expiring entries may be left out."""

    @abstractmethod
    def wait(self, key: str, seen: Entry | None, deadline: Deadline) -> bool:
        """Wait, without polling, until the key's version differs from what was seen.

        The expiry of an entry counts too. Returns False at the deadline. May return True too
        early; is at most `LOOK_SECONDS` late, and that only if a message was lost.
        """

    @abstractmethod
    def clone(self) -> "Engine":
        """Return an independent client of the same data."""

    def about(self, deadline: Deadline) -> str:
        """Return what answers there, for people: product, version, what is missing."""
        self.read(["about"], deadline)
        return self.name

    def close(self) -> None:  # noqa: B027 - not every engine holds something
        """Release the connections.

        Calls of other threads under way end as usual or with StoreConnectionError, by their
        deadlines.
        """


def pause(failures: int, deadline: Deadline) -> None:
    """Wait before the next try, with jitter: longer after each failure, at most a second."""
    most = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures, 10))
    seconds = random.uniform(most / 2, most)  # noqa: S311 - jitter
    threading.Event().wait(deadline.capped(seconds))


def version_of(entry: Entry | None) -> int:
    """Return the version of an entry, 0 for none."""
    return 0 if entry is None else entry.version


def check_commit(expected: Mapping[str, Entry | None], changes: Mapping[str, bytes | None]) -> None:
    """Refuse a commit that changes a key which it does not expect (ParameterError)."""
    blind = [key for key in changes if key not in expected]
    if blind or not changes:
        what = f"changes keys that are not expected: {blind}" if blind else "changes nothing"
        raise ParameterError(f"commit {what}")
