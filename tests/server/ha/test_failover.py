"""Servers that take over: the next leader continues where the last one was; nothing is lost."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import make_certificates
from tests.server.in_turn import InTurn

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Entry
from rallypoint.engines.election import Leader, Term
from rallypoint.errors import (
    AuthenticationError,
    JournalCorruptError,
    JournalError,
    StoreConnectionError,
)
from rallypoint.net.connection import ConnectionConfig, open_connection
from rallypoint.net.endpoints import parse_endpoints
from rallypoint.net.handshake import StandbyError
from rallypoint.net.listener import listen
from rallypoint.net.tls import TLS
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.server.ha import failover as module
from rallypoint.server.ha.failover import FailoverConfig, StandbyServer, advertised
from rallypoint.server.ha.leadership import LeaderStatus
from rallypoint.server.journal.engine import LOG
from rallypoint.server.options import Options
from rallypoint.store.tcp import TCPStore
from rallypoint.testing.fakes import MemoryEngine
from rallypoint.testing.store_handles import in_thread

Start = Callable[..., InTurn]


@pytest.fixture(name="engine")
def _engine() -> MemoryEngine:
    return MemoryEngine()


@pytest.fixture(name="start")
def _start(engine: MemoryEngine) -> Iterator[Start]:
    started: list[InTurn] = []

    def start(name: str, **options: Any) -> InTurn:
        started.append(InTurn(options.pop("engine", engine), name, **options))
        return started[-1]

    yield start
    failures = [each.stop() for each in started]
    assert failures == [None] * len(started) or any(
        isinstance(failure, JournalError) for failure in failures
    )


@pytest.fixture(name="pair")
def _pair(start: Start) -> tuple[InTurn, InTurn]:
    first = start("a")
    first.leads()
    second = start("b")
    second.stands_by()
    return first, second


def store_at(*servers: InTurn) -> TCPStore:
    places = parse_endpoints(",".join(server.where for server in servers))
    return TCPStore.at(ConnectionConfig.at(places, "run"), 20)


def test_standby_sends_clients_to_the_leader(pair: tuple[InTurn, InTurn]) -> None:
    first, second = pair
    with store_at(second) as store:
        store.set("key", b"value")
        assert store.target.servers.leader == parse_endpoints(first.where)[0]
    assert first.servers[-1].role.startswith("leads, in epoch ")
    assert second.servers[-1].role == f"stands by; {first.where} leads, in epoch 1"


def test_next_leader_continues_from_the_last_state(pair: tuple[InTurn, InTurn]) -> None:
    first, second = pair
    with store_at(first, second) as store:
        store.set("key", b"value")
        assert [store.add("count", 1) for _ in range(3)] == [1, 2, 3]
        waits = in_thread(store.get, "later", 20)
        before = first.servers[-1].epoch
        first.stop()
        assert second.leads().epoch > before
        assert store.get("key", 20) == b"value"
        assert store.add("count", 1) == 4
        store.set("later", b"now")
        assert waits.result(20) == b"now"


def test_restored_round_is_unchanged(pair: tuple[InTurn, InTurn]) -> None:
    first, second = pair
    config = {"join": 20, "last_call": 0.1, "close": 5}
    handlers = [
        create_handler(
            RendezvousParameters(
                "core", f"{first.where},{second.where}", "job", 2, 2, config=dict(config)
            )
        )
        for _ in range(2)
    ]
    joins = [in_thread(handler.next_rendezvous) for handler in handlers]
    seats = sorted(join.result(20).rank for join in joins)
    before = [handler.view().assignment for handler in handlers]
    views: list[Any] = []
    for handler in handlers:
        handler.on_change(lambda handler=handler: views.append(handler.view()))  # type: ignore[misc]
    first.stop()
    second.leads()
    for handler in handlers:
        deadline = Deadline(20)
        while not handler.view().connected and not deadline.expired():
            handler.wait_for_change(deadline.remaining(), handler.view())
        assert handler.report().phase == "sealed"
    assert seats == [0, 1]
    assert [handler.view().assignment for handler in handlers] == before
    assert all(view.fenced is None and view.closed is None for view in views)
    for handler in handlers:
        handler.shutdown()


def test_former_leader_answers_nobody(
    pair: tuple[InTurn, InTurn], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = pair
    with store_at(first, second) as store:
        assert store.add("count", 1) == 1
        for number in range(2, 5):
            leader = first if first.servers[-1].persistence is not None else second
            before = leader.servers[-1]
            leader.oust()
            assert store.add("count", 1) == number
            leader.until(lambda server, before=before: server is not before)  # type: ignore[misc]
            assert not before.connections
    said = [record.message for record in caplog.records]
    assert any(text.startswith("this server stands by: ") for text in said)
    assert not any(text.startswith("this server ends") for text in said)  # it is told once


@pytest.mark.integration
def test_with_tls_the_named_leader_is_verified(start: Start, tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    tls = TLS(cert=str(files.cert), key=str(files.key))
    first = start("a", token=b"secret", tls=tls)
    first.leads()
    second = start("b", token=b"secret", tls=tls)
    second.stands_by()
    target = ConnectionConfig.at(
        parse_endpoints(second.where), "run", b"secret", TLS(ca=str(files.ca))
    )
    with TCPStore.at(target, 20) as store:
        assert store.add("count", 1) == 1
        first.stop()
        assert store.add("count", 1) == 2


def test_unknown_token_is_refused_by_all_servers(start: Start) -> None:
    first, second = start("a", token=b"one"), start("b", token=b"one")
    with pytest.raises(AuthenticationError, match="none of 2 servers"):
        TCPStore.at(
            ConnectionConfig.at(parse_endpoints(f"{first.where},{second.where}"), "run", b"no"), 20
        )


# -- what cannot be gone on with --------------------------------------------------------------


class Broken(MemoryEngine):
    """An engine that fails at each call."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def clone(self) -> "Broken":
        return self

    def read(self, *_: Any) -> Any:
        raise self.error


