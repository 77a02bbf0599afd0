"""etcd as an engine, and the store on it: the suites, and what goes wrong."""

import random
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import make_certificates
from tests.engine_servers import EtcdServers, closed_afterwards, free_ports
from tests.proxy import Proxy

from rallypoint.deadline import Deadline
from rallypoint.engines import groups
from rallypoint.engines.contract import Entry
from rallypoint.engines.etcd.engine import LARGE_COMMIT_KEYS, EtcdEngine, EtcdStore
from rallypoint.errors import (
    AuthenticationError,
    ParameterError,
    StoreConnectionError,
    StoreLimitError,
    StoreTimeoutError,
)
from rallypoint.testing.engine_suite import EngineSuite
from rallypoint.testing.store_handles import in_thread
from rallypoint.testing.store_suite import StoreSuite

pytestmark = [pytest.mark.engines, pytest.mark.integration]


class TestEtcdEngine(EngineSuite):
    @pytest.fixture(autouse=True)
    def _server(self, etcd_server: EtcdServers) -> None:
        self.url = etcd_server.url(uuid.uuid4().hex)

    def make_engine(self) -> EtcdEngine:
        return EtcdEngine(self.url)


class TestEtcdStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _server(self, etcd_server: EtcdServers) -> None:
        self.url = etcd_server.url(uuid.uuid4().hex)

    def make_store(self) -> EtcdStore:
        return EtcdStore(self.url)


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def proxy(etcd_server: EtcdServers) -> Iterator[Proxy]:
    proxy = Proxy(etcd_server.ports[0])
    yield proxy
    proxy.close()


@pytest.fixture
def cluster() -> Iterator[EtcdServers]:
    servers = EtcdServers(3)
    try:
        yield servers.start()
    finally:
        servers.stop()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closed_afterwards(EtcdEngine):
        yield


def keys_left(server: EtcdServers, prefix: str) -> str:
    return server.control("get", "--prefix", "--keys-only", f"{prefix}/")


# -- exactly once ---------------------------------------------------------------------------


def test_write_with_a_lost_reply_counts_once(proxy: Proxy, prefix: str) -> None:
    store = EtcdStore(f"etcd://127.0.0.1:{proxy.port}/{prefix}")
    for number in range(1, 11):
        store.get_nowait("other")  # a connection that works
        proxy.cut_answers = 1
        assert store.add("n", 1) == number
    assert store.get("n") == b"10"


