"""The transport over real sockets: who reads, watchers, cuts, outages, ends at any moment."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from rallypoint.core.state import Node, Settings
from rallypoint.deadline import Deadline
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.net.connection import ConnectionConfig
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client.session import Session
from rallypoint.rendezvous.client.transport import Transport
from rallypoint.rendezvous.view import View
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.testing.fakes import Proxy
from rallypoint.testing.store_handles import after_a_moment, in_thread

Make = Callable[..., Transport]


@pytest.fixture(name="make")
def _make() -> Iterator[Make]:
    made: list[Transport] = []

    def make(port: int, lease: float = 15.0, token: bytes = b"") -> Transport:
        target = ConnectionConfig("127.0.0.1", port, "run", token)
        made.append(Transport(target, Session("run", target.where, lease)))
        return made[-1]

    yield make
    for transport in made:
        transport.stop()


def view_of(transport: Transport) -> View:
    return transport.session.view


def until(transport: Transport, ready: Callable[[View], bool]) -> View:
    with transport.changed:
        assert transport.changed.wait_for(lambda: ready(view_of(transport)), 20)
        return view_of(transport)


def report(transport: Transport, limit: float = 20.0) -> wire.Answer | None:
    with transport.changed:
        request = transport.session.request(wire.Inquire)
    return transport.call(request, Deadline(limit))


def seat(transport: Transport, lease: float = 15.0) -> View:
    """Let the session's node join a round of its own."""
    settings = Settings(1, 1, lease_seconds=lease)
    node = Node("node", transport.local_address, host="here")
    _join, frame = transport.update(lambda session: session.join(node, settings))
    transport.send(frame)
    return until(transport, lambda view: view.assignment is not None)


def test_it_connects_once_asks_and_stops(server: EmbeddedServer, make: Make) -> None:
    transport = make(server.port)
    assert view_of(transport) == View(connected=False)
    transport.start(Deadline(20))
    transport.start(Deadline(20))  # once more is nothing
    assert view_of(transport).connected
    assert transport.local_address == "127.0.0.1"
    answer = report(transport)
    assert answer is not None
    assert answer.report is not None
    assert answer.report.run_id == "run"
    began = time.monotonic()
    transport.stop()
    transport.stop()
    assert time.monotonic() - began < 2.0
    with pytest.raises(RendezvousStateError, match="shut down; make a new one"):
        transport.start(Deadline(20))
    assert server.wait_until_empty(Deadline(20))


