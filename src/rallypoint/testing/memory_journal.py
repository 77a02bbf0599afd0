"""A journal in this process, for tests of what stands on journals, and to read as an example."""

from collections.abc import Mapping

from rallypoint.deadline import Deadline
from rallypoint.errors import JournalLostError
from rallypoint.server.journal.contract import Journal, Opened


class Shelf:
    """What outlives the journals that are opened on it, one after the other."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.epoch = 0


class MemoryJournal(Journal):
    """A journal on a shelf.

    Args:
        shelf: where the entries are.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.where = "the memory of this process"
        self._shelf = shelf
        self._epoch: int | None = None

    def open(self, deadline: Deadline) -> Opened:
        """Whoever had it before is fenced off."""
        self._shelf.epoch = self._epoch = self._shelf.epoch + 1
        return Opened(self._epoch, dict(self._shelf.entries))

    def may_answer(self) -> bool:
        return self._epoch == self._shelf.epoch

    def commit(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> None:
        if self._epoch != self._shelf.epoch:
            raise JournalLostError(
                f"{self.where}: a write of epoch {self._epoch} was refused: the server of epoch "
                f"{self._shelf.epoch} leads"
            )
        for name, value in changes.items():
            if value is None:
                self._shelf.entries.pop(name, None)
            else:
                self._shelf.entries[name] = value

    def close(self) -> None:
        self._epoch = None