def test_many_keys_with_a_lost_reply_count_once(
    proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EtcdEngine(f"etcd://127.0.0.1:{proxy.port}/{prefix}")
    keys = [f"k{number}" for number in range(LARGE_COMMIT_KEYS + 1)]
    real: Any = engine._gateway._post
    calls: list[str] = []

    def post(at: int, path: str, data: bytes, *rest: Any) -> Any:
        if path == "/kv/txn" and b"request_put" in data and not calls:
            calls.append(path)
            proxy.cut_answers = 1
        return real(at, path, data, *rest)

    monkeypatch.setattr(engine._gateway, "_post", post)
    commit = engine.commit(dict.fromkeys(keys), dict.fromkeys(keys, b"1"), Deadline(5))
    assert calls
    assert commit.done
    assert engine.read(keys[:1], Deadline(5))["k0"].version == commit.version


def test_concurrent_writers_through_a_bad_network(proxy: Proxy, prefix: str) -> None:
    ends, chance = threading.Event(), random.Random(7)

    def cut_now_and_then() -> None:
        while not ends.wait(chance.uniform(0.01, 0.1)):
            proxy.cut_answers = chance.randrange(2)
            proxy.cut()

    cutter = threading.Thread(target=cut_now_and_then)
    cutter.start()
    try:
        stores = [EtcdStore(f"etcd://127.0.0.1:{proxy.port}/{prefix}") for _ in range(3)]
        running = [in_thread(lambda s=s: [s.add("n", 1) for _ in range(30)]) for s in stores]
        sums = [number for one in running for number in one.result(60)]
    finally:
        ends.set()
        cutter.join()
    assert sorted(sums) == list(range(1, 91))


# -- large values ---------------------------------------------------------------------------


def test_parts_of_large_values_are_cleaned_up(etcd_server: EtcdServers, prefix: str) -> None:
    engine, limit = EtcdEngine(etcd_server.url(prefix)), Deadline(20)
    value = b"x" * (3 << 20)
    first = engine.commit({"a": None}, {"a": value}, limit)
    assert keys_left(etcd_server, prefix).count("/parts/") == 3
    seen = Entry(first.version, value, first.details["a"])
    assert not engine.commit({"a": None}, {"a": value}, limit).done
    assert keys_left(etcd_server, prefix).count("/parts/") == 3
    assert engine.commit({"a": seen}, {"a": b"small"}, limit).done
    assert keys_left(etcd_server, prefix).count("/parts/") == 0


# -- credentials and TLS --------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdServers]:
    servers = EtcdServers(1)
    try:
        servers.start()
        servers.guard()
        yield servers
    finally:
        servers.stop()


def test_password_by_url_and_environment(
    guarded: EtcdServers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = EtcdStore(guarded.url("jobs", credentials="worker:w0rker"))
    store.set("key", b"x")
    assert in_thread(store.get, "key", 5).result(10) == b"x"
    assert in_thread(store.get, "late", 5) is not None
    store.set("late", b"")
    (tmp_path / "password").write_text("w0rker\n")
    monkeypatch.setenv("RALLYPOINT_ETCD_USER", "worker")
    monkeypatch.setenv("RALLYPOINT_ETCD_PASSWORD_FILE", str(tmp_path / "password"))
    assert EtcdStore(guarded.url("jobs")).get("key") == b"x"


def test_expired_token_is_renewed(guarded: EtcdServers) -> None:
    store = EtcdStore(guarded.url("jobs", credentials="worker:w0rker"))
    store.engine._gateway._token = "outdated.1"  # type: ignore[attr-defined]
    store.set("key", b"y")
    assert store.get("key") == b"y"


def test_wrong_password(guarded: EtcdServers) -> None:
    store = EtcdStore(guarded.url("jobs", credentials="worker:wr0ng"))
    began = time.monotonic()
    with pytest.raises(AuthenticationError, match="user 'worker'") as caught:
        store.set("key", b"x")
    assert time.monotonic() - began < 5
    for text in (str(caught.value), repr(store), repr(store.engine)):
        assert "wr0ng" not in text


def test_no_password_and_no_permission(guarded: EtcdServers) -> None:
    with pytest.raises(Exception, match=r"no user was given.*RALLYPOINT_ETCD_USER"):
        EtcdStore(guarded.url("jobs")).set("key", b"x")
    with pytest.raises(AuthenticationError, match=r"permission denied.*'worker'"):
        EtcdStore(guarded.url("elsewhere", credentials="worker:w0rker")).set("key", b"x")


def test_tls(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    servers = EtcdServers(
        1, "--cert-file", str(files.cert), "--key-file", str(files.key),
        "--trusted-ca-file", str(files.ca), "--client-cert-auth", scheme="https",
    )  # fmt: skip
    try:
        servers.start()
        client = f"&cert={files.client_cert}&key={files.client_key}"
        url = servers.url("tls", f"?ca={files.ca}{client}", scheme="etcds")
        store = EtcdStore(url)
        waiting = in_thread(store.get, "key", 10)
        time.sleep(0.1)
        store.set("key", b"x")
        assert waiting.result(10) == b"x"
        with pytest.raises(StoreConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            EtcdEngine(servers.url("tls", scheme="etcds")).read(["key"], Deadline(0))
        with pytest.raises(StoreConnectionError):
            EtcdEngine(servers.url("tls")).read(["key"], Deadline(0))
        with pytest.raises(ParameterError, match="ca=/nowhere"):
            EtcdEngine(servers.url("tls", "?ca=/nowhere", scheme="etcds"))
    finally:
        servers.stop()


# -- an engine that is away, full or in trouble ------------------------------------------------


def test_database_is_away_at_the_start(prefix: str) -> None:
    ports = free_ports(2)
    store = EtcdStore(f"etcd://u:hidden@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/{prefix}")
    store.set_timeout(0.5)
    began = time.monotonic()
    with pytest.raises(StoreConnectionError, match=r"cannot be reached: \d+ tries in 0") as caught:
        store.set("key", b"x")
    assert time.monotonic() - began < 3
    assert str(ports[1]) in str(caught.value)
    assert "hidden" not in str(caught.value)
    with pytest.raises(StoreConnectionError):
        store.get("key", timeout=0.3)


def test_database_is_away_for_a_while(cluster: EtcdServers, prefix: str) -> None:
    """The whole cluster dies and comes back: calls and waits go on, nothing is lost."""
    store = EtcdStore(cluster.url(prefix))
    store.set("kept", b"x")
    waiting = in_thread(store.get, "late", 60)
    time.sleep(0.2)
    for member in cluster.members:
        member.kill()
    writing = in_thread(store.add, "n", 1)
    time.sleep(1.0)
    assert not writing.done()
    for member in cluster.members:
        member.start(wait=False)
    assert writing.result(30) == 1
    store.set("late", b"here")
    assert waiting.result(20) == b"here"
    assert store.get("kept") == b"x"


def leader_of(cluster: EtcdServers) -> int:
    for number, port in enumerate(cluster.ports):
        status = subprocess.run(
            ["etcdctl", "--endpoints", f"127.0.0.1:{port}", "endpoint", "status"],
            capture_output=True, text=True, timeout=20, check=True, env={"ETCDCTL_API": "3"},
        ).stdout.split(", ")  # fmt: skip
        if status[4] == "true":
            return number
    raise AssertionError("no leader")


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_leader_fails(cluster: EtcdServers, prefix: str, how: str) -> None:
    """Each count is exact while the etcd leader dies or stands still under the writers."""
    leader = leader_of(cluster)
    hosts = [*cluster.ports[leader:], *cluster.ports[:leader]]  # all begin at the leader
    where = ",".join(f"127.0.0.1:{port}" for port in hosts)
    stores = [EtcdStore(f"etcd://{where}/{prefix}?timeout=1") for _ in range(3)]
    waiting: Future[Any] = in_thread(stores[0].get, "late", 60)
    running = [in_thread(lambda s=s: [s.add("n", 1) for _ in range(150)]) for s in stores]
    time.sleep(0.3)
    getattr(cluster.members[leader], how)()
    began = time.monotonic()
    sums = [number for one in running for number in one.result(60)]
    stores[1].set("late", b"x")
    assert waiting.result(30) == b"x"
    assert sorted(sums) == list(range(1, 451))
    assert time.monotonic() - began < 40


def test_wait_at_a_disconnected_member(cluster: EtcdServers, prefix: str) -> None:
    """Its member stands still: the wait goes on at another one."""
    waiter, writer = EtcdStore(cluster.url(prefix, "?timeout=1")), EtcdStore(cluster.url(prefix))
    waiting = in_thread(waiter.get, "late", 60)
    time.sleep(0.3)
    cluster.members[0].pause()
    writer.set("late", b"x")
    assert waiting.result(30) == b"x"


def test_partitioned_member_is_skipped(proxy: Proxy, etcd_server: EtcdServers, prefix: str) -> None:
    """Nothing comes back from the first address, not even a refusal; the second one answers."""
    hosts = f"127.0.0.1:{proxy.port},127.0.0.1:{etcd_server.ports[0]}"
    store = EtcdStore(f"etcd://{hosts}/{prefix}?timeout=0.5")
    waiting = in_thread(store.get, "late", 30)
    assert store.add("n", 1) == 1
    time.sleep(0.2)
    proxy.silent = True
    began = time.monotonic()
    assert store.add("n", 1) == 2
    assert time.monotonic() - began < 4
    store.set("late", b"x")
    assert waiting.result(10) == b"x"


def test_full(prefix: str) -> None:
    """NOSPACE is told as such; reading goes on, and so does writing once there is room."""
    servers = EtcdServers(1, "--quota-backend-bytes", str(4 << 20))
    try:
        servers.start()
        store = EtcdStore(servers.url(prefix))
        store.set("kept", b"x")
        servers.fill()
        for value in (b"y", b"x" * (2 << 20)):
            with pytest.raises(StoreLimitError, match=r"full \(alarm NOSPACE\).*disarm"):
                store.set("kept", value)
        assert store.get("kept") == b"x"
        servers.make_room()
        store.set("kept", b"y")
        assert store.get("kept") == b"y"
    finally:
        servers.stop()


def test_dead_group_member_is_not_counted(
    etcd_server: EtcdServers, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "PRESENCE_SECONDS", 2.0)
    store = EtcdStore(etcd_server.url(prefix))
    with monkeypatch.context() as dies:  # joins, and is never heard of again
        dies.setattr(groups.GroupCalls, "_await", _die)
        dies.setattr(groups.GroupCalls, "_withdraw", lambda *_: None)
        with pytest.raises(SystemExit):
            store.barrier("b", 2, 5, 0)
    time.sleep(4.5)
    with pytest.raises(StoreTimeoutError, match=r"1 of 2 .*missing ranks: 0"):
        store.barrier("b", 2, 0.2, 1)


def _die(*_: Any) -> None:
    raise SystemExit
