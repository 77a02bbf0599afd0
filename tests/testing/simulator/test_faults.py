"""Each kind of fault happens, and all settles, with and without a server."""

import pytest
from tests.testing.simulator.test_world import a_world

from rallypoint.testing.simulator import Fault, Kind, attempt, story
from rallypoint.testing.simulator.plan import STEP_KINDS


@pytest.mark.parametrize("shared", [False, True], ids=["hosted", "shared"])
@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
def test_every_kind(kind: Kind, shared: bool) -> None:
    for node, back in ((0, True), (1, False)):
        at = 60.0 if kind in STEP_KINDS else 2.0 + node
        world = a_world(Fault(kind, at, node, 4.0, back), shared=shared)
        world.run()
        assert any("FAULT" in line and kind.value in line for line in world.lines or [])
        assert world.faults.end >= (10.0 if kind in STEP_KINDS else at + 4.0)


def test_network_blocks_outlive_their_server() -> None:
    world = a_world(Fault(Kind.PART_UP, 2.0, 1, 6.0), Fault(Kind.SERVER_KILL, 3.0, seconds=1.0))
    seen: list[bool] = []
    look = lambda: seen.append(world.network.is_blocked("n1", "server2"))  # noqa: E731
    world.clock.add(world.clock.world, 5.0, False, look)
    world.clock.add(world.clock.world, 9.0, False, look)
    world.run()
    assert seen == [True, False]


@pytest.mark.parametrize("shared", [False, True], ids=["hosted", "shared"])
@pytest.mark.parametrize("kind", sorted(STEP_KINDS), ids=lambda kind: kind.name)
def test_faults_at_every_step_of_a_node(kind: Kind, shared: bool) -> None:
    """case-C8: a node is killed, or stopped for two leases, at each step from join to loss."""
    went_on = Fault(Kind.KILL, 3.0, node=2)
    whole = a_world(went_on, shared=shared)
    whole.run()
    for step in range(1, whole.clock.steps):
        fault = Fault(kind, step, seconds=6.0, back=step % 2 == 0)
        again = attempt(a_world(went_on, fault, shared=shared).plan)
        assert again is None, story(again)
