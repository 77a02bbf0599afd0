"""A simulated node's requests to the server."""

from tests.testing.simulator.test_world import a_hosted_world, a_world

from rallypoint.agent.policy import decisions
from rallypoint.core.events import Close
from rallypoint.core.state import Closed, Settings
from rallypoint.testing.simulator import Fault, Kind


def test_join_that_takes_too_long_ends_with_a_reason() -> None:
    world = a_world(nodes=1, join_seconds=5.0)
    world.run()
    assert world.agents[0].exit is not None
    assert "within 5 s" in world.agents[0].exit.text


def test_fenced_node_joins_under_a_new_id() -> None:
    world = a_world(Fault(Kind.PART, 2.0, node=1, seconds=6.0))
    world.run()
    agent = world.agents[1]
    assert agent.node_id == "n1.2"
    assert isinstance(agent.state.phase, decisions.Working)


def test_spare_waits_until_the_run_finishes() -> None:
    settings = Settings(2, 2, last_call_seconds=0.0, lease_seconds=3.0)
    world = a_world(settings=settings, work_seconds=4.0)
    world.run()
    assert [agent.exit.code for agent in world.agents if agent.exit] == [0, 0, 0]
    assert len(world.truth.done) == 2


def test_request_of_a_non_member_reaches_the_run() -> None:
    world = a_hosted_world()
    with world.watched():
        world.start()
        world.clock.run_until(2.0)
        world.order(Close("a user", "enough"))
        world.clock.run_until(6.0)
    state = world.state()
    assert state is not None
    assert isinstance(state.phase, Closed)
    assert world.live() == []
