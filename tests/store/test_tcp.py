"""TCPStore: the conformance suites over real sockets and processes, cuts, restarts, forks."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.proxy import Proxy as SilentProxy

from rallypoint.deadline import Deadline
from rallypoint.errors import (
    AuthenticationError,
    ParameterError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
    StoreTimeoutError,
    StoreValueError,
)
from rallypoint.net import protocol as p
from rallypoint.net.connection import ConnectionConfig
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.backends.store import StoreRendezvousBackend
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.store import tcp as module
from rallypoint.store.api import Store
from rallypoint.store.prefix import PrefixStore
from rallypoint.store.tcp import ANSWER_MARGIN_SECONDS, LazyStore, PendingCall, TCPStore
from rallypoint.testing.backend_suite import BackendSuite
from rallypoint.testing.fakes import Proxy
from rallypoint.testing.store_handles import PATIENCE_SECONDS, after_a_moment, in_thread
from rallypoint.testing.store_suite import StoreSuite

SEED = int(os.environ.get("RALLYPOINT_SEED") or random.randrange(2**32))


@pytest.fixture(name="process", scope="module")
def _process() -> Iterator[int]:
    """Give the port of a server in another process."""
    command = [sys.executable, "-m", "rallypoint", "serve", "--bind=127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline().rpartition(":")[2])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


class TestTCPStore(StoreSuite):
    """Against a server in this process."""

    @pytest.fixture(autouse=True)
    def _data(self, server: EmbeddedServer) -> None:
        self.port = server.port

    def make_store(self) -> Store:
        return TCPStore("127.0.0.1", self.port)


class TestTCPStoreOfAnotherProcess(StoreSuite):
    """Against a server in another process; each test is a run of its own."""

    @pytest.fixture(autouse=True)
    def _data(self, process: int, request: pytest.FixtureRequest) -> None:
        self.port, self.run = process, request.node.name[:200]

    def make_store(self) -> Store:
        return TCPStore("127.0.0.1", self.port, run=self.run)


class TestPrefixStoreOverTCP(StoreSuite):
    """A part of it."""

    @pytest.fixture(autouse=True)
    def _data(self, server: EmbeddedServer) -> Iterator[None]:
        self.port = server.port
        with TCPStore("127.0.0.1", self.port) as below:
            below.set("other/key", b"another user's")
            self.clones: list[Store] = []
            yield
            for store in self.clones:
                store.close()

    def make_store(self) -> Store:
        self.clones.append(TCPStore("127.0.0.1", self.port))
        return PrefixStore("mine", self.clones[-1])

    def test_clone(self) -> None:
        """The clone's own connection has to be closed by whoever made it."""
        store = self.handle()
        other = store.clone()
        assert isinstance(other, PrefixStore)
        other.set("key", b"x")
        other.underlying_store.close()
        assert store.get("key") == b"x"


class TestBackendOverTCP(BackendSuite):
    """The state of a run behind a TCPStore."""

    @pytest.fixture(autouse=True)
    def _data(self, server: EmbeddedServer) -> Iterator[None]:
        self.port, self.runs = server.port, 0
        self.stores: list[TCPStore] = []
        yield
        for store in self.stores:
            store.close()

    def _open(self) -> RendezvousBackend:
        self.stores.append(TCPStore("127.0.0.1", self.port))
        return StoreRendezvousBackend(self.stores[-1], f"run {self.runs}")

    def make_backend(self) -> RendezvousBackend:
        self.runs += 1
        return self._open()

    def another(self, backend: RendezvousBackend) -> RendezvousBackend:
        return self._open()


@pytest.fixture(name="store")
def _store(server: EmbeddedServer) -> Iterator[TCPStore]:
    with TCPStore("127.0.0.1", server.port) as store:
        yield store


# -- making one ---------------------------------------------------------------------------


def test_master_hosts_until_its_store_is_closed() -> None:
    with TCPStore("127.0.0.1", 0, is_master=True) as master:
        assert master.master_addr_port == ("127.0.0.1", master.port)
        with TCPStore("127.0.0.1", master.port) as other:
            other.set("key", b"x")
        assert master.get("key") == b"x"
    with pytest.raises(StoreConnectionError):
        TCPStore("127.0.0.1", master.port, timeout=0.1)


def test_runs_are_separate(server: EmbeddedServer) -> None:
    with (
        TCPStore("127.0.0.1", server.port, run="a") as a,
        TCPStore("127.0.0.1", server.port, run="b") as b,
    ):
        a.set("key", b"x")
        assert not b.check(["key"])


