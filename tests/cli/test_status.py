import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from tests.cli.golden import check, drawn
from tests.core.builders import a_failure, a_node, a_settings
from tests.integration.cluster import Cluster

from rallypoint.cli import main
from rallypoint.cli import status as status_module
from rallypoint.cli.status import MEMBERS_SHOWN, picture
from rallypoint.net.addresses import free_port
from rallypoint.rendezvous.coordinator import (
    ExclusionLine,
    NodeStatus,
    NoticeLine,
    Report,
    RoundLine,
    RunningTimer,
)
from rallypoint.rendezvous.reports.status import SCHEMA, RunLine, ServerStatus, Status, run_status

LOST = "gpu-03 pid 3 was lost: it disconnected and did not reconnect"


def server(runs: int = 1) -> ServerStatus:
    lines = tuple(RunLine(f"run-{i}", "sealed", 1, 2, "at work") for i in range(runs))
    return ServerStatus(
        "10.0.0.1:29400", "1.0", 1, 7, 4000.0, 0.0, 9, 100, 5000, 0.002, 0.1, 0, 0, runs, lines
    )


def shown(*reports: Report, runs: int = 1) -> str:
    return drawn(picture(Status(SCHEMA, "x", server(runs), tuple(map(run_status, reports)))))


def member(number: int, place: str, rank: int | None, **more: object) -> NodeStatus:
    node = a_node(f"gpu-{number:02d}", slot=f"pod-{number}")
    given: dict[str, Any] = {"since_seconds": 75.0, "heard_seconds": 1.2, **more}
    return NodeStatus(node, place, rank, **given)


ROUNDS = (
    RoundLine(1, 1, 1300.0, "", 1270.0, "the last call is over with 3 of up to 4 nodes", 80.0,
              LOST, 3, ("gpu-03 pid 3",)),
    RoundLine(1, 2, 80.0, LOST, 75.0, "all 2 live nodes have joined", None, "", 2),
)  # fmt: skip


def test_status_of_a_working_run() -> None:
    members = (
        member(1, "participant", 0),
        member(2, "participant", 1, connected=False),
        member(4, "waiting", None, heard_seconds=9.0),
    )
    report = Report(
        "digits", "sealed", 1, 2, "round 2 is running with 2 nodes; 1 wait for the next round",
        (), members, a_settings(2, 4, max_restarts=3), 1, "s", 75.0, "gpu-01 pid 1",
        (RunningTimer("gpu-02 pid 2 may reconnect", "disconnect_grace", 0.6),), ROUNDS,
        (a_failure("gpu-02 pid 2", 9, round=1),), (("c0ffee00aa", LOST),),
    )  # fmt: skip
    check("status-at-work", shown(report))


def test_status_of_a_waiting_run() -> None:
    report = Report(
        "digits", "gathering", 2, 5, "1 of at least 3 nodes have joined; waiting for 2 more",
        (), (member(1, "candidate", None),), a_settings(3, 3), 0, "s", 12.0, "gpu-01 pid 1",
        (), (RoundLine(2, 5, 12.0),),
    )  # fmt: skip
    check("status-waiting", shown(report, runs=3))


def test_status_of_a_server_without_runs() -> None:
    assert "the server has no runs" in shown(runs=0)


def test_many_members_are_counted() -> None:
    members = tuple(member(i, "participant", i) for i in range(100))
    report = Report(
        "big", "sealed", 1, 1, "at work", members=members, settings=a_settings(100, 100)
    )
    text = shown(report)
    assert f"and {100 - MEMBERS_SHOWN} more (--json shows all)" in text
    assert "gpu-99" not in text


def test_unknown_parts_of_a_shared_state_are_left_out() -> None:
    report = Report(
        "r", "sealed", 1, 1, "at work", members=(NodeStatus(a_node("n1"), "participant"),)
    )
    text = drawn(picture(Status(SCHEMA, "a file", None, (run_status(report),))))
    assert "None" not in text
    assert text.startswith("\nrun r  sealed, round 1\n")


def test_markup_in_names_is_text() -> None:
    node = a_node("n1", address="[red]x[/red]")
    report = Report("[b]r[/b]", "sealed", 1, 1, "[i]", members=(NodeStatus(node, "participant"),))
    text = shown(report)
    assert "[b]r[/b]" in text
    assert "[red]x[/red]" in text


