"""Worlds in which one thing happens, so that it is seen what the simulator makes of it."""

import pytest

from rallypoint.core.state import Closed, Sealed, Settings
from rallypoint.testing.simulator import Fault, HostedWorld, Kind, Plan, World, make_world
from rallypoint.testing.simulator.serverless import ServerlessWorld

SETTINGS = Settings(
    2,
    4,
    last_call_seconds=0.5,
    rejoin_timeout_seconds=5.0,
    lease_seconds=3.0,
    disconnect_grace_seconds=0.5,
)


def a_world(*faults: Fault, shared: bool = False, **fields: object) -> World:
    plan = Plan(1, 3, SETTINGS, faults, fault_seconds=10.0, shared=shared)
    for name, value in fields.items():
        plan = type(plan)(**{**{f: getattr(plan, f) for f in plan.__struct_fields__}, name: value})
    return make_world(plan, trace=True)


def a_hosted_world(*faults: Fault, **fields: object) -> HostedWorld:
    world = a_world(*faults, shared=False, **fields)
    assert isinstance(world, HostedWorld)
    return world


def a_serverless_world(*faults: Fault, **fields: object) -> ServerlessWorld:
    world = a_world(*faults, shared=True, **fields)
    assert isinstance(world, ServerlessWorld)
    return world


def round_of(world: World) -> tuple[int, int]:
    """Return number and size of the sealed round."""
    state = world.state()
    assert state is not None
    assert isinstance(state.phase, Sealed)
    return state.phase.record.number, len(state.phase.record.seats)


@pytest.mark.parametrize("shared", [False, True], ids=["hosted", "shared"])
def test_run_without_faults(shared: bool) -> None:
    world = a_world(shared=shared)
    result = world.run()
    assert round_of(world) == (1, 3)
    assert result.rounds == 1
    assert result.steps > 50


@pytest.mark.parametrize("shared", [False, True], ids=["hosted", "shared"])
@pytest.mark.parametrize("kind", [Kind.KILL, Kind.VANISH, Kind.LEAVE])
def test_node_leaves_and_the_others_continue(kind: Kind, shared: bool) -> None:
    world = a_world(Fault(kind, 2.0, node=1), shared=shared)
    world.run()
    assert round_of(world) == (2, 2)


@pytest.mark.parametrize("shared", [False, True], ids=["hosted", "shared"])
def test_newcomer_is_admitted(shared: bool) -> None:
    world = a_world(Fault(Kind.COME, 3.0), shared=shared)
    world.run()
    assert round_of(world) == (2, 4)


@pytest.mark.parametrize("kind", [Kind.CUT, Kind.CUT_NEAR, Kind.SERVER_KILL, Kind.SERVER_PAUSE])
def test_workers_do_not_notice_a_short_outage(kind: Kind) -> None:
    world = a_world(Fault(kind, 2.0, node=1, seconds=0.3))
    world.run()
    assert round_of(world) == (1, 3)


def test_all_nodes_rejoin_a_server_that_lost_its_state() -> None:
    world = a_world(Fault(Kind.SERVER_LOST, 3.0, seconds=1.0))
    world.run()
    assert world.server.life == 1
    assert {agent.node_id for agent in world.live()} == {"n0.2", "n1.2", "n2.2"}


@pytest.mark.parametrize("shared", [False, True], ids=["hosted", "shared"])
def test_work_is_finished(shared: bool) -> None:
    world = a_world(shared=shared, work_seconds=4.0)
    world.run()
    state = world.state()
    assert state is not None
    assert isinstance(state.phase, Closed)
    assert state.phase.finished
    assert [agent.exit.code for agent in world.agents if agent.exit] == [0, 0, 0]


@pytest.mark.parametrize("shared", [False, True], ids=["hosted", "shared"])
def test_user_closes_the_run(shared: bool) -> None:
    world = a_world(Fault(Kind.CLOSE, 3.0), shared=shared)
    world.run()
    assert {agent.exit.code for agent in world.agents if agent.exit} == {4}
    assert not world.live()


def test_simulation_that_does_not_settle_is_reported() -> None:
    world = a_world()
    world.server.start()
    agent = world.new_agent(0)
    assert world.unsettled(final=True).startswith("n0.1 ")
    agent.process.kill()
    world.server.kill(1.0, power=False, lost=False)
    assert world.unsettled(final=True) == "the server is down"
