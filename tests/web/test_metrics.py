import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.fakes import Bench
from tests.web.fakes import FakeServer

from rallypoint.core.events import Exclude, Notify
from rallypoint.core.state import Aspect, Settings
from rallypoint.web.metrics import ServerCollector

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def scrape(server: FakeServer) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    registry = CollectorRegistry()
    registry.register(ServerCollector(server.server))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def at_work() -> FakeServer:
    server = FakeServer(Bench(Settings(2, 2, disconnect_grace_seconds=1.0, last_call_seconds=0)))
    server.bench.join("n1")
    server.bench.loop.advance(0.3)
    server.bench.join("n2")
    server.bench.loop.turn()
    return server


def test_metrics_have_rounds_nodes_and_health() -> None:
    found = scrape(at_work())
    assert found["rallypoint_rounds_sealed_total", ()] == 1
    assert found["rallypoint_seal_seconds_bucket", (("le", "0.1"),)] == 0
    assert found["rallypoint_seal_seconds_bucket", (("le", "0.5"),)] == 1
    assert found["rallypoint_nodes", (("place", "participant"),)] == 2
    assert found["rallypoint_runs", (("phase", "sealed"),)] == 1
    assert found["rallypoint_run_nodes", (("place", "participant"), ("run", "run"))] == 2
    assert found["rallypoint_run_phase_seconds", (("phase", "sealed"), ("run", "run"))] >= 0
    assert found["rallypoint_loop_lag_seconds", ()] == 0.25
    assert found["rallypoint_info", (("version", "9.9"),)] == 1


def test_metrics_say_who_leads() -> None:
    server = at_work()
    seen = []
    for server.leads in (True, False):
        seen.append(scrape(server)["rallypoint_leads", ()])
    assert seen == [1, 0]


def test_excluded_and_leaving_nodes_are_counted() -> None:
    server = at_work()
    server.bench.ask("n1", 1, Notify("n1", "spot machine"))
    server.bench.ask("n1", 2, Exclude(Aspect.SLOT, "pod-3", "bad memory", "alice"))
    server.bench.loop.turn()
    found = scrape(server)
    assert found["rallypoint_run_notices", (("run", "run"),)] == 1
    assert found["rallypoint_run_exclusions", (("run", "run"),)] == 1


def test_losses_are_counted_by_cause_and_time() -> None:
    server = at_work()
    server.bench.host.disconnected(server.bench.connections["n1"])
    server.bench.loop.advance(1.2)
    found = scrape(server)
    assert found["rallypoint_losses_total", (("cause", "disconnect"),)] == 1
    assert found["rallypoint_losses_total", (("cause", "lease"),)] == 0
    assert found["rallypoint_detect_seconds_count", ()] == 1
    assert found["rallypoint_detect_seconds_bucket", (("le", "1.1"),)] == 1


@pytest.mark.parametrize("name", ["grafana-dashboard.json", "prometheus-rules.yaml"])
def test_dashboard_and_alerts_use_existing_metrics(name: str) -> None:
    known = {sample for sample, _ in scrape(at_work())}
    asked = set(re.findall(r"rallypoint_\w+", (DEPLOY / name).read_text("utf-8")))
    assert asked
    assert asked <= known, f"unknown: {sorted(asked - known)}"
