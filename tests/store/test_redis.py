"""Redis as an engine, and the store on it: the suites, and what goes wrong."""

import uuid

import pytest
from tests.engines import RedisServer

from rallypoint.store.redis import RedisEngine, RedisStore
from rallypoint.testing.engine_suite import EngineSuite
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
