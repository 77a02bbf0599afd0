"""The journal contract: where a server's state outlives its process.

A journal keeps entries: bytes under a name. A server opens it once, takes in all that is
stored, and from then on commits what has changed, batch by batch.
`group_commit` decides what goes into a batch and tells nobody of it before `commit` has
returned.

Guarantees of every journal:

* what a `commit` that returned has changed is what the next `open` finds, whatever happens to
  the process and the machine in between;
* commits take effect in the order of the calls; one whose outcome is not known (it raised, or
  the process ended in it) has either happened or not by the time that `open` returns. One
  call is all or nothing where the engine can do that. Where it cannot, its changes take
  effect in the order of the mapping;
* the epoch grows with each `open`, on whatever host: who has opened later has the larger one,
  and from then on every earlier opener's `commit` raises JournalLostError and changes nothing,
  one without changes included.

`open`, `commit` and `close` block, and come from one thread at a time (the writer's, not the
loop's); `may_answer` does not block, and is the loop's.

Names are any text but an empty one (`/` has no meaning here), at most `NAME_BYTES` long in
UTF-8. Values are any bytes, of at least 16 MiB. A batch may have any number of changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rallypoint.deadline import Deadline
from rallypoint.errors import JournalLostError

NAME_BYTES = 1 << 17  # a run's name and a key's, with room to spare


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found.

    Args:
        epoch: above zero; larger than that of every opening before.
        entries: everything stored, by name.
    """

    epoch: int
    entries: Mapping[str, bytes]


class Journal(ABC):
    """Where entries are kept (see the module's guarantees)."""

    where: str
    """Where it is, for people ("directory /var/lib/x", "etcd at h1:2379"); holds no secret."""

    on_lost: Callable[[JournalLostError], None] | None = None
    """Set by the server: to be called, from any thread, when the journal finds by itself (not
    in a commit) that this process may write no more."""

    def may_answer(self) -> bool:
        """Return whether nobody else can have opened it yet, by this process's own clock.

        Then what has been stored may be told without a further commit; else the server makes
        one, without changes, before it answers. Asked for each answer, so it must be cheap.
        """
        return True

    @abstractmethod
    def open(self, deadline: Deadline) -> Opened:
        """Take the journal over, and return what is stored. Once, before anything else.

        A journal that several servers stand by for returns once this one leads.

        Raises:
            JournalLostError: another process has it, or the time was up before this one led.
            JournalCorruptError: what is stored is damaged, foreign or newer.
            JournalError: it cannot be reached or made.
        """

    @abstractmethod
    def commit(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> None:
        """Make changes durable: by name the new value, None to delete it; {} only proves.

        Returns once all of them would survive the loss of power. After any error but
        JournalFullError the server ends; whether the batch was stored is then not known.

        Raises:
            JournalLostError: another one leads; nothing was changed.
            JournalFullError: there is no room; nothing was changed. It may be called again.
            JournalError: anything else.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of it; never raises, may be called twice, and at any time."""