def test_world_size_is_waited_for(server: EmbeddedServer) -> None:
    def make(run: str, wait: bool = True) -> TCPStore:
        return TCPStore("127.0.0.1", server.port, 3, timeout=10, wait_for_workers=wait, run=run)

    first = [after_a_moment(in_thread(make, "run")) for _ in range(2)]
    make("run").close()
    for each in first:
        each.result(PATIENCE_SECONDS).close()
    make("alone", False).close()
    with pytest.raises(StoreTimeoutError, match=r"1 of 3 clients have come .*timeout=0\.1 s"):
        TCPStore("127.0.0.1", server.port, 3, timeout=0.1, run="another")


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_ports_are_checked(port: int) -> None:
    with pytest.raises(ParameterError, match=f"port={port}"):
        TCPStore("127.0.0.1", port)


def test_failed_constructor_leaves_nothing_behind(port: int) -> None:
    with pytest.raises(StoreTimeoutError, match="1 of 2"):
        TCPStore("127.0.0.1", port, 2, is_master=True, timeout=0.1)
    with TCPStore("127.0.0.1", port, is_master=True):  # the port is free again
        pass
    assert not [t for t in threading.enumerate() if t.name == "rallypoint-server"]


# -- cuts ---------------------------------------------------------------------------------


def test_each_call_takes_effect_once_despite_disconnects(server: EmbeddedServer) -> None:
    print(f"RALLYPOINT_SEED={SEED}")
    rng = random.Random(SEED)
    clients, each = 8, 60
    stop = threading.Event()
    with Proxy("127.0.0.1", server.port) as proxy:
        stores = [TCPStore("127.0.0.1", proxy.port, timeout=60) for _ in range(clients)]

        def count(store: TCPStore) -> list[int]:
            sums = []
            for number in range(each):
                sums.append(store.add("sum", 1))
                store.queue_push("queue", str(number))
            return sums

        counting = [in_thread(count, store) for store in stores]
        popping = in_thread(lambda: [stores[0].queue_pop("queue") for _ in range(clients * each)])
        cuts = 0
        while not all(future.done() for future in (*counting, popping)) and cuts < 500:
            stop.wait(rng.uniform(0.001, 0.03))
            cuts += bool(proxy.cut())
        sums = [number for future in counting for number in future.result(60)]
        assert sorted(sums) == list(range(1, clients * each + 1))
        assert len(popping.result(60)) == clients * each
        assert stores[1].queue_len("queue") == 0
        assert cuts > 0
        for store in stores:
            store.close()


def test_blocked_wait_survives_disconnects(server: EmbeddedServer, store: TCPStore) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        cut = TCPStore("127.0.0.1", proxy.port, timeout=60)
        waits = [
            in_thread(cut.get, "later", 60.0),
            in_thread(cut.wait, ["later"], 60.0),
            in_thread(cut.queue_pop, "queue", True, 60.0),
            in_thread(cut.barrier, "all", 2, 60.0),
        ]
        for _ in range(3):
            after_a_moment(waits[0])
            while proxy.cut() == 0:  # it is still coming back
                assert not waits[0].done()
                after_a_moment(waits[0])
        store.set("later", b"x")
        store.queue_push("queue", b"y")
        store.barrier("all", 2, 60.0)
        assert [w.result(PATIENCE_SECONDS) for w in waits] == [b"x", None, b"y", None]
        cut.close()


def test_calls_in_doubt_after_a_server_restart_raise(port: int) -> None:
    first = EmbeddedServer("127.0.0.1", port, Options())
    store = TCPStore("127.0.0.1", port, timeout=20)
    store.set("key", b"x")
    reading = after_a_moment(in_thread(store.get, "later", 20.0))
    popping = after_a_moment(in_thread(store.queue_pop, "queue", True, 20.0))
    first.stop()
    second = EmbeddedServer("127.0.0.1", port, Options())
    with pytest.raises(StoreConnectionError, match=r"does not know this client.*QueuePop"):
        popping.result(PATIENCE_SECONDS)
    store.set("later", b"y")
    assert reading.result(PATIENCE_SECONDS) == b"y"
    assert not store.check(["key"])
    store.close()
    second.stop()


def test_lost_server_is_an_error_at_the_timeout_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ANSWER_MARGIN_SECONDS", 0.1)
    server = EmbeddedServer("127.0.0.1", 0, Options())
    store = TCPStore("127.0.0.1", server.port)
    server.stop()
    with pytest.raises(StoreConnectionError, match="no process is listening there"):
        store.get("key", timeout=0.2)
    store.close()


