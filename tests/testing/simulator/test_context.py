from rallypoint.core.state import Settings
from rallypoint.testing.simulator import Plan
from rallypoint.testing.simulator.context import LINES_KEPT, Simulation, Truth


def test_transcript_is_optional_and_bounded() -> None:
    plan = Plan(1, 1, Settings(1, 1))
    silent, traced = Simulation(plan), Simulation(plan, trace=True)
    for _ in range(LINES_KEPT + 1):
        silent.note("n0", "something")
        traced.note("n0", "something")
    assert silent.lines is None
    assert traced.lines is not None
    assert len(traced.lines) == LINES_KEPT
    assert traced.lines[0] == "    0.000  n0         something"


def test_no_port_is_used_twice() -> None:
    simulation = Simulation(Plan(1, 1, Settings(1, 1)))
    assert simulation.next_port() != simulation.next_port()


def test_node_history_ends_before_now() -> None:
    truth = Truth()
    assert truth.heard("a", 5.0) is None
    truth.hear("a", 1.0, 0.0)
    truth.hear("a", 5.0, 2.0)
    truth.hear("a", 5.0, 2.0)
    assert truth.heard("a", 5.0) == (1.0, 0.0)
    assert truth.heard("a", 6.0) == (5.0, 2.0)
