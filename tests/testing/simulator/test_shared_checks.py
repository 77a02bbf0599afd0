import pytest
from tests.testing.simulator.test_world import a_world

from rallypoint.core.advance import advance
from rallypoint.core.events import Beat, Cause, Join, Lost
from rallypoint.core.state import Node, Settings, State
from rallypoint.testing.simulator import Violation


def test_a_loss_must_come_after_a_lease_of_silence() -> None:
    world = a_world(shared=True)
    checker, settings = world.checker, Settings(1, 2, lease_seconds=3.0)
    state = State("simulated")

    def happens(at: float, *events: object) -> None:
        nonlocal state
        world.clockwork.run_until(at)
        step = advance(state, *events)  # type: ignore[arg-type] # events of the core
        before, state = state, step.state
        checker.stored(before, step)

    for name in ("a", "b"):
        happens(0.0, Join(Node(name, "h"), settings))
    happens(2.0, Beat("a"))
    happens(4.0, Lost("b", Cause.LEASE))
    with pytest.raises(Violation, match=r"a was lost after 2\.10 s"):
        happens(4.1, Lost("a", Cause.LEASE, 1))
