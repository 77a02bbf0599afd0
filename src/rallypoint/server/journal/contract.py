"""The journal contract: where a server's state outlives its process.

A journal keeps entries: bytes under a name. A server opens it once, reads everything that is
stored, and from then on commits its changes, batch by batch. `group_commit` forms the batches,
and tells nobody of a change before `commit` has returned.

Guarantees of every journal:

* What a `commit` that returned has changed is what the next `open` finds, whatever happens to
  the process and the machine in between.
* Commits take effect in the order of the calls. One whose outcome is unknown (it raised, or the
  process ended in it) has either happened or not by the time that `open` returns. One call is
  all or nothing where the database can do that; elsewhere its changes take effect in the order
  of the mapping.
* The epoch grows with each `open`, on whatever host. Once another process has opened the
  journal, every `commit` of an earlier opener raises JournalLostError and changes nothing, even
  one without changes.

`open`, `commit` and `close` block, and are called from one thread at a time (the writer's, not
the loop's); `may_answer` does not block, and is called in the loop.

Names are any non-empty text (`/` has no meaning here) of at most `NAME_BYTES` in UTF-8. Values
are any bytes; at least 16 MiB must fit. A batch may have any number of changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rallypoint.deadline import Deadline
from rallypoint.errors import JournalLostError

NAME_BYTES = 1 << 17  # a run's name and a key's, with room to spare


@dataclass(frozen=True, slots=True)
class Opened:
    """What an opened journal holds.

    Args:
        epoch: above zero; larger than that of every earlier opening.
        entries: everything stored, by name.
    """

    epoch: int
    entries: Mapping[str, bytes]


class Journal(ABC):
    """Keeps entries, with the guarantees of this module."""

    where: str
    """Where it is, for people ("directory /var/lib/x", "etcd at h1:2379"); holds no secret."""

    on_lost: Callable[[JournalLostError], None] | None = None
    """Set by the server. The journal calls it, from any thread, when it learns outside of a
    commit that this process may write no more."""

    def may_answer(self) -> bool:
        """Return whether nobody else can have opened the journal, by this process's own clock.

        Then stored state may be sent to clients at once; else the server first makes a commit
        without changes. Called for each answer, so it must be cheap.
        """
        return True

    @abstractmethod
    def open(self, deadline: Deadline) -> Opened:
        """Take the journal over, and return what is stored. Called once, before anything else.

        With several servers it returns once this one leads.

        Raises:
            JournalLostError: another process has it, or this one did not lead in time.
            JournalCorruptError: what is stored is damaged, another program's, or newer.
            JournalError: it cannot be reached or made.
        """

    @abstractmethod
    def commit(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> None:
        """Make changes durable; returns once all of them would survive the loss of power.

        After any error but JournalFullError the server ends; whether the batch was stored is
        then unknown.

        Args:
            changes: new values by name, None to delete; {} only proves that this one leads.
            deadline: until when to try.

        Raises:
            JournalLostError: another one leads; nothing was changed.
            JournalFullError: there is no room; nothing was changed, and it may be tried again.
            JournalError: anything else.
        """

    @abstractmethod
    def close(self) -> None:
        """Close it; never raises, may be called twice, and at any time."""
