"""Redis as an engine, and the store on it: the suites, and what goes wrong."""

import logging
import random
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import make_certificates
from tests.engine_servers import RedisServer, closed_afterwards, free_ports
from tests.proxy import Proxy

from rallypoint.deadline import Deadline
from rallypoint.engines.redis.engine import RedisEngine, RedisStore
from rallypoint.errors import (
    AuthenticationError,
    ParameterError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
)
from rallypoint.testing.engine_suite import EngineSuite
from rallypoint.testing.store_handles import in_thread
from rallypoint.testing.store_suite import StoreSuite

pytestmark = [pytest.mark.engines, pytest.mark.integration]


class TestRedisEngine(EngineSuite):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = redis_server.url(uuid.uuid4().hex)

    def make_engine(self) -> RedisEngine:
        return RedisEngine(self.url)


class TestRedisStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = redis_server.url(uuid.uuid4().hex)

    def make_store(self) -> RedisStore:
        return RedisStore(self.url)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closed_afterwards(RedisEngine):
        yield


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    proxy = Proxy(redis_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of the test's own; a marker gives its options."""
    server = RedisServer(*getattr(request, "param", ()))
    try:
        yield server.start()
    finally:
        server.stop()


# -- exactly once, and waking ---------------------------------------------------------------


def test_write_with_a_lost_reply_counts_once(proxy: Proxy, prefix: str) -> None:
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}/{prefix}")
    for number in range(1, 11):
        store.get_nowait("other")  # a connection that works
        proxy.cut_answers = 1
        assert store.add("n", 1) == number
    assert store.get("n") == b"10"


def test_concurrent_writers_through_a_bad_network(proxy: Proxy, prefix: str) -> None:
    ends, chance = threading.Event(), random.Random(7)

    def cut_now_and_then() -> None:
        while not ends.wait(chance.uniform(0.01, 0.1)):
            proxy.cut_answers = chance.randrange(2)
            proxy.cut()

    cutter = threading.Thread(target=cut_now_and_then)
    cutter.start()
    try:
        stores = [RedisStore(f"redis://127.0.0.1:{proxy.port}/{prefix}") for _ in range(3)]
        running = [in_thread(lambda s=s: [s.add("n", 1) for _ in range(30)]) for s in stores]
        sums = [number for one in running for number in one.result(60)]
    finally:
        ends.set()
        cutter.join()
    assert sorted(sums) == list(range(1, 91))


def test_wait_whose_connection_breaks(proxy: Proxy, redis_server: RedisServer, prefix: str) -> None:
    waiting = in_thread(RedisStore(f"redis://127.0.0.1:{proxy.port}/{prefix}").get, "late", 30)
    time.sleep(0.2)
    proxy.cut()
    RedisStore(redis_server.url(prefix)).set("late", b"x")
    assert waiting.result(4) == b"x"


def test_versions_grow_despite_a_lost_counter(own_server: RedisServer, prefix: str) -> None:
    """A server that takes over may have missed writes; their versions do not come again."""
    engine, limit = RedisEngine(own_server.url(prefix)), Deadline(20)
    first = engine.commit({"a": None}, {"a": b"1"}, limit)
    engine._redis.client.flushall()  # the server has forgotten everything
    second = engine.commit({"a": None}, {"a": b"2"}, limit)
    assert second.version > first.version


# -- credentials and TLS --------------------------------------------------------------------

GUARDED = (
    "--requirepass", "s3cret",
    "--user", "worker", "on", ">w0rker", "~{jobs}*", "&{jobs}*", "+@all", "-info",
)  # fmt: skip


