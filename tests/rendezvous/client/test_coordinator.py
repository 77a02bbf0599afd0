"""Handlers over a server: joining, refusals, closing, leaving, outages, hosting."""

import datetime
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from rallypoint.core.events import Admit, Exclude, Refusal
from rallypoint.core.state import Aspect, Failure, Verdict
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    ParameterError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.hosting import host as hosting
from rallypoint.net.connection import ConnectionConfig
from rallypoint.rendezvous.client.coordinator import HostedCoordinator, create_handler
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.rendezvous.view import View
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.testing.fakes import Proxy
from rallypoint.testing.store_handles import after_a_moment, in_thread

Make = Callable[..., DynamicRendezvousHandler]


@pytest.fixture(name="make")
def _make() -> Iterator[Make]:
    handlers: list[DynamicRendezvousHandler] = []

    def make(
        port: int, least: int = 1, most: int = 1, run_id: str = "run", host: str = "127.0.0.1",
        **config: Any,
    ) -> DynamicRendezvousHandler:  # fmt: skip
        config = {"join": 20, "last_call": 0.1, "close": 10, "is_host": False} | config
        where = f"{host}:{port}"
        params = RendezvousParameters("core", where, run_id, least, most, config=config)
        handlers.append(create_handler(params))
        return handlers[-1]

    yield make
    for handler in handlers[::-1]:
        handler.shutdown()


def until(handler: DynamicRendezvousHandler, ready: Callable[[View], bool]) -> View:
    deadline, view = Deadline(20), handler.view()
    while not ready(view):
        assert not deadline.expired(), view
        view = handler.wait_for_change(deadline.remaining(), view)
    return view


def together(*handlers: DynamicRendezvousHandler) -> list[int]:
    """Join with all; return their ranks."""
    asked = [in_thread(handler.next_rendezvous) for handler in handlers]
    return [future.result(20).rank for future in asked]


# -- joining ------------------------------------------------------------------------------


def test_round_and_its_store(server: EmbeddedServer, make: Make) -> None:
    a, b = make(server.port, 2, 2), make(server.port, 2, 2)
    joining = after_a_moment(in_thread(a.next_rendezvous))
    there = b.next_rendezvous()
    here = joining.result(20)
    assert {here.rank, there.rank} == {0, 1}
    here.store.set("key", b"x")
    assert there.store.get("key") == b"x"
    assert [n["address"] if isinstance(n, dict) else n.address for n in here.participants] == [
        "127.0.0.1"
    ] * 2
    assert b.round == a.round == 1


def test_wrong_settings_are_refused_and_right_ones_accepted(
    server: EmbeddedServer, make: Make
) -> None:
    a, wrong = make(server.port, 2, 2), make(server.port, 1, 3)
    joining, deadline = in_thread(a.next_rendezvous), Deadline(20)
    while not wrong.report().members:  # who comes first decides
        assert not deadline.expired()
        time.sleep(0.01)
    with pytest.raises(RendezvousStateError, match="min_nodes=1, max_nodes=3 were asked for"):
        wrong.next_rendezvous()
    wrong._settings = a._settings  # the same handler, put right
    assert wrong.next_rendezvous().world_size == 2
    assert joining.result(20).world_size == 2


def test_join_timeout_says_what_was_missing_and_withdraws(
    server: EmbeddedServer, make: Make
) -> None:
    with pytest.raises(RendezvousTimeoutError) as caught:
        make(server.port, 2, 2, join=0.2).next_rendezvous()
    for words in ("run 'run'", "join=0.2 s", f"127.0.0.1:{server.port}", "1 of"):
        assert words in str(caught.value)
    state = server.call(lambda s: s.run("run").state, Deadline(20))
    assert state.candidates == {}


def test_join_timeout_during_an_outage_says_what_was_tried(
    server: EmbeddedServer, make: Make
) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        handler = make(proxy.port, 2, 2, join=1.0)
        joining = after_a_moment(in_thread(handler.next_rendezvous))
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(RendezvousTimeoutError, match=rf"not connected: .*{proxy.port}"):
            joining.result(20)
        proxy.refusing = False
        until(handler, lambda view: view.connected)
        deadline = Deadline(20)  # it does not come back as a candidate by itself
        while server.call(lambda s: s.run("run").state.candidates, Deadline(20)):
            assert not deadline.expired()