# -- sharing, ending ----------------------------------------------------------------------


def test_large_values_in_both_directions_do_not_deadlock(store: TCPStore) -> None:
    value = b"x" * (12 << 20)
    store.set("big", value)
    busy = [in_thread(store.get, "big") for _ in range(4)]
    busy += [in_thread(store.set, f"other {n}", value) for n in range(4)]
    results = [each.result(60) for each in busy]
    assert results == [value] * 4 + [None] * 4


def test_long_wait_does_not_delay_acknowledgements(server: EmbeddedServer, store: TCPStore) -> None:
    waiting = after_a_moment(in_thread(store.queue_pop, "queue", True, 60.0))
    for _ in range(200):
        store.add("n", 1)

    def kept() -> int:
        (client,) = server.call(lambda s: s.stores[""], Deadline(10)).clients.values()
        return len(client.results)

    assert kept() < 10
    store.queue_push("queue", b"x")
    assert waiting.result(PATIENCE_SECONDS) == b"x"


def test_close_ends_the_calls_of_other_threads(server: EmbeddedServer) -> None:
    store = TCPStore("127.0.0.1", server.port)
    waits = [after_a_moment(in_thread(store.get, "later", 60.0)) for _ in range(3)]
    began = time.monotonic()
    store.close()
    store.close()
    for each in waits:
        with pytest.raises(StoreConnectionError, match="has been closed"):
            each.result(PATIENCE_SECONDS)
    assert time.monotonic() - began < 5.0
    with pytest.raises(StoreConnectionError, match="has been closed"):
        store.set("key", b"x")


def test_too_long_request_is_refused_before_sending(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p, "FRAME_LIMIT", 1000)
    with pytest.raises(StoreLimitError, match=r"Set of .* limit of 1000 bytes"):
        store.set("key", b"x" * 1000)
    store.set("key", b"x")
    assert store.get("key") == b"x"


def test_refused_frame_is_not_repeated(
    serve: Callable[..., EmbeddedServer],
) -> None:
    server = serve(frame_limit=1000)
    with TCPStore("127.0.0.1", server.port) as store:
        with pytest.raises(StoreConnectionError, match="limit of 1000"):
            store.set("key", b"x" * 2000)
        store.set("key", b"x")
        assert server.call(lambda s: s.requests, Deadline(10)) < 10


def test_forked_child_cannot_use_the_connection(store: TCPStore) -> None:
    store.set("key", b"x")
    child = os.fork()
    if child == 0:  # no test framework here: only an exit code
        code = 1
        try:
            store.get("key")
        except StoreConnectionError as error:
            code = 2 if "before a fork" in str(error) else 3
        store.close()
        with store.clone() as own:
            code += 40 if own.get("key") == b"x" else 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert store.get("key") == b"x"


def test_token_is_required(serve: Callable[..., EmbeddedServer]) -> None:
    server = serve(token=b"right")
    with TCPStore("127.0.0.1", server.port, token="right") as store:
        store.set("key", b"x")
    with pytest.raises(AuthenticationError):
        TCPStore("127.0.0.1", server.port, token="wrong")


def test_no_resource_warning_in_dev_mode() -> None:
    script = """
import rallypoint, threading
from rallypoint.errors import StoreConnectionError
master = rallypoint.TCPStore("127.0.0.1", 0, is_master=True)
other = rallypoint.TCPStore("127.0.0.1", master.port)
blocked = threading.Thread(target=lambda: other.get("k"))
twin = other.clone()
twin.set("k", b"x")
blocked.start(); blocked.join()
twin.close(); other.close(); master.close()
try:
    rallypoint.TCPStore("127.0.0.1", master.port, timeout=0.1)
except StoreConnectionError:
    pass
"""
    command = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    noise = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert noise == []