def test_failing_watcher_affects_nobody(
    server: EmbeddedServer, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    transport = make(server.port)
    seen: list[View] = []
    seated = threading.Event()

    def watcher(view: View) -> None:
        seen.append(view)
        if view.assignment is not None:
            seated.set()

    def broken(view: View) -> None:
        raise KeyError("a fault in a callback")

    transport.watch(broken)
    end = transport.watch(watcher)
    transport.start(Deadline(20))
    view = seat(transport)
    assert view.error is None
    assert seated.wait(20)
    assert seen[-1] == view
    assert "a watcher of run 'run' has failed" in caplog.text
    assert "a fault in a callback" in caplog.text
    end()
    transport.update(Session.disconnected)
    assert seen[-1] == view


def test_a_disconnect_within_the_grace_is_no_loss(server: EmbeddedServer, make: Make) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        transport = make(proxy.port)
        transport.start(Deadline(20))
        before = seat(transport)
        changes: list[bool] = []
        transport.watch(lambda view: changes.append(view.connected))
        for number in range(1, 4):
            assert proxy.cut() == 1
            with transport.changed:
                assert transport.changed.wait_for(lambda n=number: changes.count(True) == n, 20)  # type: ignore[misc] # a default
            assert report(transport) is not None
        assert view_of(transport) == before
        state = server.call(lambda s: s.run("run").state, Deadline(20))
        assert (state.fenced, state.phase.record.number) == ({}, 1)
        assert state.participants["node"].connected


def test_a_request_during_an_outage_is_answered_after_it(
    server: EmbeddedServer, make: Make
) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        transport = make(proxy.port)
        transport.start(Deadline(20))
        proxy.refusing = True
        proxy.cut()
        until(transport, lambda view: not view.connected)
        asked = in_thread(report, transport)
        with pytest.raises(RendezvousConnectionError, match=r"not connected: .*127\.0\.0\.1"):
            report(transport, 0.2)
        proxy.refusing = False
        assert asked.result(20) is not None
        assert transport.session.greetings() == []


def test_a_server_that_is_silent_for_a_lease_counts_as_gone(make: Make) -> None:
    server = EmbeddedServer("127.0.0.1", 0, Options())
    transport = make(server.port, lease=0.3)
    transport.start(Deadline(20))
    stalled, go_on = threading.Event(), threading.Event()

    def stall(_: object) -> None:
        stalled.set()
        go_on.wait(20)

    stalling = in_thread(server.call, stall, Deadline(20))
    assert stalled.wait(20)
    until(transport, lambda view: not view.connected)
    go_on.set()
    stalling.result(20)
    until(transport, lambda view: view.connected)
    transport.stop()
    server.stop()


def test_a_wrong_token_is_an_error_at_once(
    serve: Callable[..., EmbeddedServer], make: Make
) -> None:
    transport = make(serve(token=b"right").port, token=b"wrong")
    with pytest.raises(RendezvousConnectionError, match="token"):
        transport.start(Deadline(60))


def test_unreachable_server_error_says_what_was_tried(make: Make, port: int) -> None:
    with pytest.raises(RendezvousConnectionError) as caught:
        make(port).start(Deadline(0.2))
    for words in ("run 'run'", f"127.0.0.1:{port}", "no process is listening there", "join=0.2 s"):
        assert words in str(caught.value)


def test_stop_ends_an_attempt_to_connect(make: Make, port: int) -> None:
    transport = make(port)
    starting = in_thread(transport.start, Deadline(600))
    with pytest.raises(TimeoutError):
        starting.result(0.2)
    began = time.monotonic()
    transport.stop()
    assert time.monotonic() - began < 1.0
    with pytest.raises(RendezvousStateError, match="shut down"):
        starting.result(10)


def test_stop_ends_a_reconnect_and_all_waits(make: Make) -> None:
    server = EmbeddedServer("127.0.0.1", 0, Options())
    transport = make(server.port)
    transport.start(Deadline(20))
    server.stop()
    until(transport, lambda view: not view.connected)
    waiting = in_thread(report, transport)
    with pytest.raises(TimeoutError):
        waiting.result(0.2)
    began = time.monotonic()
    transport.stop()
    assert time.monotonic() - began < 2.0
    with pytest.raises(RendezvousConnectionError, match="ended before the answer came"):
        waiting.result(10)
    assert not [t for t in threading.enumerate() if t.name == "rallypoint-session"]


def test_exception_in_the_thread_is_raised_by_the_next_call(
    server: EmbeddedServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = make(server.port)
    transport.start(Deadline(20))

    def broken(_: object) -> None:
        raise KeyError("a fault in the session")

    monkeypatch.setattr(transport.session, "receive", broken)
    with pytest.raises(RendezvousConnectionError, match="a fault in the session"):
        report(transport)
    assert isinstance(view_of(transport).error, KeyError)
    with pytest.raises(RendezvousConnectionError, match="has failed"):
        transport.start(Deadline(20))
    assert server.wait_until_empty(Deadline(20))  # its node's grace begins at once


def test_a_fork_does_not_disturb_the_parents_connection(server: EmbeddedServer, make: Make) -> None:
    transport = make(server.port)
    transport.start(Deadline(20))
    child = os.fork()
    if child == 0:  # no test framework here: only an exit code
        code = 1
        try:
            transport.start(Deadline(1))
        except RendezvousStateError as error:
            code = 42 if "before a fork" in str(error) else 2
        transport.stop()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert report(transport) is not None


# -- who reads ------------------------------------------------------------------------------


@pytest.fixture(name="readers")
def _readers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the threads that read."""
    names: set[str] = set()
    receive = Session.receive

    def noting(self: Session, body: bytes) -> str:
        names.add(threading.current_thread().name)
        return receive(self, body)

    monkeypatch.setattr(Session, "receive", noting)
    return names


def test_a_caller_reads_its_answer_itself(
    server: EmbeddedServer, make: Make, readers: set[str]
) -> None:
    transport = make(server.port)
    transport.start(Deadline(20), reads=True)
    for _ in range(20):
        assert report(transport) is not None
    assert readers == {threading.current_thread().name}


def test_the_reactor_reads_between_such_waits(
    server: EmbeddedServer, make: Make, readers: set[str]
) -> None:
    transport = make(server.port)
    transport.start(Deadline(20))
    seat(transport)
    assert readers == {"rallypoint-reactor"}


def test_one_caller_reads_the_answers_of_the_others(server: EmbeddedServer, make: Make) -> None:
    transport = make(server.port)
    transport.start(Deadline(20), reads=True)
    reading = after_a_moment(in_thread(transport.wait_for, lambda: False, 1.0))
    assert report(transport) is not None
    assert not reading.result(20)


def test_a_wait_ends_at_its_timeout(server: EmbeddedServer, make: Make) -> None:
    transport = make(server.port)
    transport.start(Deadline(20), reads=True)
    assert not transport.wait_for(lambda: False, 0.01)


def test_stop_ends_a_read(server: EmbeddedServer, make: Make) -> None:
    transport = make(server.port)
    transport.start(Deadline(20), reads=True)
    reading = after_a_moment(in_thread(transport.wait_for, lambda: transport.session.over, 600))
    transport.stop()
    assert reading.result(20)
    transport.send(b"to nobody")


def test_a_read_that_a_signal_interrupts_costs_the_connection_and_no_more(
    server: EmbeddedServer, make: Make
) -> None:
    class Break(BaseException):
        pass

    def handle(_signal: int, _frame: FrameType | None) -> Any:
        raise Break

    transport = make(server.port)
    transport.start(Deadline(20), reads=True)
    before = signal.signal(signal.SIGUSR1, handle)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Break):
            transport.wait_for(lambda: False, 600)
    finally:
        timer.join(20)
        signal.signal(signal.SIGUSR1, before)
    assert report(transport) is not None