def test_unreachable_server(make: Make, port: int) -> None:
    with pytest.raises(
        RendezvousConnectionError, match=f"127.0.0.1:{port}.*no process is listening there"
    ):
        make(port, join=0.2).next_rendezvous()


def test_join_after_shutdown_fails_at_once(server: EmbeddedServer, make: Make) -> None:
    handler = make(server.port)
    handler.next_rendezvous()
    handler.shutdown()
    with pytest.raises(RendezvousStateError, match="shut down"):
        handler.next_rendezvous()


def test_shutdown_ends_a_join(server: EmbeddedServer, make: Make) -> None:
    handler = make(server.port, 2, 2, join=600)
    joining = after_a_moment(in_thread(handler.next_rendezvous))
    handler.shutdown()
    with pytest.raises(RendezvousStateError, match="while it was joining"):
        joining.result(10)


# -- being shut out -----------------------------------------------------------------------


def test_different_shared_settings_are_reported(
    server: EmbeddedServer, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = make(server.port, 1, 2), make(server.port, 1, 2, lease=40)
    a.next_rendezvous()
    assert caplog.messages == []
    joining = in_thread(b.next_rendezvous)
    until(a, lambda view: view.waiting > 0)
    a.next_rendezvous()
    joining.result(20)
    (line,) = caplog.messages
    assert "with lease=15 (not 40), which holds for all nodes" in line


def test_i1_replaced_node_does_not_come_back(server: EmbeddedServer, make: Make) -> None:
    old, new = (make(server.port, 1, 2, slot="a") for _ in "ab")
    old.next_rendezvous()
    assert new.next_rendezvous().world_size == 1
    until(old, lambda view: view.fenced is not None)
    with pytest.raises(RendezvousStateError, match="in the same place; a replaced node"):
        old.next_rendezvous()
    assert new.view().fenced is None


def test_fenced_node_comes_back_as_a_newcomer(server: EmbeddedServer, make: Make) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        handler = make(proxy.port)
        handler.next_rendezvous()
        old = handler.node_id
        proxy.refusing = True
        proxy.cut()
        deadline = Deadline(20)
        while not server.call(lambda s: s.run("run").state.fenced, Deadline(20)):
            assert not deadline.expired()
        proxy.refusing = False
        view = until(handler, lambda view: view.fenced is not None)
        assert "its connection closed" in str(view.fenced)
        handler.next_rendezvous()
        assert handler.view().fenced is None
        assert handler.node_id != old
        handler.report()
        handler.finish()
        assert until(handler, lambda view: view.closed is not None).closed.finished  # type: ignore[union-attr] # just seen


def test_server_that_lost_its_state_fences_rejoining_members(make: Make, port: int) -> None:
    first = EmbeddedServer("127.0.0.1", port, Options())
    a, b = make(port, 2, 2), make(port, 2, 2)
    together(a, b)
    first.stop()
    second = EmbeddedServer("127.0.0.1", port, Options())
    for handler in (a, b):
        assert "restarted without its state" in str(
            until(handler, lambda view: view.fenced is not None).fenced
        )
    assert sorted(together(a, b)) == [0, 1]
    assert a.view().fenced is None
    for handler in (a, b):
        handler.shutdown()
    second.stop()


# -- closing, leaving ---------------------------------------------------------------------


def test_close_without_having_joined(server: EmbeddedServer, make: Make) -> None:
    handler, late = make(server.port), make(server.port)
    handler.set_closed("not today")
    assert handler.is_closed()
    closed = handler.view().closed
    assert closed is not None
    assert (closed.incarnation, closed.why) == (1, "not today")
    assert closed.by == "a client at 127.0.0.1"
    with pytest.raises(RendezvousClosedError, match=r"at 20.* UTC by a client at .*: not today"):
        late.next_rendezvous()
    afresh = make(server.port, new_incarnation=True)
    afresh.next_rendezvous()
    assert afresh.incarnation == 2


def test_close_after_somebody_else(server: EmbeddedServer, make: Make) -> None:
    a, b = make(server.port), make(server.port)
    a.set_closed("first")
    b.set_closed("second")
    closed = b.view().closed
    assert closed is not None
    assert closed.why == "first"


def test_members_are_notified_of_a_close(server: EmbeddedServer, make: Make) -> None:
    a, b = make(server.port, 2, 2), make(server.port, 2, 2)
    together(a, b)
    a.set_closed("enough")
    assert until(b, lambda view: view.closed is not None).closed.why == "enough"  # type: ignore[union-attr] # just seen
    b.leave("bye")  # nothing to leave any more


def test_others_are_notified_of_a_leave(server: EmbeddedServer, make: Make) -> None:
    a, b = make(server.port, 1, 2), make(server.port, 1, 2)
    together(a, b)
    b.leave("lunch")
    view = until(a, lambda view: view.opened is not None)
    assert "lunch" in str(view.opened)
    b.leave("again")


def test_leave_and_shutdown_without_a_server_are_quick_and_silent(
    make: Make, caplog: pytest.LogCaptureFixture, port: int
) -> None:
    server = EmbeddedServer("127.0.0.1", port, Options())
    handlers = [make(port, 2, 2, close=30) for _ in range(2)]
    together(*handlers)
    server.stop()
    for handler in handlers:
        until(handler, lambda view: not view.connected)
    caplog.clear()
    began = time.monotonic()
    handlers[0].leave("gone")
    assert time.monotonic() - began < 4.0
    for handler in handlers:
        began = time.monotonic()
        assert handler.shutdown() is False
        assert time.monotonic() - began < 2.0
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


def test_hanging_server_does_not_delay_the_shutdown(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        handler = make(silent.getsockname()[1], join=600)
        joining = after_a_moment(in_thread(handler.next_rendezvous))
        began = time.monotonic()
        handler.shutdown()
        assert time.monotonic() - began < 3.0
    with pytest.raises((RendezvousStateError, RendezvousConnectionError)):
        joining.result(20)


# -- hosting ------------------------------------------------------------------------------


def test_host_waits_until_the_others_have_left(make: Make, port: int) -> None:
    host, other = make(port, 2, 2, is_host=True), make(port, 2, 2, is_host=None)
    together(host, other)
    shutting = after_a_moment(in_thread(host.shutdown))
    other.next_rendezvous  # noqa: B018 - it is still served
    assert other.report().phase == "gathering"
    other.shutdown()
    assert shutting.result(20) is True


def test_a_node_with_is_host_that_cannot_bind_says_where(make: Make, port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(RendezvousConnectionError, match=rf"127\.0\.0\.1:{port}.*free port"),
    ):
        make(port, is_host=True)


def test_joining_node_hosts_once_the_port_becomes_free(
    make: Make, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "FIRST_SECONDS", 0.001)
    earlier = EmbeddedServer("127.0.0.1", port, Options())
    handler = make(port, is_host=None)
    earlier.stop()
    assert handler.next_rendezvous().world_size == 1
    assert handler.shutdown() is True, "it is the host"
    EmbeddedServer("127.0.0.1", port, Options()).stop()  # and has left nothing behind


def test_only_the_first_join_retries(
    make: Make, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def begin(*args: object) -> AbstractContextManager[None]:
        made.append(args)
        return nullcontext()

    monkeypatch.setattr("rallypoint.rendezvous.client.coordinator.retry_hosting", begin)
    handler, told_not_to = make(server.port, is_host=None), make(server.port, run_id="another")
    handler.next_rendezvous()
    assert made
    made.clear()
    handler.next_rendezvous()  # a server that is lost takes its runs along
    told_not_to.next_rendezvous()
    assert made == []


def test_server_started_after_the_shutdown_is_ended(port: int) -> None:
    coordinator = HostedCoordinator(ConnectionConfig("127.0.0.1", port, "run"), 15.0)
    coordinator.shutdown(Deadline(1))
    coordinator.host(EmbeddedServer("127.0.0.1", port, Options()))
    EmbeddedServer("127.0.0.1", port, Options()).stop()


# -- what operators, and machines that are taken away, have to say ----------------------------


def out_of(handler: DynamicRendezvousHandler, **more: Any) -> Exclude:
    return Exclude(Aspect.NODE, handler.node_id, "bad memory", "alice", **more)


def test_notice_reaches_all_members_of_the_round(server: EmbeddedServer, make: Make) -> None:
    one, two = make(server.port, 2, 2), make(server.port, 2, 2)
    with pytest.raises(RendezvousStateError, match="has not joined"):
        one.notice("spot machine")
    together(one, two)
    one.notice("spot machine", datetime.timedelta(seconds=25))
    for handler in (one, two):
        (notice,) = until(handler, lambda view: bool(view.notices)).notices
        assert (notice.node, notice.why, notice.seconds) == (one.node_id, "spot machine", 25.0)
    assert two.report().notices[0].remaining_seconds is not None
    one.leave("spot machine")
    assert until(two, lambda view: view.opened is not None).notices == ()


def test_h1_excluded_node_comes_back_once_admitted(server: EmbeddedServer, make: Make) -> None:
    one, two = make(server.port, 1, 2), make(server.port, 1, 2)
    together(one, two)
    admin = make(server.port)._coordinator
    admin.order(out_of(two), Deadline(10))
    shut_out = until(two, lambda view: view.fenced is not None).fenced
    assert shut_out is not None
    assert shut_out.refusal is Refusal.EXCLUDED
    opened = until(one, lambda view: view.opened is not None).opened
    assert opened is not None
    assert opened.why.endswith("was excluded by alice: bad memory")
    assert one.next_rendezvous().world_size == 1
    name = two.node_id
    with pytest.raises(RendezvousStateError, match="was excluded by alice at "):
        two.next_rendezvous()
    admin.order(Admit(Aspect.NODE, two.node_id, "alice"), Deadline(10))
    again = in_thread(two.next_rendezvous)
    until(one, lambda view: view.waiting == 1)
    assert one.next_rendezvous().world_size == 2
    assert again.result(20).world_size == 2
    assert two.node_id == name  # it was not fenced


def test_h1_timed_exclusion_ends_by_itself(server: EmbeddedServer, make: Make) -> None:
    one, two = make(server.port, 1, 2), make(server.port, 1, 2)
    together(one, two)
    one._coordinator.order(out_of(two, seconds=0.3), Deadline(10))
    deadline = Deadline(20)
    while one.report().exclusions:
        assert not deadline.expired()
        time.sleep(0.05)
    again = in_thread(two.next_rendezvous)
    while len(one.report().members) != 2:
        assert not deadline.expired()
        time.sleep(0.01)
    assert one.next_rendezvous().world_size == 2
    assert again.result(20).world_size == 2


def test_b1_all_nodes_learn_failures_and_verdict(server: EmbeddedServer, make: Make) -> None:
    one, two = (make(server.port, 2, 2, max_restarts=1) for _ in range(2))
    together(one, two)
    for count in (1, 2):
        one.fail(Failure("n1", 0, 0, 1, message=f"error {count}"))
        for handler in (one, two):
            until(handler, lambda view: view.opened is not None)
        asked = [in_thread(handler.next_rendezvous) for handler in (one, two)]
        if count == 1:
            seats = [future.result(20).assignment for future in asked]
            assert [seat and seat.failing for seat in seats] == [1, 1]
            continue
        for future, handler in zip(asked, (one, two), strict=True):
            with pytest.raises(RendezvousClosedError):
                future.result(20)
            closed = handler.view().closed
            assert closed is not None
            assert closed.verdict is Verdict.BUDGET
            assert [f.message for f in closed.failures] == ["error 1", "error 2"]
    late = make(server.port, 2, 2, max_restarts=1)
    with pytest.raises(RendezvousClosedError):
        late.next_rendezvous()
    assert late.view().closed is not None
    assert late.view().closed.verdict is Verdict.BUDGET  # type: ignore[union-attr] # just seen


# -- several endpoints ------------------------------------------------------------------------


def test_running_server_of_a_list_is_used(server: EmbeddedServer, port: int) -> None:
    endpoint = f"127.0.0.1:{port},127.0.0.1:{server.port}"
    params = RendezvousParameters("core", endpoint, "run", 1, 1, config={"join": 20})
    handler = create_handler(params)
    info = handler.next_rendezvous()
    info.store.set("key", b"value")
    assert info.store.get("key", 20) == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    handler.shutdown()


def test_is_host_with_a_list_of_endpoints_is_refused() -> None:
    endpoint, config = "127.0.0.1:1,127.0.0.1:2", {"is_host": True}
    with pytest.raises(ParameterError, match="no node starts a server of a list itself"):
        create_handler(RendezvousParameters("core", endpoint, "run", 1, 1, config=config))
