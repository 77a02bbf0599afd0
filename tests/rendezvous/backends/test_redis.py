"""The backend on Redis meets the contract."""

import uuid

import pytest
from tests.engines import RedisServer

from rallypoint.rendezvous.backends.contract import RendezvousBackend
from rallypoint.rendezvous.backends.redis import RedisRendezvousBackend
from rallypoint.store.redis import RedisEngine
from rallypoint.testing.backend_suite import BackendSuite

pytestmark = [pytest.mark.engines, pytest.mark.integration]


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
