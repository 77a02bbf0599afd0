"""Counters, and what a server says of itself and its runs."""

import pytest
from tests.integration.cluster import Cluster

from rallypoint.deadline import Deadline
from rallypoint.net.connection import ConnectionConfig
from rallypoint.rendezvous.client.coordinator import HostedCoordinator
from rallypoint.rendezvous.reports.history import Entry, Loss, Noted
from rallypoint.server.status import Counters, Histogram

pytestmark = pytest.mark.integration


def test_status_describes_the_server_and_its_runs() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(2, 2), cluster.handler(2, 2))
        asking = HostedCoordinator(ConnectionConfig("127.0.0.1", cluster.server.port, ""), 15.0)
        status = asking.server_status(Deadline(5))
        asking.shutdown(Deadline(1))
        assert status.endpoint == f"127.0.0.1:{cluster.server.port}"
        (line,) = status.runs
        assert (line.run_id, line.phase, line.round, line.nodes) == (cluster.run_id, "sealed", 1, 2)
        assert line.since_seconds is not None
        assert 0 <= line.since_seconds < 60
        assert status.run_count == 1
        assert status.connections >= 3
        assert status.memory_bytes > 1_000_000
        assert status.uptime_seconds > 0


def test_inquiry_makes_no_run() -> None:
    with Cluster() as cluster:
        asking = HostedCoordinator(
            ConnectionConfig("127.0.0.1", cluster.server.port, "nobody"), 15.0
        )
        report = asking.report(Deadline(5))
        assert "has not been opened" in report.reason
        assert report.settings is None
        assert asking.participants(Deadline(5)) == ()
        asking.shutdown(Deadline(1))
        assert cluster.server.call(lambda server: list(server.runs), Deadline(5)) == []


def test_open_runs_come_first_and_newest_first() -> None:
    with Cluster() as cluster:
        for name in ("a", "b", "c"):
            handler = cluster.handler(1, 1, run_id=name)
            handler.next_rendezvous()
            if name == "c":
                handler.set_closed()
        status = cluster.server.call(lambda server: server.status(), Deadline(5))
        assert [line.run_id for line in status.runs] == ["b", "a", "c"]


def test_watchers_learn_of_runs_that_change() -> None:
    with Cluster() as cluster:
        told: list[str] = []
        cluster.server.call(lambda server: server.watchers.add(told.append), Deadline(5))
        cluster.handler(1, 1).next_rendezvous()
        assert set(told) == {cluster.run_id}


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 9.0):
        histogram.add(seconds)
    assert histogram.cumulative() == [("1", 2.0), ("2", 3.0), ("+Inf", 4.0)]
    assert histogram.total == 12.0


def test_rounds_and_losses_are_counted() -> None:
    counters = Counters()
    counters.note(Noted(Entry(1, 1, 10.0, sealed_at=10.4)))
    counters.note(Noted(None, (Loss("n1", "lease", 15.0), Loss("n2", "lease", 16.0))))
    assert counters.rounds == 1
    assert counters.losses == {"lease": 2}
    assert counters.seal.cumulative()[3] == ("0.5", 1.0)
    assert counters.detect.total == 31.0
