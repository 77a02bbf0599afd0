"""The suite finds what is wrong: each fault is caught by the test that is there for it."""

from collections.abc import Mapping

import pytest

from rallypoint.deadline import Deadline
from rallypoint.server.journal.contract import Opened
from rallypoint.testing.fakes import MemoryJournal, Shelf
from rallypoint.testing.journal_suite import JournalSuite


class Suite(JournalSuite):
    """The suite over a journal of a given class."""

    __test__ = False
    takes_over = True

    def __init__(self, kind: type[MemoryJournal]) -> None:
        self.kind, self.shelf = kind, Shelf()

    def journal(self) -> MemoryJournal:
        return self.kind(self.shelf)


class Forgetful(MemoryJournal):
    """Loses what is empty."""

    def commit(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> None:
        super().commit({name: value or None for name, value in changes.items()}, deadline)


class Timeless(MemoryJournal):
    """Gives the same epoch each time."""

    def open(self, deadline: Deadline) -> Opened:
        return Opened(1, super().open(deadline).entries)


class Unfenced(MemoryJournal):
    """Writes whoever leads."""

    def commit(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> None:
        self._epoch = self._shelf.epoch
        super().commit(changes, deadline)


class Small(MemoryJournal):
    """Takes no big values."""

    def commit(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> None:
        super().commit({n: v for n, v in changes.items() if len(v or b"") < 1000}, deadline)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Forgetful, "test_what_was_committed_is_found"),
        (Timeless, "test_what_was_committed_is_found"),
        (Unfenced, "test_only_one_may_write"),
        (Small, "test_big_values_and_big_batches"),
    ],
)
def test_planted_fault_is_found(kind: type[MemoryJournal], test: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Suite(kind), test)()
    getattr(Suite(MemoryJournal), test)()
