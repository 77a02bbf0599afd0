"""The client client on the simulated network, against the real server."""

from tests.testing.simulator.test_world import a_hosted_world

from rallypoint.core.events import Close
from rallypoint.rendezvous.view import View
from rallypoint.testing.simulator import HostedWorld
from rallypoint.testing.simulator.client import NodeClient
from rallypoint.testing.simulator.virtual_clock import Process


def a_client(world: HostedWorld, views: list[View] | None = None) -> NodeClient:
    process = Process(world.clock, "n9", 0.0)

    def changed(view: View) -> None:
        if views is not None and (not views or views[-1] != view):
            views.append(view)

    return NodeClient(world, world.server, process, changed, lambda _client, _seat: None)


def test_it_connects_sends_heartbeats_and_reconnects() -> None:
    world, views = a_hosted_world(), list[View]()
    world.server.start()
    client = a_client(world, views)
    client.connect()
    world.clock.run_until(10.0)
    assert client.ready
    assert client.heard_at > 8.0, "heartbeats are answered"
    world.network.cut(client.process, "both")
    world.clock.run_until(12.0)
    assert client.ready
    assert [view.connected for view in views] == [True, False, True]
    client.stop()
    world.clock.run_until(20.0)
    assert not client.ready


def test_a_silent_server_counts_as_gone() -> None:
    world, views = a_hosted_world(), list[View]()
    world.server.start()
    client = a_client(world, views)
    client.connect()
    world.clock.run_until(1.0)
    assert world.server.process is not None
    world.network.block(world.server.process.name, "n9")
    world.clock.run_until(8.0)
    assert [view.connected for view in views] == [True, False]


def test_request_is_repeated_until_answered_or_given_up() -> None:
    world, answers = a_hosted_world(), list[bool]()
    world.truth.orders.add(("Close", ""))
    client = a_client(world)
    client.call(client.session.ask(Close("me", "enough")), 30.0, answers.append)
    client.connect()  # nobody listens yet
    world.clock.run_until(2.0)
    with world.watched():
        world.server.start()
        world.clock.run_until(10.0)
        assert answers == [True]
        world.server.kill(100.0, power=False, lost=False)
        client.call(client.session.ask(Close("me", "again")), 5.0, answers.append)
        world.clock.run_until(20.0)
    assert answers == [True, False]
    assert client.session.greetings() == []
