"""The metrics in Prometheus format, read from the server on each scrape.

The server counts in plain numbers (`server.counters`); a scrape turns them into metrics. Only open
runs are labels, at most `RUNS_LABELLED`, so that many runs do not flood the monitoring.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from rallypoint.core import explain
from rallypoint.core.state import PLACES, round_number
from rallypoint.server.runs import RunHost
from rallypoint.server.server import Server
from rallypoint.server.status import Histogram, newest_runs

RUNS_LABELLED = 100
PHASES = ("gathering", "last call", "sealed", "closed")


class ServerCollector(Collector):
    """Makes the metrics of one server.

    Args:
        server: the server to read.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    def describe(self) -> Iterator[Metric]:
        """Describe nothing ahead of the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as of now."""
        yield from self._health()
        yield from self._totals()
        yield from self._runs()

    def _health(self) -> Iterator[Metric]:
        status = self._server.status()
        info = GaugeMetricFamily("rallypoint_info", "Version of the server.", labels=["version"])
        info.add_metric([status.version], 1)
        yield info
        leads = "1: leads, or is the only server; 0: stands by."
        yield _gauge("rallypoint_leads", leads, float(self._server.leads))
        yield _gauge("rallypoint_uptime_seconds", "Time since the start.", status.uptime_seconds)
        yield _gauge("rallypoint_connections", "Open connections.", status.connections)
        yield _counter("rallypoint_requests", "Frames received.", status.requests)
        yield _counter("rallypoint_received_bytes", "Bytes received.", status.bytes_in)
        yield _counter("rallypoint_sent_bytes", "Bytes sent.", status.bytes_out)
        yield _counter("rallypoint_faults", "Internal errors.", status.faults)
        yield _gauge("rallypoint_loop_lag_seconds", "Delay of the event loop.", status.lag_seconds)
        worst = status.worst_lag_seconds
        yield _gauge("rallypoint_loop_lag_worst_seconds", "Maximum delay since the start.", worst)
        yield _gauge("rallypoint_memory_bytes", "Resident memory.", status.memory_bytes)
        yield _gauge("rallypoint_store_bytes", "Bytes in all stores.", status.store_bytes)
        yield from self._durable()
        keys = sum(len(store.clients) for store in self._server.stores.values())
        yield _gauge("rallypoint_store_clients", "Clients of all stores.", keys)

    def _durable(self) -> Iterator[Metric]:
        persistence = self._server.persistence
        if persistence is None:
            return
        group_commit = persistence.group_commit
        yield _counter("rallypoint_commits", "Commits to the journal.", group_commit.commits)
        yield _counter("rallypoint_commit_entries", "Entries written.", group_commit.entries)
        yield _counter(
            "rallypoint_commit_seconds", "Total time of commits.", group_commit.commit_seconds
        )
        full = "1: the journal is full and stores nothing."
        yield _gauge("rallypoint_journal_full", full, float(bool(group_commit.trouble)))

    def _totals(self) -> Iterator[Metric]:
        counters = self._server.counters
        yield _counter("rallypoint_rounds_sealed", "Sealed rounds.", counters.rounds)
        help_seal = "From the opening of a round to its sealing."
        yield _histogram("rallypoint_seal_seconds", help_seal, counters.seal)
        help_detect = "From the last heartbeat of a lost node to its declaration as lost."
        yield _histogram("rallypoint_detect_seconds", help_detect, counters.detect)
        losses = CounterMetricFamily("rallypoint_losses", "Lost nodes by cause.", labels=["cause"])
        for cause in ("lease", "disconnect", "process", "rejoin"):
            losses.add_metric([cause], counters.losses[cause])
        yield losses

    def _runs(self) -> Iterator[Metric]:
        phases: Counter[str] = Counter()
        places: Counter[str] = Counter()
        for run in self._server.runs.values():
            phases[explain.phase_name(run.state)] += 1
            for place in PLACES:
                places[place] += len(getattr(run.state, place))
        runs = GaugeMetricFamily("rallypoint_runs", "Runs by phase.", labels=["phase"])
        for phase in PHASES:
            runs.add_metric([phase], phases[phase])
        yield runs
        nodes = GaugeMetricFamily("rallypoint_nodes", "Live nodes by place.", labels=["place"])
        for place in PLACES:
            nodes.add_metric([place.removesuffix("s")], places[place])
        yield nodes
        yield from self._open_runs()

    def _open_runs(self) -> Iterator[Metric]:
        shown = newest_runs(self._server.runs.values(), RUNS_LABELLED)
        open_runs = [run for run in shown if explain.phase_name(run.state) != "closed"]
        now = self._server.loop.time()
        labels = ["run"]
        number = GaugeMetricFamily("rallypoint_run_round", "Round of a run.", labels=labels)
        since = GaugeMetricFamily(
            "rallypoint_run_phase_seconds", "Time in the current phase.", labels=["run", "phase"]
        )
        members = GaugeMetricFamily(
            "rallypoint_run_nodes", "Live nodes of a run.", labels=["run", "place"]
        )
        restarts = GaugeMetricFamily(
            "rallypoint_run_restarts", "Failure budget used.", labels=labels
        )
        exclusions = GaugeMetricFamily(
            "rallypoint_run_exclusions", "Exclusions in effect.", labels=labels
        )
        notices = GaugeMetricFamily(
            "rallypoint_run_notices", "Nodes that announced to leave.", labels=labels
        )
        for run in open_runs:
            name = run.state.run_id
            exclusions.add_metric([name], len(run.state.exclusions))
            notices.add_metric([name], len(run.state.notices))
            number.add_metric([name], round_number(run.state.phase))
            restarts.add_metric([name], run.state.restarts)
            at = run.history.phase_at
            if at is not None:
                since.add_metric([name, explain.phase_name(run.state)], now - at)
            for place in PLACES:
                members.add_metric([name, place.removesuffix("s")], _count(run, place))
        yield from (number, since, members, restarts, exclusions, notices)


def _count(run: RunHost, place: str) -> int:
    return len(getattr(run.state, place))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(
        name, text, buckets=histogram.cumulative(), sum_value=histogram.total
    )
