"""The journal in memory meets the contract."""

import pytest

from rallypoint.testing.journal_suite import JournalSuite
from rallypoint.testing.memory_journal import MemoryJournal, Shelf


class TestMemoryJournal(JournalSuite):
    takes_over = True

    @pytest.fixture(autouse=True)
    def shelf(self) -> None:
        self.place = Shelf()

    def journal(self) -> MemoryJournal:
        return MemoryJournal(self.place)