def test_notices_and_exclusions_are_shown_with_their_time() -> None:
    report = Report(
        "digits", "sealed", 1, 2, "at work", settings=a_settings(2, 4, max_restarts=5), restarts=3,
        failing=2,
        notices=(
            NoticeLine("a", "gpu-01 pid 1", "spot machine", "gpu-01 pid 1", 30.0, 25.0),
            NoticeLine("b", "gpu-02 pid 2", "maintenance", "alice"),
        ),
        exclusions=(
            ExclusionLine("slot", "pod-3", "bad memory", "alice", "noon", 7200.0, 3600.0),
            ExclusionLine("node", "gpu-04", "disk full", "bob", seconds=60.0),
            ExclusionLine("address", "10.0.0.9", "it flaps", "carol"),
            ExclusionLine("slot", "pod-9", "one too many to be shown", "carol"),
        ),
    )  # fmt: skip
    text = shown(report)
    assert "restarts 3 of 5, 2 in a row" in text
    assert "leaving  gpu-01 pid 1 in 25 s: spot machine\n" in text
    assert "leaving  gpu-02 pid 2, requested by alice: maintenance" in text
    assert "excluded slot pod-3, 1 h more: bad memory (by alice)" in text
    assert "excluded node gpu-04, for 1 min: disk full (by bob)" in text
    assert "excluded address 10.0.0.9, until admitted: it flaps (by carol)" in text
    assert "pod-9" not in text


pytestmark = pytest.mark.integration


def status(*argv: str) -> Result:
    return CliRunner().invoke(main, ["status", *argv])


def endpoint(cluster: Cluster) -> str:
    return f"--endpoint=127.0.0.1:{cluster.server.port}"


def test_server_and_its_runs_are_shown() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(2, 2, slot="a"), cluster.handler(2, 2, slot="b"))
        shown = status(endpoint(cluster))
        assert shown.exit_code == 0, shown.output
        assert f"run {cluster.run_id}  sealed, round 1, for " in shown.stdout
        assert "round 1 is running with 2 nodes" in shown.stdout
        assert shown.stdout.count("participant") == 2


def test_json_matches_its_schema() -> None:
    schema = json.loads((files("rallypoint") / "schemas" / "status.v1.json").read_text("utf-8"))
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 2, target_nodes=1))
        for more in ([], [f"--run-id={cluster.run_id}"]):
            shown = status(endpoint(cluster), "--json", *more)
            document = json.loads(shown.stdout)
            jsonschema.validate(document, schema)
            assert document["schema"] == "rallypoint.status/1"
            assert [run["run_id"] for run in document["runs"]] == [cluster.run_id]


def test_unknown_run_exits_with_3_and_is_not_created() -> None:
    with Cluster() as cluster:
        shown = status(endpoint(cluster), "--run-id=nope")
        assert shown.exit_code == 3
        assert "has no run 'nope': no node has joined it; no run is there" in shown.stdout
        assert "0 runs" in status(endpoint(cluster)).stdout
        cluster.join_all(cluster.handler(1, 1))
        shown = status(endpoint(cluster), f"--run-id={cluster.run_id}x")
        assert shown.exit_code == 3
        assert f"joined it; runs there: {cluster.run_id!r}\n" in shown.stdout
        assert "gathering" not in shown.stdout  # no phase of what is not there


def test_run_closed_before_any_join_exists() -> None:
    with Cluster() as cluster:
        cluster.handler(1, 1).set_closed("enough")
        shown = status(endpoint(cluster), f"--run-id={cluster.run_id}")
        assert shown.exit_code == 0
        assert "enough" in shown.stdout


def test_missing_server_exits_with_1_and_suggests_doctor() -> None:
    shown = status(f"--endpoint=127.0.0.1:{free_port('127.0.0.1')}", "--timeout=0.3")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "no process is listening there" in shown.stderr
    assert "`rallypoint doctor` looks for the cause" in shown.stderr


def test_bad_input_exits_with_2(tmp_path: Path) -> None:
    shown = status("--backend=file", f"--endpoint={tmp_path}/no", "--run-id=x")
    assert shown.exit_code == 2
    assert "there is no such file" in shown.stderr


def test_watch_shows_each_update(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def rest(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_module, "_rest", rest)
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        shown = status(endpoint(cluster), "--watch", "--json", "--interval=0.5")
        documents: list[Any] = [json.loads(line) for line in shown.stdout.splitlines()]
        assert len(documents) == 3
        assert looks == [0.5] * 3
        looks.clear()
        shown = status(endpoint(cluster), "--watch")
        assert shown.exit_code == 0
        assert "sealed" in shown.stdout


def test_help_has_examples() -> None:
    shown = status("--help")
    assert "rallypoint status --endpoint first:29400 --run-id digits --watch" in shown.stdout
