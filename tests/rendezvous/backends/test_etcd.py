"""The backend on etcd meets the contract."""

import uuid

import pytest
from tests.engines import EtcdServers

from rallypoint.rendezvous.backends.contract import RendezvousBackend
from rallypoint.rendezvous.backends.etcd import EtcdRendezvousBackend
from rallypoint.store.etcd import EtcdEngine
from rallypoint.testing.backend_suite import BackendSuite

pytestmark = [pytest.mark.engines, pytest.mark.integration]


class TestEtcdBackend(BackendSuite):
    @pytest.fixture(autouse=True)
    def _server(self, etcd_server: EtcdServers) -> None:
        self.server = etcd_server

    def make_backend(self) -> EtcdRendezvousBackend:
        return EtcdRendezvousBackend(self.server.url(uuid.uuid4().hex), "run")

    def another(self, backend: RendezvousBackend) -> EtcdRendezvousBackend:
        assert isinstance(backend, EtcdRendezvousBackend)
        assert isinstance(backend.engine, EtcdEngine)
        return EtcdRendezvousBackend(backend.engine.clone(), "run")
