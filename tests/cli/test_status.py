import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from tests.integration.cluster import Cluster

from rallypoint.cli import main
from rallypoint.cli import status as status_module
from rallypoint.net.addresses import free_port

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
        assert "round 1 is at work with 2 nodes" in shown.stdout
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
    assert "nobody listens there" in shown.stderr
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
