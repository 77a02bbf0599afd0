"""The backend on etcd meets the contract; whole handlers on it; outages."""

import uuid
from collections.abc import Iterator

import pytest
from tests.engine_servers import EtcdServers, closed_afterwards, free_ports
from tests.rendezvous.serverless.backends import engine_cases as cases

from rallypoint.engines.etcd.engine import EtcdEngine
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.backends.engine import EtcdRendezvousBackend
from rallypoint.testing.backend_suite import BackendSuite

pytestmark = [pytest.mark.engines, pytest.mark.integration]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closed_afterwards(EtcdEngine):
        yield


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


@pytest.mark.parametrize("whole_url", [True, False])
def test_nodes_meet(etcd_server: EtcdServers, whole_url: bool) -> None:
    url = etcd_server.url(uuid.uuid4().hex)
    endpoint = url if whole_url else url.removeprefix("etcd://")
    cases.nodes_meet_share_a_store_and_meet_again("etcd", endpoint)


def test_outage_does_not_disturb_a_round() -> None:
    server = EtcdServers(1)
    try:
        server.start()
        process = server.members[0]
        cases.an_outage_leaves_a_round_alone(
            "etcd", server.url("jobs"), process.kill, process.start
        )
    finally:
        server.stop()


def test_full_database_does_not_disturb_a_round() -> None:
    server = EtcdServers(1, "--quota-backend-bytes", str(4 << 20))
    try:
        server.start()
        cases.an_outage_leaves_a_round_alone(
            "etcd", server.url("jobs"), server.fill, server.make_room
        )
    finally:
        server.stop()


def test_wrong_password() -> None:
    server = EtcdServers(1)
    try:
        server.start()
        server.guard()
        url = server.url("jobs", credentials="worker:wr0ng")
        cases.a_wrong_password_is_told_at_once("etcd", url)
    finally:
        server.stop()


def test_backend_is_away_at_the_start() -> None:
    (port,) = free_ports(1)
    cases.an_engine_that_is_away_is_told("etcd", f"etcd://u:hidden@127.0.0.1:{port}/x")


def test_texts_contain_no_password() -> None:
    handler = cases.make("etcd", "etcd://user:hidden@127.0.0.1:1/x")
    assert "hidden" not in repr(handler)
    assert "hidden" not in repr(cases.parameters("etcd", "etcd://user:hidden@127.0.0.1:1/x"))
