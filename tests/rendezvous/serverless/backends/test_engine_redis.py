"""The backend on redis meets the contract; whole handlers on it; outages."""

import uuid
from collections.abc import Iterator

import pytest
from tests.engine_servers import RedisServer, closed_afterwards, free_ports
from tests.rendezvous.serverless.backends import engine_cases as cases

from rallypoint.engines.redis.engine import RedisEngine
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.backends.engine import RedisRendezvousBackend
from rallypoint.testing.backend_suite import BackendSuite

pytestmark = [pytest.mark.engines, pytest.mark.integration]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closed_afterwards(RedisEngine):
        yield


class TestRedisBackend(BackendSuite):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.server = redis_server

    def make_backend(self) -> RedisRendezvousBackend:
        return RedisRendezvousBackend(self.server.url(uuid.uuid4().hex), "run")

    def another(self, backend: RendezvousBackend) -> RedisRendezvousBackend:
        assert isinstance(backend, RedisRendezvousBackend)
        assert isinstance(backend.engine, RedisEngine)
        return RedisRendezvousBackend(backend.engine.clone(), "run")


@pytest.mark.parametrize("whole_url", [True, False])
def test_nodes_meet(redis_server: RedisServer, whole_url: bool) -> None:
    url = redis_server.url(uuid.uuid4().hex)
    endpoint = url if whole_url else url.removeprefix("redis://")
    cases.nodes_meet_share_a_store_and_meet_again("redis", endpoint)


def test_outage_does_not_disturb_a_round() -> None:
    server = RedisServer("--appendfsync", "always")
    try:
        server.start()
        process = server.process
        cases.an_outage_leaves_a_round_alone(
            "redis", server.url("jobs"), process.kill, process.start
        )
    finally:
        server.stop()


def test_full_database_does_not_disturb_a_round() -> None:
    server = RedisServer()
    control = RedisEngine("redis://127.0.0.1:" + str(server.port))._redis.client
    try:
        server.start()
        cases.an_outage_leaves_a_round_alone(
            "redis",
            server.url("jobs"),
            lambda: bool(control.config_set("maxmemory", "1mb")),
            lambda: bool(control.config_set("maxmemory", "0")),
        )
    finally:
        server.stop()


def test_wrong_password() -> None:
    server = RedisServer("--requirepass", "s3cret")
    try:
        server.start()
        url = server.url("jobs", credentials=":wr0ng")
        cases.a_wrong_password_is_told_at_once("redis", url)
    finally:
        server.stop()


def test_backend_is_away_at_the_start() -> None:
    (port,) = free_ports(1)
    cases.an_engine_that_is_away_is_told("redis", f"redis://u:hidden@127.0.0.1:{port}/x")


def test_texts_contain_no_password() -> None:
    handler = cases.make("redis", "redis://user:hidden@127.0.0.1:1/x")
    assert "hidden" not in repr(handler)
    assert "hidden" not in repr(cases.parameters("redis", "redis://user:hidden@127.0.0.1:1/x"))
