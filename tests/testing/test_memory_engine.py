"""The engine in memory meets the contract; its time is whoever's clock it is given."""

from rallypoint.deadline import Deadline
from rallypoint.testing.clock import ManualClock
from rallypoint.testing.engine_suite import EngineSuite
from rallypoint.testing.memory_engine import MemoryEngine


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
