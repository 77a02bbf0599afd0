"""The engine contract: what a shared database must do so that Rallypoint can live on it.

An engine keeps entries: bytes under a key, with the version of the write that made them.
All that Rallypoint needs beside reading is one conditional write of several keys, and to
be woken. `EngineStore` makes a whole `Store` of it, `EngineRendezvousBackend` a place for
the state of runs, and a server its fence: a write that expects the leader's entry, too,
fails once another one leads.

Guarantees of every engine, checked by `rallypoint.testing.engine_suite.EngineSuite`:

* `read` and `commit` are linearizable and see or change all their keys in one step;
* versions are above zero, one for all keys of a commit, and grow from commit to commit over
  the whole engine; no version comes twice, not even for a key that was deleted between;
* a commit that a broken connection cut off is sent again and takes effect at most once, and
  the answer says whether it did;
* an entry is any bytes, of at least 16 MiB; a commit takes at least `COMMIT_KEYS` keys;
* calls may come from any thread, and a thread that waits holds up no other.

Errors: StoreConnectionError when it was out of reach until the deadline (the first try is
always made), AuthenticationError for credentials, StoreLimitError when it is full or a
limit of its own is passed (nothing was changed), StoreError for anything else.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError

COMMIT_KEYS = 1000
LOOK_SECONDS = 5.0  # a wait looks again this often, should the engine have lost a message


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands under a key.

    Args:
        version: of the commit that wrote it.
        value: its bytes.
        detail: the engine's own; no part of what the entry is.
    """

    version: int
    value: bytes
    detail: Any = field(default=None, repr=False, compare=False)


Entries = dict[str, Entry]
"""What was found, by key; a key that does not exist is missing here, too."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What came of a commit.

    Args:
        done: whether it took effect.
        version: of all entries that it wrote, 0 if refused.
        present: if refused, all expected keys as they stand.
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
    """Where it is, for people; holds no secret."""
    hosts: Sequence[tuple[str, int]] = ()
    """Host and port of each of its servers, for who looks why it cannot be reached."""

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
        """Write if every expected key is still as it was seen; all or nothing.

        Args:
            expected: by key the entry that was seen (only its version counts), None for no
                entry. Keys that are not changed may be among them.
            changes: by key the new value, None to delete it. All are expected, too.
            deadline: until when to try again if the engine is out of reach.
            expire: by key in how many seconds an entry that is written goes away by itself;
                a deletion by time may be late, by as much again.
        """

    @abstractmethod
    def renew(self, key: str, seen: Entry, seconds: float, deadline: Deadline) -> bool:
        """Let an expiring entry live for `seconds` from now; its version stays.

        Returns whether the entry is still there as it was seen.
        """

    @abstractmethod
    def scan(self, prefix: str, deadline: Deadline) -> list[str]:
        """Return the keys that begin with `prefix`, sorted; those that expire may be left out."""

    @abstractmethod
    def wait(self, key: str, seen: Entry | None, deadline: Deadline) -> bool:
        """Wait, without polling, until the key's version is not what was seen.

        That an entry expires counts, too. Returns False once the time is up. May return True
        too early, never too late by more than `LOOK_SECONDS` (and that only where a message
        was lost).
        """

    @abstractmethod
    def clone(self) -> "Engine":
        """Return an independent client of the same data."""

    def about(self, deadline: Deadline) -> str:
        """Return what answers there, for people: its kind, its version, what it lacks."""
        self.read(["about"], deadline)
        return self.name

    def close(self) -> None:  # noqa: B027 - not every engine holds something
        """Release the connections.

        Calls of other threads may be under way (a shutdown does not wait for them): each ends
        as usual or with StoreConnectionError, by its deadline.
        """


def version_of(entry: Entry | None) -> int:
    """Return the version of what was seen, 0 for no entry."""
    return 0 if entry is None else entry.version


def check_commit(expected: Mapping[str, Entry | None], changes: Mapping[str, bytes | None]) -> None:
    """Refuse a commit that would write what nobody has looked at (ParameterError)."""
    blind = [key for key in changes if key not in expected]
    if blind or not changes:
        what = f"changes keys that are not expected: {blind}" if blind else "changes nothing"
        raise ParameterError(f"commit {what}")


__all__ = [
    "COMMIT_KEYS",
    "LOOK_SECONDS",
    "Commit",
    "Engine",
    "Entries",
    "Entry",
    "check_commit",
    "version_of",
]
