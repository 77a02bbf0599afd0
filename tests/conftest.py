"""Fixtures shared by several folders of tests."""

import signal
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.engine_servers import EtcdServers, RedisServer

from rallypoint.net.addresses import free_port
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options

# How long it takes to generate examples depends on the machine's load.
settings.register_profile("tests", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def signals_end_programs() -> Iterator[None]:
    """Make signals end the programs that tests start, also under nohup or in the background."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, before)
    signal.signal(signal.SIGINT, interrupt)


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServers]:
    """One etcd member, for tests that give it keys under prefixes of their own."""
    servers = EtcdServers(1)
    try:
        yield servers.start()
    finally:
        servers.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis server, for tests that give it keys under prefixes of their own."""
    server = RedisServer()
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def serve() -> Iterator[Callable[..., EmbeddedServer]]:
    """Start servers in this process (options as keywords); they end with the test."""
    servers: list[EmbeddedServer] = []

    def start(host: str = "127.0.0.1", port: int = 0, **options: object) -> EmbeddedServer:
        servers.append(EmbeddedServer(host, port, Options(**options)))  # type: ignore[arg-type]
        return servers[-1]

    yield start
    for each in servers:
        each.stop()


@pytest.fixture
def server(serve: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server on loopback, without a token."""
    return serve()


@pytest.fixture
def port() -> int:
    """A port that was free on loopback a moment ago."""
    return free_port("127.0.0.1")
