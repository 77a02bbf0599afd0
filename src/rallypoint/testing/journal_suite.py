"""The conformance suite of the journal contract (`rallypoint.server.journal.contract`), as a class.

class TestMyJournal(JournalSuite):
    def journal(self):           # each call: another client of the same place
        return MyJournal(...)
    takes_over = True            # another one may open it once the first lost it (`oust`);
                                 # False: it is refused while the first is open
"""

from abc import ABC, abstractmethod

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import JournalLostError
from rallypoint.server.journal.contract import Journal

LIMIT_SECONDS = 30.0
BIG_BYTES = 16 << 20
MANY = 3000
_NAMES = ("plain", "with/slash", "with\0nul", "ä \U0001f600", "n" * 4096, " ")


def _within() -> Deadline:
    return Deadline(LIMIT_SECONDS)


class JournalSuite(ABC):
    """What every journal must do."""

    takes_over: bool

    @abstractmethod
    def journal(self) -> Journal:
        """Return a journal of the place of this test, not opened yet."""

    def oust(self, journal: Journal) -> None:  # noqa: B027 - most take no more than an opening
        """Let an open journal lose its office without knowing, where that takes something."""

    def test_a_new_one_is_empty_and_has_an_epoch(self) -> None:
        """There is nothing, and the epoch is above zero."""
        journal = self.journal()
        opened = journal.open(_within())
        journal.close()
        assert dict(opened.entries) == {}
        assert opened.epoch > 0

    def test_it_says_where_it_is(self) -> None:
        """For messages."""
        assert self.journal().where

    def test_what_was_committed_is_found(self) -> None:
        """Names and values are any, and deleted ones are gone."""
        journal = self.journal()
        first = journal.open(_within())
        wanted = {name: name.encode() + bytes(range(256)) for name in _NAMES}
        journal.commit({**wanted, "empty": b"", "goes": b"1"}, _within())
        journal.commit({"goes": None, "never was": None, "plain": b"2"}, _within())
        journal.close()
        again = self.journal()
        opened = again.open(_within())
        again.close()
        assert dict(opened.entries) == {**wanted, "empty": b"", "plain": b"2"}
        assert opened.epoch > first.epoch

    def test_big_values_and_big_batches(self) -> None:
        """A value of 16 MiB, and thousands of entries at once."""
        journal = self.journal()
        journal.open(_within())
        big = bytes(BIG_BYTES)
        many: dict[str, bytes | None] = {f"n{i}": b"%d" % i for i in range(MANY)}
        journal.commit({"big": big, **many}, _within())
        journal.commit(dict.fromkeys(list(many)[1:]), _within())
        journal.close()
        again = self.journal()
        opened = again.open(_within())
        again.close()
        assert dict(opened.entries) == {"big": big, "n0": b"0"}

    def test_only_one_may_write(self) -> None:
        """A second one is refused, or fences the first one off."""
        first, second = self.journal(), self.journal()
        first.open(_within())
        first.commit({"a": b"1"}, _within())
        assert first.may_answer()
        if not self.takes_over:
            with pytest.raises(JournalLostError):
                second.open(_within())
            first.commit({"a": b"2"}, _within())
            first.close()
            assert dict(second.open(_within()).entries) == {"a": b"2"}
        else:
            self.oust(first)
            assert dict(second.open(_within()).entries) == {"a": b"1"}
            for changes in ({"a": b"3"}, {}):
                with pytest.raises(JournalLostError):
                    first.commit(changes, _within())
            assert not first.may_answer()
        second.commit({"b": b""}, _within())
        second.close()
        last = self.journal()
        assert "b" in last.open(_within()).entries
        last.close()

    def test_a_commit_without_changes_proves(self) -> None:
        """It changes nothing."""
        journal = self.journal()
        journal.open(_within())
        journal.commit({}, _within())
        assert journal.may_answer()
        journal.close()

    def test_closing_twice(self) -> None:
        """Is allowed, and so is closing what was never opened."""
        journal = self.journal()
        journal.close()
        other = self.journal()
        other.open(_within())
        other.close()
        other.close()
