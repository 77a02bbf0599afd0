import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError
from rallypoint.testing.engine_suite import EngineSuite
from rallypoint.testing.fakes import ManualClock, MemoryEngine, MemoryJournal, Shelf
from rallypoint.testing.journal_suite import JournalSuite


def test_clock_moves_on_request() -> None:
    clock = ManualClock(100)
    assert clock() == clock() == 100.0
    clock.advance(0.5)
    assert clock() == 100.5


def test_clock_never_moves_backwards() -> None:
    for seconds in (-1.0, float("nan")):
        with pytest.raises(ParameterError, match="seconds="):
            ManualClock().advance(seconds)


def test_drives_a_deadline() -> None:
    clock = ManualClock()
    deadline = Deadline(2, clock)
    clock.advance(2)
    assert deadline.expired()


class TestMemoryEngine(EngineSuite):
    def make_engine(self) -> MemoryEngine:
        return MemoryEngine()


def test_time_is_manual() -> None:
    clock, limit = ManualClock(), Deadline(1)
    engine = MemoryEngine(clock)
    engine.commit({"a": None}, {"a": b""}, limit, {"a": 10})
    clock.advance(9.9)
    assert engine.read(["a"], limit)
    clock.advance(0.2)
    assert not engine.clone().read(["a"], limit)


class TestMemoryJournal(JournalSuite):
    takes_over = True

    @pytest.fixture(autouse=True)
    def shelf(self) -> None:
        self.place = Shelf()

    def journal(self) -> MemoryJournal:
        return MemoryJournal(self.place)
