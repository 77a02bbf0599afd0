"""A session over real sockets: watchers, cuts, outages, ends at any moment."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rallypoint.core.events import Join
from rallypoint.core.state import Node, Settings
from rallypoint.deadline import Deadline
from rallypoint.errors import RendezvousConnectionError, RendezvousStateError
from rallypoint.net.connection import Target
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client.session import Session
from rallypoint.rendezvous.coordinator import View
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.testing.proxy import Proxy
from rallypoint.testing.store_handles import in_thread

Make = Callable[..., Session]


@pytest.fixture(name="make")
def _make() -> Iterator[Make]:
    sessions: list[Session] = []

    def make(port: int, lease: float = 15.0, token: bytes = b"") -> Session:
        sessions.append(Session(Target("127.0.0.1", port, "run", token), lease))
        return sessions[-1]

    yield make
    for session in sessions:
        session.stop()


def until(session: Session, ready: Callable[[View], bool]) -> View:
    with session.changed:
        assert session.changed.wait_for(lambda: ready(session.view), 20), session.view
        return session.view


def report(session: Session, limit: float = 20.0) -> wire.Answer | None:
    return session.call(wire.Inquire, Deadline(limit))


def seat(session: Session, lease: float = 15.0) -> View:
    """Let the session's node join a round of its own."""
    settings = Settings(1, 1, lease_seconds=lease)
    session.join = Join(Node("node", session.local_address, host="here"), settings)
    session.send(wire.Ask(0, session.join))
    return until(session, lambda view: view.assignment is not None)


def test_it_connects_asks_and_ends(server: EmbeddedServer, make: Make) -> None:
    session = make(server.port)
    assert session.view == View(connected=False)
    session.start(Deadline(20))
    session.start(Deadline(20))  # once more is nothing
    assert session.view.connected
    assert session.local_address == "127.0.0.1"
    answer = report(session)
    assert answer is not None
    assert answer.report is not None
    assert answer.report.run_id == "run"
    began = time.monotonic()
    session.stop()
    session.stop()
    assert time.monotonic() - began < 2.0
    with pytest.raises(RendezvousStateError, match="shut down; make a new one"):
        session.start(Deadline(20))
    assert server.wait_until_empty(Deadline(20))


def test_a_watcher_that_fails_harms_nobody(
    server: EmbeddedServer, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    session = make(server.port)
    seen: list[View] = []
    seated = threading.Event()

    def watcher(view: View) -> None:
        seen.append(view)
        if view.assignment is not None:
            seated.set()

    def broken(view: View) -> None:
        raise KeyError("a fault in a callback")

    session.watch(broken)
    end = session.watch(watcher)
    session.start(Deadline(20))
    view = seat(session)
    assert view.error is None
    assert seated.wait(20)
    assert seen[-1] == view
    assert "a watcher of run 'run' has failed" in caplog.text
    assert "a fault in a callback" in caplog.text
    end()
    session.update(lambda view: View())
    assert seen[-1] == view


def test_a_cut_within_the_grace_is_no_loss(server: EmbeddedServer, make: Make) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        session = make(proxy.port)
        session.start(Deadline(20))
        before = seat(session)
        changes: list[bool] = []
        session.watch(lambda view: changes.append(view.connected))
        for number in range(1, 4):
            assert proxy.cut() == 1
            with session.changed:
                assert session.changed.wait_for(lambda n=number: changes.count(True) == n, 20)  # type: ignore[misc] # a default
            assert report(session) is not None
        assert session.view == before
        state = server.call(lambda s: s.run("run").state, Deadline(20))
        assert (state.fenced, state.phase.record.number) == ({}, 1)
        assert state.participants["node"].connected


def test_what_was_asked_during_an_outage_is_answered_after_it(
    server: EmbeddedServer, make: Make
) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        session = make(proxy.port)
        session.start(Deadline(20))
        proxy.refusing = True
        proxy.cut()
        until(session, lambda view: not view.connected)
        asked = in_thread(report, session)
        with pytest.raises(RendezvousConnectionError, match=r"not connected: .*127\.0\.0\.1"):
            report(session, 0.2)
        proxy.refusing = False
        assert asked.result(20) is not None
        assert session.answers == {}


def test_a_server_that_says_nothing_for_a_lease_counts_as_gone(make: Make) -> None:
    server = EmbeddedServer("127.0.0.1", 0, Options())
    session = make(server.port, lease=0.3)
    session.start(Deadline(20))
    stalled, go_on = threading.Event(), threading.Event()

    def stall(_: object) -> None:
        stalled.set()
        go_on.wait(20)

    stalling = in_thread(server.call, stall, Deadline(20))
    assert stalled.wait(20)
    until(session, lambda view: not view.connected)
    go_on.set()
    stalling.result(20)
    until(session, lambda view: view.connected)
    session.stop()
    server.stop()


def test_a_wrong_token_is_said_at_once(serve: Callable[..., EmbeddedServer], make: Make) -> None:
    session = make(serve(token=b"right").port, token=b"wrong")
    with pytest.raises(RendezvousConnectionError, match="token"):
        session.start(Deadline(60))


def test_an_unreachable_server_is_an_error_that_says_what_was_tried(make: Make, port: int) -> None:
    with pytest.raises(RendezvousConnectionError) as caught:
        make(port).start(Deadline(0.2))
    for words in ("run 'run'", f"127.0.0.1:{port}", "nobody listens", "join=0.2 s"):
        assert words in str(caught.value)


def test_stop_ends_an_attempt_to_connect(make: Make, port: int) -> None:
    session = make(port)
    starting = in_thread(session.start, Deadline(600))
    with pytest.raises(TimeoutError):
        starting.result(0.2)
    began = time.monotonic()
    session.stop()
    assert time.monotonic() - began < 1.0
    with pytest.raises(RendezvousStateError, match="shut down"):
        starting.result(10)


def test_stop_ends_a_reconnect_and_whoever_waits(make: Make) -> None:
    server = EmbeddedServer("127.0.0.1", 0, Options())
    session = make(server.port)
    session.start(Deadline(20))
    server.stop()
    until(session, lambda view: not view.connected)
    waiting = in_thread(report, session)
    with pytest.raises(TimeoutError):
        waiting.result(0.2)
    began = time.monotonic()
    session.stop()
    assert time.monotonic() - began < 2.0
    with pytest.raises(RendezvousConnectionError, match="ended before the answer came"):
        waiting.result(10)
    assert not [t for t in threading.enumerate() if t.name == "rallypoint-session"]


def test_a_fault_in_the_thread_is_raised_by_the_next_call(
    server: EmbeddedServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make(server.port)
    session.start(Deadline(20))

    def broken(_: object) -> None:
        raise KeyError("a fault in the session")

    monkeypatch.setattr(session, "_handle", broken)
    with pytest.raises(RendezvousConnectionError, match="a fault in the session"):
        report(session)
    assert isinstance(session.view.error, KeyError)
    with pytest.raises(RendezvousConnectionError, match="has failed"):
        session.start(Deadline(20))
    assert server.wait_until_empty(Deadline(20))  # its node's grace begins at once


def test_a_fork_leaves_the_parents_session_alone(server: EmbeddedServer, make: Make) -> None:
    session = make(server.port)
    session.start(Deadline(20))
    child = os.fork()
    if child == 0:  # no test framework here: only an exit code
        code = 1
        try:
            session.start(Deadline(1))
        except RendezvousStateError as error:
            code = 42 if "before a fork" in str(error) else 2
        session.stop()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert report(session) is not None