@pytest.mark.parametrize("own_server", [GUARDED], indirect=True)
def test_credentials(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = RedisStore(own_server.url("jobs", credentials=":s3cret"))
    store.set("key", b"x")
    (tmp_path / "password").write_text("w0rker\n")
    with pytest.raises(AuthenticationError, match=r"no password|RALLYPOINT_REDIS_PASSWORD"):
        RedisStore(own_server.url("jobs")).get("key")
    monkeypatch.setenv("RALLYPOINT_REDIS_USER", "worker")
    monkeypatch.setenv("RALLYPOINT_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
    worker = RedisStore(own_server.url("jobs"))
    assert worker.get("key") == b"x"
    waiting = in_thread(worker.get, "late", 10)
    time.sleep(0.1)
    worker.set("late", b"y")
    assert waiting.result(10) == b"y"
    with pytest.raises(AuthenticationError, match="'worker'"):
        RedisStore(own_server.url("elsewhere")).get("key")


@pytest.mark.parametrize("own_server", [GUARDED], indirect=True)
def test_wrong_password(own_server: RedisServer) -> None:
    store = RedisStore(own_server.url("jobs", credentials="worker:wr0ng"))
    began = time.monotonic()
    for call in (lambda: store.set("key", b"x"), lambda: store.get("key", 5)):
        with pytest.raises(AuthenticationError, match="user 'worker'") as caught:
            call()
        assert "wr0ng" not in str(caught.value)
    assert time.monotonic() - began < 5
    assert "wr0ng" not in repr(store) + repr(store.engine)


def test_tls(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    server = RedisServer(
        "--tls-cert-file", str(files.cert), "--tls-key-file", str(files.key),
        "--tls-ca-cert-file", str(files.ca), tls=True,
    )  # fmt: skip
    try:
        server.start()
        client = f"&cert={files.client_cert}&key={files.client_key}"
        store = RedisStore(server.url("tls", f"?ca={files.ca}{client}", scheme="rediss"))
        store.set("key", b"x")
        assert store.get("key") == b"x"
        with pytest.raises(StoreConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            RedisEngine(server.url("tls", scheme="rediss")).read(["key"], Deadline(0))
        with pytest.raises(StoreConnectionError):
            RedisEngine(server.url("tls")).read(["key"], Deadline(0))
    finally:
        server.stop()


# -- a server that is away, full or in trouble --------------------------------------------------


def test_database_is_away_at_the_start(prefix: str) -> None:
    (port,) = free_ports(1)
    store = RedisStore(f"redis://:hidden@127.0.0.1:{port}/{prefix}")
    store.set_timeout(0.5)
    began = time.monotonic()
    with pytest.raises(StoreConnectionError, match=r"cannot be reached: \d+ tries in 0") as caught:
        store.set("key", b"x")
    assert time.monotonic() - began < 3
    assert str(port) in str(caught.value)
    assert "hidden" not in str(caught.value)
    with pytest.raises(StoreConnectionError):
        store.get("key", timeout=0.3)


def test_database_is_away_for_a_while(own_server: RedisServer, prefix: str) -> None:
    """The server dies and comes back with its file: calls and waits go on, nothing is lost."""
    own_server.process.kill()
    always = RedisServer("--appendfsync", "always")
    try:
        always.start()
        store = RedisStore(always.url(prefix))
        store.set("kept", b"x")
        waiting = in_thread(store.get, "late", 60)
        time.sleep(0.2)
        always.process.kill()
        writing = in_thread(store.add, "n", 1)
        time.sleep(1.0)
        assert not writing.done()
        always.process.start()
        assert writing.result(30) == 1
        store.set("late", b"here")
        assert waiting.result(20) == b"here"
        assert store.get("kept") == b"x"
    finally:
        always.stop()


def test_database_is_paused_for_a_while(own_server: RedisServer, prefix: str) -> None:
    store = RedisStore(own_server.url(prefix, "?timeout=0.5"))
    store.set("n", b"0")
    own_server.process.pause()
    adding = in_thread(lambda: [store.add("n", 1) for _ in range(5)])
    time.sleep(1.5)
    assert not adding.done()
    own_server.process.resume()
    assert adding.result(20) == [1, 2, 3, 4, 5]


def fill(store: RedisStore, size: int) -> None:
    for number in range(40):
        store.set(f"big{number}", b"x" * size)


@pytest.mark.parametrize("own_server", [("--maxmemory", "12mb")], indirect=True)
def test_full(own_server: RedisServer, prefix: str) -> None:
    """A full server is told as such; reading goes on, and so does writing once there is room."""
    store = RedisStore(own_server.url(prefix))
    store.set("kept", b"x")
    with pytest.raises(StoreLimitError, match="maxmemory"):
        fill(store, 1 << 20)
    assert store.get("kept") == b"x"
    control = store.engine._redis.client  # type: ignore[attr-defined]
    control.config_set("maxmemory", "1mb")
    with pytest.raises(StoreLimitError):
        store.set("kept", b"y")
    assert store.get("kept") == b"x"
    control.config_set("maxmemory", "200mb")
    store.set("kept", b"y")
    assert store.get("kept") == b"y"


@pytest.mark.parametrize(
    "own_server", [("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")], indirect=True
)
def test_limits_of_redis_are_logged_once(
    own_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            RedisStore(own_server.url(prefix, credentials="default:")).set("key", b"x")
    notes = [record.getMessage() for record in caplog.records]
    assert len(notes) == 2
    assert "copies writes to its replicas after it has acknowledged them" in notes[0]
    assert "allkeys-lru" in notes[1]


def test_several_hosts_are_refused() -> None:
    with pytest.raises(ParameterError, match="2 hosts; allowed is one"):
        RedisStore("redis://a:1,b:2/x")
    with pytest.raises(ParameterError, match="db='x'"):
        RedisStore("redis://a:1/x?db=x")


def test_foreign_value_is_refused(redis_server: RedisServer, prefix: str) -> None:
    store = RedisStore(redis_server.url(prefix))
    store.engine._redis.client.set(f"{{{prefix}}}:data/k/x", b"foreign")  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.get("x")