def test_database_down_at_the_start_is_retried_for_a_while(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.3)
    server = start("a", engine=Broken(StoreConnectionError("memory cannot be reached")))
    with pytest.raises(StoreConnectionError, match=r"nobody is known to lead .memory cannot be"):
        TCPStore.at(ConnectionConfig.at(parse_endpoints(server.where), "run"), 0.01)
    error = server.ended()
    assert isinstance(error, JournalError)
    assert str(error) == "memory cannot be reached (tried for 0 s)"


def test_refused_credentials_end_the_process_at_once(start: Start) -> None:
    server = start("a", engine=Broken(AuthenticationError("memory: wrong password")))
    error = server.ended()
    assert isinstance(error, JournalError)
    assert "wrong password" in str(error)


@pytest.mark.parametrize("name", [f"{LOG}{7:016d}", f"{LOG}notes"])
def test_foreign_state_ends_the_process(start: Start, engine: MemoryEngine, name: str) -> None:
    engine.commit({name: None}, {name: b"what"}, Deadline(1))
    error = start("a").ended()
    assert isinstance(error, JournalCorruptError)
    assert name in str(error)


def test_leader_that_cannot_read_the_state_resigns(
    start: Start, engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(MemoryEngine):
        def scan(self, *_: Any) -> list[str]:
            raise StoreConnectionError("memory: away for a moment")

        def clone(self) -> "MemoryEngine":
            twin = Away(self._clock)
            twin._data = self._data
            return twin

    away = Away()
    away._data = engine._data
    first = start("a", engine=away)
    second = start("b")
    second.leads()
    first.stands_by()
    assert first.error is None


def test_stop_during_a_takeover(start: Start, engine: MemoryEngine) -> None:
    class Slow(MemoryEngine):
        def scan(self, _prefix: str, deadline: Deadline) -> list[str]:
            reading.set()
            while not deadline.expired():
                time.sleep(0.01)
            raise StoreConnectionError("memory: too slow")

        def clone(self) -> "MemoryEngine":
            return self

    reading = threading.Event()
    server = start("a", engine=Slow())
    assert reading.wait(20)
    began = time.monotonic()
    assert server.stop() is None
    assert time.monotonic() - began < 15


# -- settings ------------------------------------------------------------------------------


def test_advertised_address() -> None:
    options = Options(insecure=True)
    for host, wanted in (("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")):
        sockets = listen(host, 0, options.token, options.insecure)
        port = sockets[0].getsockname()[1]
        url = "etcds://user:p%40ss@127.0.0.1:2379,h2:2379/prefix?ca=x"
        assert advertised(sockets, url) == f"{wanted}:{port}"
        for sock in sockets:
            sock.close()


def test_leases_run_on_while_the_machine_is_suspended() -> None:
    assert module.since_boot() >= time.monotonic() - 1.0
    before = module.since_boot()
    assert module.since_boot() >= before


def test_silent_host_of_the_database_costs_no_term() -> None:
    from rallypoint.engines.etcd.engine import EtcdEngine

    state = FailoverConfig("etcd://a,b/p?timeout=30", "a", "a:1", 3.0)
    election, journal = state.election()._engine, state.engine()
    assert isinstance(election, EtcdEngine)
    assert isinstance(journal, EtcdEngine)
    assert election.address.seconds("timeout", 0.0) == 1.0
    assert journal.address.seconds("timeout", 0.0) == 30.0


# -- a standby server -----------------------------------------------------------------------

OURS = Term(7, Leader("me", "a:1"), Entry(7, b""))
THEIRS = Term(5, Leader("other", "b:2"), Entry(5, b""))


def words(status: LeaderStatus) -> tuple[str, str]:
    async def look() -> tuple[str, str]:
        sockets = listen("127.0.0.1", 0)
        server = StandbyServer(Options(), sockets, "etcd://h1/p", lambda: status)
        assert server.role == server.who_leads()[0] == server.status().role
        assert not server.leads
        for sock in sockets:
            sock.close()
        if server.peer_credentials is not None:
            server.peer_credentials.close()
        return server.who_leads()

    return asyncio.run(look())


def test_standby_names_the_leader() -> None:
    assert words(LeaderStatus(leader=THEIRS)) == ("stands by; b:2 leads, in epoch 5", "b:2")
    assert words(LeaderStatus()) == ("stands by; nobody is known to lead", "")
    text, leader = words(LeaderStatus(trouble="etcd://h1/p cannot be reached"))
    assert (text, leader) == (
        "stands by; nobody is known to lead (etcd://h1/p cannot be reached)",
        "",
    )
    text, leader = words(LeaderStatus(term=OURS, leader=OURS))
    assert (text, leader) == ("takes over, in epoch 7; it is reading etcd://h1/p", "")


@pytest.fixture(name="standby_port")
def _standby_port() -> Iterator[int]:
    ports: list[int] = []
    loop = asyncio.new_event_loop()

    async def serve() -> StandbyServer:
        sockets = listen("127.0.0.1", 0, b"secret")
        ports.append(sockets[0].getsockname()[1])
        server = StandbyServer(
            Options(token=b"secret"), sockets, "etcd://h1/p", lambda: LeaderStatus(leader=THEIRS)
        )
        await server.start()
        return server

    server = loop.run_until_complete(serve())
    serving = in_thread(loop.run_until_complete, server.serve())
    yield ports[0]
    loop.call_soon_threadsafe(server.stop)
    serving.result(20)
    loop.close()


def test_standby_names_the_leader_only_to_proved_clients(standby_port: int) -> None:
    with pytest.raises(StandbyError) as caught:
        open_connection(
            ConnectionConfig("127.0.0.1", standby_port, "run", b"secret"), Deadline(1), once=True
        )
    assert "b:2" in str(caught.value)
    with pytest.raises(AuthenticationError) as refused:
        open_connection(
            ConnectionConfig("127.0.0.1", standby_port, "run", b"another"), Deadline(20), once=True
        )
    assert "b:2" not in str(refused.value)
