"""A simulated session against the real server."""

from tests.testing.simulator.test_world import a_hosted_world

from rallypoint.core.events import Close
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.coordinator import View
from rallypoint.testing.simulator import HostedWorld
from rallypoint.testing.simulator.session import NodeSession
from rallypoint.testing.simulator.virtual_clock import Process


def a_session(world: HostedWorld, views: list[View] | None = None) -> NodeSession:
    process = Process(world.clockwork, "n9", 0.0)
    seen = [] if views is None else views
    return NodeSession(world, process, 3.0, seen.append)


def test_it_connects_beats_and_comes_back() -> None:
    world, views = a_hosted_world(), list[View]()
    world.server.start()
    session = a_session(world, views)
    session.connect()
    world.clockwork.run_until(10.0)
    assert session.ready
    assert session.heard_at > 8.0, "beats are answered"
    world.network.cut(session.process, "both")
    world.clockwork.run_until(12.0)
    assert session.ready
    assert [view.connected for view in views] == [True, False, True]
    session.stop()
    world.clockwork.run_until(20.0)
    assert not session.ready


def test_a_server_that_says_nothing_is_left() -> None:
    world, views = a_hosted_world(), list[View]()
    world.server.start()
    session = a_session(world, views)
    session.connect()
    world.clockwork.run_until(1.0)
    assert world.server.process is not None
    world.network.block(world.server.process.name, "n9")
    world.clockwork.run_until(8.0)
    assert [view.connected for view in views] == [True, False]


def test_a_request_is_sent_again_until_it_is_answered_or_given_up() -> None:
    world, answers = a_hosted_world(), list[bool]()
    world.truth.orders.add(("Close", ""))
    session = a_session(world)
    session.ask(lambda i: wire.Ask(i, Close("me", "enough")), 30.0, answers.append)
    session.connect()  # nobody listens yet
    world.clockwork.run_until(2.0)
    with world.watched():
        world.server.start()
        world.clockwork.run_until(10.0)
        assert answers == [True]
        world.server.kill(100.0, power=False, lost=False)
        session.ask(lambda i: wire.Ask(i, Close("me", "again")), 5.0, answers.append)
        world.clockwork.run_until(20.0)
    assert answers == [True, False]
    assert session.asked == {}
