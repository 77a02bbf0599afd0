"""`rallypoint serve --state` on real databases: failures of the database, and the messages."""

import contextlib
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine_servers import EtcdServers, RedisServer
from tests.integration.harness import Fleet, Process

from rallypoint.errors import StoreError, StoreLimitError
from rallypoint.store.tcp import TCPStore
from rallypoint.testing.store_handles import in_thread

pytestmark = [pytest.mark.integration, pytest.mark.engines]

LIMIT = 40.0
LEADS = "this server leads"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


@pytest.fixture(name="etcd")
def _etcd() -> Iterator[EtcdServers]:
    servers = EtcdServers(1, "--quota-backend-bytes", str(16 << 20))
    try:
        yield servers.start()
    finally:
        servers.stop()


def serve(fleet: Fleet, name: str, url: str, **env: str) -> tuple[Process, str]:
    bind = ("--bind", "127.0.0.1:0", "--state", url)
    process = fleet.rallypoint(name, "serve", *bind, env=env)
    return process, process.expect(r"^serving on ").text.split()[-1]


def said(process: Process, words: str) -> bool:
    return any(words in line.text for line in process.err.lines)


def test_wrong_password_ends_with_one_line(fleet: Fleet, etcd: EtcdServers) -> None:
    etcd.guard()
    url = etcd.url("jobs/x", credentials="worker:wrong")
    process, _ = serve(fleet, "server", url)
    assert process.wait(LIMIT) == 1
    assert said(process, "rallypoint serve: etcd at 127.0.0.1")
    assert said(process, "RALLYPOINT_ETCD_PASSWORD")
    assert "wrong (" not in process.err.text
    env = {"RALLYPOINT_ETCD_USER": "worker", "RALLYPOINT_ETCD_PASSWORD": "w0rker"}
    _, where = serve(fleet, "right", etcd.url("jobs/x"), **env)
    with TCPStore(f"{where},{where}", timeout=LIMIT) as store:
        store.set("key", b"value")
    assert "w0rker" not in "".join(p.err.text + p.out.text for p in fleet.processes)


def test_nothing_is_lost_while_the_database_is_down(fleet: Fleet, etcd: EtcdServers) -> None:
    process, where = serve(fleet, "server", etcd.url("x"))
    with TCPStore(f"{where},{where}", timeout=LIMIT) as store:
        assert store.add("count", 1) == 1
        etcd.members[0].kill()
        adding = in_thread(store.add, "count", 1)
        with pytest.raises(TimeoutError):
            adding.result(6.0)  # longer than it takes to step back
        etcd.members[0].start()
        assert adding.result(LIMIT) == 2
        assert store.get("count", LIMIT) == b"2"
    assert said(process, "stands by")
    assert process.is_running()


def test_full_database_refuses_writes_until_there_is_room(fleet: Fleet, etcd: EtcdServers) -> None:
    _, where = serve(fleet, "server", etcd.url("x"))
    with TCPStore(f"{where},{where}", timeout=LIMIT) as store, store.clone() as other:
        store.set("before", b"1")
        etcd.fill()
        held = in_thread(store.set, "held", b"1")
        with pytest.raises(TimeoutError):
            held.result(2.0)
        with pytest.raises(StoreLimitError, match=r"full.*Free it"):
            other.set("refused", b"1")
        etcd.make_room()
        held.result(LIMIT)
        store.set("after", b"1")
        assert sorted(store.list("")) == ["after", "before", "held"]


def test_failover_with_redis_states_its_limits(fleet: Fleet, redis_server: RedisServer) -> None:
    url = redis_server.url(uuid.uuid4().hex)
    servers = dict(serve(fleet, f"server{n}", url)[::-1] for n in range(2))
    with TCPStore(",".join(servers), timeout=LIMIT) as store:
        store.set("key", b"value")
        for number in range(1, 3):
            leader = store.target.servers.leader
            assert leader is not None
            if number == 2:
                servers[f"{leader[0]}:{leader[1]}"].kill()
            else:
                servers[f"{leader[0]}:{leader[1]}"].send(signal.SIGSTOP)
            assert store.add("count", 1) == number
            assert store.get("key", LIMIT) == b"value"
            if number == 1:
                servers[f"{leader[0]}:{leader[1]}"].send(signal.SIGCONT)
    notes = [p for p in servers.values() if said(p, "Redis copies writes to its replicas after")]
    assert len(notes) == 2


def test_leader_stopped_by_sigterm_hands_over_at_once(fleet: Fleet, etcd: EtcdServers) -> None:
    servers = dict(serve(fleet, f"server{n}", etcd.url("x"))[::-1] for n in range(2))
    with TCPStore(",".join(servers), timeout=LIMIT) as store:
        assert store.add("count", 1) == 1
        leader = store.target.servers.leader
        assert leader is not None
        process = servers.pop(f"{leader[0]}:{leader[1]}")
        process.send(signal.SIGTERM)
        assert store.add("count", 1) == 2
        assert process.wait(LIMIT) == 0
        (other,) = servers.values()
        other.send(signal.SIGTERM)
        assert other.wait(LIMIT) == 0
        with contextlib.suppress(StoreError):
            store.close()


def test_state_is_separate_per_database_prefix(fleet: Fleet, etcd: EtcdServers) -> None:
    endpoints = [serve(fleet, f"server{n}", etcd.url(f"p{n}"))[1] for n in range(2)]
    stores = [TCPStore(f"{where},{where}", timeout=LIMIT) for where in endpoints]
    assert [store.add("count", 1) for store in stores] == [1, 1]
    for store in stores:
        store.close()
