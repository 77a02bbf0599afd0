"""A simulated agent: what it shares with the real one, and its blocking calls."""

from tests.testing.simulator.test_world import a_world

from rallypoint.agent.policy import decisions, events
from rallypoint.testing.simulator import Fault, Kind


def test_calls_to_the_coordinator_hold_up_the_agent_as_in_reality() -> None:
    world = a_world(Fault(Kind.SERVER_KILL, 3.0, seconds=2.0))
    agents = world.agents
    clockwork = world.clockwork

    def fails() -> None:
        assert agents[0].working is not None
        agents[0].worker_ends(agents[0].working, 1)

    clockwork.add(clockwork.world, 3.5, False, fails)
    seen: list[bool] = []
    clockwork.add(clockwork.world, 4.5, False, lambda: seen.append(agents[0]._blocked))
    world.run()
    assert seen == [True], "its report waits for the server"
    assert all(isinstance(agent.state.phase, decisions.Working) for agent in agents)
    assert (("n0.1", 1)) in world.truth.failed


def test_a_signal_makes_it_leave_and_exit() -> None:
    world = a_world(Fault(Kind.LEAVE, 3.0, node=2))
    world.run()
    agent = world.agents[2]
    assert agent.exit == events.Exit(143, "received SIGTERM")
    assert not agent.process.alive
    assert agent.node_id in world.truth.left


def test_each_join_says_the_same_of_the_node_but_for_its_port() -> None:
    world = a_world(slots=True)
    agent = world.make_agent(1, 2)
    one, two = agent.describe(), agent.describe()
    assert (one.id, one.slot, one.address) == ("n1''.1", "slot1", "10.0.0.2")
    assert one.port != two.port
    agent.new_id()
    assert agent.describe().id == "n1''.2"
