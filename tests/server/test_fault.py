"""A bug ends one run or connection with a stated error, and nothing else."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.server.fakes import Bench

from rallypoint.core import advance as core
from rallypoint.core.events import Close, Fail, Finish, Leave, RunClosed
from rallypoint.core.state import Closed, RunState
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreConnectionError,
    StoreError,
)
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.rendezvous.wire import Done
from rallypoint.server import connection as connection_module
from rallypoint.server import runs as runs_module
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.fault import guarded, reason
from rallypoint.store.keyspace import Keyspace
from rallypoint.store.tcp import TCPStore

LIMIT_SECONDS = 20.0
Make = Callable[..., DynamicRendezvousHandler]


class Thing:
    """Something that fails."""

    def __init__(self) -> None:
        self.on_fault: Any = None

    @guarded
    def work(self, well: bool) -> None:
        if not well:
            raise TypeError("planted")


def test_fault_goes_to_its_handler() -> None:
    thing = Thing()
    taken: list[Exception] = []
    with pytest.raises(TypeError, match="planted"):
        thing.work(False)
    thing.on_fault = taken.append
    thing.work(True)
    thing.work(False)
    assert [str(error) for error in taken] == ["planted"]
    assert "(TypeError: planted)" in reason(taken[0])


# -- the host of a run --------------------------------------------------------------------


def test_run_whose_rules_fail_is_closed_for_all_members() -> None:
    bench = Bench()
    bench.seal("a", "b", "c")
    bench.host.on_fault = lambda error: bench.host.fail(reason(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_module, "advance", planted)
        connection = bench.ask("c", 7, Leave("c", "done here"))
        bench.loop.turn()
    assert connection.take()[-1] == Done(7)
    for node in "ab":
        (closed,) = bench.connections[node].take()
        assert isinstance(closed, RunClosed)
        assert "an internal error of the server (TypeError: planted)" in closed.why
    assert isinstance(bench.host.state.phase, Closed)
    assert bench.loop.pending == 0
    assert bench.host.is_idle()


def planted(_state: RunState, *_events: object) -> Any:
    raise TypeError("planted")


def test_stored_run_whose_rules_fail_does_not_prevent_a_start() -> None:
    before, bench = Bench(), Bench()
    before.seal("a", "b")
    bench.host.on_fault = lambda error: bench.host.fail(reason(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_module, "advance", planted)
        bench.host.adopt(before.host.state)
        bench.loop.turn()
    phase = bench.host.state.phase
    assert isinstance(phase, Closed)
    assert "(TypeError: planted)" in phase.why


def test_closed_run_keeps_its_reason_when_it_fails() -> None:
    bench = Bench()
    bench.seal("a", "b")
    bench.ask("a", 7, Close("operator", "now", "enough"))
    bench.loop.turn()
    before = bench.host.state
    bench.host.fail("something")
    assert bench.host.state is before


# -- a whole server -----------------------------------------------------------------------


@pytest.fixture(name="make")
def _make(server: EmbeddedServer) -> Iterator[Make]:
    made: list[DynamicRendezvousHandler] = []

    def start(run: str, n: int = 1, **config: Any) -> DynamicRendezvousHandler:
        config = {"is_host": False, "join": 10, "close": 3, **config}
        params = RendezvousParameters("core", f"127.0.0.1:{server.port}", run, n, n, config=config)
        made.append(create_handler(params))
        return made[-1]

    yield start
    for handler in made:
        handler.shutdown()


def faults_of(server: EmbeddedServer) -> int:
    count: int = server.call(lambda s: s.status().faults, Deadline(5))
    return count


@pytest.mark.integration
def test_bug_in_the_rules_closes_only_its_run(
    server: EmbeddedServer,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def advance(state: RunState, *events: Any) -> core.Step:
        if state.run_id == "bad" and isinstance(events[0], Fail | Finish):
            raise TypeError("planted")
        return core.advance(state, *events)

    monkeypatch.setattr(runs_module, "advance", advance)
    good, bad = [make("good", 2) for _ in range(2)], [make("bad", 2) for _ in range(2)]
    threads = [threading.Thread(target=each.next_rendezvous) for each in (*good, *bad)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    with caplog.at_level(logging.ERROR, "rallypoint.server"):
        bad[0].finish()
        deadline = Deadline(LIMIT_SECONDS)
        while not bad[1].is_closed():
            assert not deadline.expired()
            time.sleep(0.01)
    for each in bad:
        with pytest.raises(RendezvousClosedError, match="internal error of the server"):
            each.next_rendezvous()
    with pytest.raises(RendezvousClosedError, match=r"\(TypeError: planted\)"):
        make("bad").next_rendezvous()
    assert "run 'bad': closed" in caplog.text
    assert "Traceback" in caplog.text
    assert faults_of(server) == 1
    assert [each.view().closed for each in good] == [None, None]
    good[0].finish()
    monkeypatch.setattr(runs_module, "advance", core.advance)
    assert make("bad", new_incarnation=True).next_rendezvous().world_size == 1


@pytest.mark.integration
def test_bug_in_a_store_closes_only_its_run(
    server: EmbeddedServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Keyspace.execute

    def planted_in(keys: Keyspace, request: Any, token: Any) -> Any:
        if getattr(request, "key", "").endswith("bad"):
            raise KeyError("planted")
        return execute(keys, request, token)

    monkeypatch.setattr(Keyspace, "execute", planted_in)
    member = make("one")
    member.next_rendezvous()
    stores = [TCPStore("127.0.0.1", server.port, run=run) for run in ("one", "one", "two")]
    failed: list[StoreError] = []

    def wait() -> None:
        try:
            stores[1].get("never", timeout=LIMIT_SECONDS)
        except StoreError as error:
            failed.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not server.call(lambda s: s.stores["one"].keys.parked, Deadline(5)):
        pass
    with pytest.raises(StoreError, match=r"internal error of the server \(KeyError: 'planted'\)"):
        stores[0].set("bad", b"x")
    waiter.join(LIMIT_SECONDS)
    assert "KeyError" in str(failed[0])
    with pytest.raises(StoreError, match="KeyError"):
        stores[0].set("good", b"x")
    stores[2].set("good", b"x")
    with pytest.raises(RendezvousClosedError, match="KeyError"):
        member.next_rendezvous()
    assert faults_of(server) == 1
    for store in stores:
        store.close()


@pytest.mark.integration
def test_bug_in_an_inquiry_is_denied(
    server: EmbeddedServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = make("one")
    member.next_rendezvous()
    monkeypatch.setattr(runs_module, "report_of", planted)
    with pytest.raises(RendezvousStateError, match=r"\(TypeError: planted\)"):
        member.report()
    assert member.view().closed is None
    assert faults_of(server) == 1


@pytest.mark.integration
def test_bug_in_a_frame_ends_only_its_connection(
    server: EmbeddedServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = make("one")
    member.next_rendezvous()
    monkeypatch.setattr(connection_module.Connection, "_enter", planted)
    with pytest.raises(StoreConnectionError, match=r"\(TypeError: planted\)"):
        TCPStore("127.0.0.1", server.port, run="one", timeout=5)
    with pytest.raises(RendezvousConnectionError, match=r"\(TypeError: planted\)"):
        make("two").next_rendezvous()
    assert member.view().connected
    assert faults_of(server) == 2
