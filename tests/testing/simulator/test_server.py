from tests.testing.simulator.test_world import a_world, round_of

from rallypoint.rendezvous.core.state import State
from rallypoint.testing.simulator import Fault, Kind, World
from rallypoint.testing.simulator.server import Disk


def test_a_disk_loses_what_was_not_synced() -> None:
    disk = Disk(sync_at_once=False)
    disk.write(b"one")
    disk.sync()
    disk.write(b"two")
    assert disk.read() == b"two"
    disk.lose_power()
    assert disk.read() == b"one"
    disk.wipe()
    assert disk.read() is None


def test_a_server_that_starts_again_goes_on_from_its_disk() -> None:
    world = a_world(Fault(Kind.SERVER_POWER, 3.0, seconds=1.0))
    world.run()
    assert world.server.starts == 2
    assert world.server.life == 0
    assert round_of(world) == (1, 3)
    assert {agent.node_id for agent in world.live()} == {"n0.1", "n1.1", "n2.1"}


def state_of(world: World) -> State | None:
    return world.server.state


def test_a_run_that_was_never_opened_is_taken_over_as_it_is() -> None:
    world = a_world()
    world.server.store(State(world.run_id))
    world.server.start()
    assert state_of(world) == State(world.run_id)
    world.server.kill(1.0, power=False, lost=True)
    world.server.kill(1.0, power=False, lost=True)
    assert state_of(world) is None
    world.clockwork.run_until(2.0)
    assert (world.server.starts, world.server.life) == (2, 1)