def test_silent_server_of_several_is_skipped(
    monkeypatch: pytest.MonkeyPatch, serve: Callable[..., EmbeddedServer]
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    first, second = serve(), serve()
    with contextlib.closing(SilentProxy(first.port)) as proxy:
        places = (("127.0.0.1", proxy.port), ("127.0.0.1", second.port))
        store = TCPStore.at(ConnectionConfig.at(places, "run"), 20)
        waits = in_thread(store.get, "key", 20)
        with pytest.raises(TimeoutError):
            waits.result(1.0)  # signs of life keep it where it is
        assert store.target.servers.leader == places[0]
        proxy.silent = True
        with TCPStore.at(ConnectionConfig.at(places[1:], "run"), 20) as other:
            other.set("key", b"value")
        assert waits.result(20) == b"value"
        store.close()


def test_no_node_hosts_a_list_of_endpoints() -> None:
    with pytest.raises(ParameterError, match="no node starts a server of a list itself"):
        TCPStore("127.0.0.1:1,127.0.0.1:2", is_master=True)


def test_a_list_of_servers(port: int, server: EmbeddedServer) -> None:
    with TCPStore(f"127.0.0.1:{port},127.0.0.1", server.port, timeout=20) as store:
        assert store.add("n", 1) == 1
        with store.clone() as twin:
            assert twin.add("n", 1) == 2


# -- a pending call ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (p.FAIL_TIMEOUT, StoreTimeoutError),
        (p.FAIL_VALUE, StoreValueError),
        (p.FAIL_LIMIT, StoreLimitError),
        (p.FAIL_DENIED, AuthenticationError),
        ("kind-of-a-newer-server", StoreError),
    ],
)
def test_failures_are_errors_of_their_kind(code: str, kind: type[Exception]) -> None:
    call = PendingCall(p.Peek("key"), 1.0)
    call.answer = p.Failure(1, code, "so it is")
    error = call.error("host:1")
    assert (type(error), str(error)) == (kind, "so it is")


def test_a_call_waits_for_its_timeout_and_a_margin() -> None:
    call = PendingCall(p.Get("key", 1.0), 60.0)
    assert not call.expired()
    assert 50.0 < call.remaining() <= 60.0 + ANSWER_MARGIN_SECONDS
    late = PendingCall(p.Peek("key"), -ANSWER_MARGIN_SECONDS)
    assert late.expired()
    assert late.remaining() == 0.0


def test_a_failure_is_the_error_of_its_call() -> None:
    call = PendingCall(p.Peek("key"), 1.0)
    call.answer = p.Failure(1, p.FAIL_LIMIT, "too much")
    assert isinstance(call.error("host:1"), StoreLimitError)
    call.answer = gone = StoreConnectionError("gone")
    assert call.error("host:1") is gone


def test_the_error_of_an_unanswered_call_names_server_call_and_timeout() -> None:
    error = PendingCall(p.Peek("key"), 2.5).error("host:1")
    assert isinstance(error, StoreTimeoutError)
    assert str(error) == (
        "the server at host:1 did not answer Peek within timeout=2.5 s and 10 s more"
    )


def test_the_error_of_a_call_in_doubt_says_what_is_unknown() -> None:
    error = PendingCall(p.Add("key", 1), 1.0).in_doubt("host:1", StoreConnectionError("it broke"))
    for part in ("it broke", "host:1", "whether Add took effect"):
        assert part in str(error)
    with pytest.raises(StoreConnectionError):
        raise error


# -- a store that connects at its first call ---------------------------------------------


@pytest.fixture
def master() -> Iterator[TCPStore]:
    store = TCPStore("127.0.0.1", 0, is_master=True)
    yield store
    store.close()


class Opener:
    """Counts how often the store is made."""

    def __init__(self, master: TCPStore) -> None:
        self.master, self.times, self.broken = master, 0, False

    def __call__(self) -> TCPStore:
        self.times += 1
        if self.broken:
            raise StoreConnectionError("not now")
        return self.master.clone()


def test_a_lazy_store_connects_at_its_first_call(master: TCPStore) -> None:
    opener = Opener(master)
    store = LazyStore(opener, master.master_addr_port)
    assert store.master_addr_port == master.master_addr_port
    assert opener.times == 0
    store.set("a", b"1")
    assert store.get("a") == b"1"
    assert opener.times == 1
    store.close()


def test_after_a_failed_connect_the_next_call_tries_again(master: TCPStore) -> None:
    opener = Opener(master)
    store = LazyStore(opener, master.master_addr_port)
    opener.broken = True
    with pytest.raises(StoreConnectionError, match="not now"):
        store.set("a", b"1")
    opener.broken = False
    store.set("a", b"1")
    assert opener.times == 2
    store.close()


def test_a_closed_lazy_store_refuses_calls(master: TCPStore) -> None:
    opener = Opener(master)
    store = LazyStore(opener, master.master_addr_port)
    store.close()
    assert opener.times == 0
    with pytest.raises(StoreConnectionError, match="closed"):
        store.set("a", b"1")


class TestLazyStore(StoreSuite):
    """A store that connects at its first call."""

    @pytest.fixture(autouse=True)
    def _server(self, master: TCPStore) -> None:
        self._master = master

    def make_store(self) -> LazyStore:
        """Return a fresh handle on the same fresh data."""
        return LazyStore(self._master.clone, self._master.master_addr_port)
