"""The suites on the third party's package. Run by test_outoftree.py where it is installed."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from rallypoint_sqlite import SqliteEngine, create_handler
from tests.engine_servers import closed_afterwards
from tests.rendezvous.serverless.backends import engine_cases

from rallypoint.engines.store import EngineStore
from rallypoint.rendezvous.registry import ENTRY_POINT_GROUP, get_registry
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.backends.engine import EngineRendezvousBackend
from rallypoint.testing.backend_suite import BackendSuite
from rallypoint.testing.engine_suite import EngineSuite
from rallypoint.testing.store_suite import StoreSuite


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closed_afterwards(SqliteEngine):
        yield


class TestSqliteEngine(EngineSuite):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "engine"

    def make_engine(self) -> SqliteEngine:
        return SqliteEngine(str(self.path))


class TestSqliteStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store"

    def make_store(self) -> EngineStore:
        return EngineStore(SqliteEngine(str(self.path)))


class TestSqliteBackend(BackendSuite):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path, self.made = tmp_path, 0

    def make_backend(self) -> EngineRendezvousBackend:
        self.made += 1
        return EngineRendezvousBackend(SqliteEngine(str(self.path / f"{self.made}")), "run")

    def another(self, backend: RendezvousBackend) -> EngineRendezvousBackend:
        assert isinstance(backend, EngineRendezvousBackend)
        return EngineRendezvousBackend(backend.engine.clone(), "run")


def test_plugin_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (entry,) = entry_points(group=ENTRY_POINT_GROUP, name="sqlite")
    assert entry.load() is create_handler
    assert "sqlite" in get_registry().names()
    engine_cases.nodes_meet_share_a_store_and_meet_again("sqlite", str(tmp_path / "run"))
