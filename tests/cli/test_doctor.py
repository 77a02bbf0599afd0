import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cli.golden import check, drawn
from tests.integration.cluster import Cluster
from tests.integration.harness import Fleet

from rallypoint.cli import doctor, main
from rallypoint.deadline import Deadline
from rallypoint.doctor import measurements
from rallypoint.doctor.findings import Finding, Verdict
from rallypoint.errors import StoreTimeoutError
from rallypoint.net.addresses import free_port
from rallypoint.server.embedded import EmbeddedServer


def run(*argv: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *argv])


def test_picture_of_each_verdict() -> None:
    found = [
        Finding("name", Verdict.OK, "first is 10.0.0.1 (2 ms)"),
        Finding("clock", Verdict.NOTE, "an hour ahead: no matter here"),
        Finding("connect", Verdict.WARN, "::2: connection refused", "an address is quicker"),
        Finding("token", Verdict.FAIL, "the server asks for a token", "give the same secret"),
    ]
    lines = [drawn(doctor.line(finding)) for finding in found]
    check("doctor", "".join([*lines, drawn(doctor.conclusion(found))]))


def test_absence_of_problems_is_reported() -> None:
    well = [Finding("name", Verdict.OK, "fine")]
    assert doctor.conclusion(well).plain == "no problem found from this machine"


@pytest.mark.integration
def test_cause_and_exit_code() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        place = f"--endpoint=127.0.0.1:{cluster.server.port}"
        well = run(place, f"--run-id={cluster.run_id}")
        assert well.exit_code == 0, well.output
        assert well.stdout.endswith("no problem found from this machine\n")
        other = run(place, "--run-id=another")
        assert other.exit_code == 1
        assert "likely cause: run: " in other.stdout
        assert "has no run 'another'" in other.stdout
        several = run(place, "--nnodes=1:4")
        assert several.exit_code == 0
        assert "possible cause: address: the endpoint is a loopback address" in several.stdout
    gone = run(f"--endpoint=127.0.0.1:{free_port('127.0.0.1')}", "--timeout=1")
    assert gone.exit_code == 1
    assert "likely cause: connect: 127.0.0.1: connection refused" in gone.stdout


@pytest.mark.integration
def test_json_has_the_same_content() -> None:
    shown = run("--endpoint=nope.invalid:1", "--json", "--timeout=5")
    document = json.loads(shown.stdout)
    assert document["schema"] == "rallypoint.doctor/1"
    assert (document["verdict"], document["cause"]) == ("fail", "name")
    assert document["findings"][0]["remedy"]


@pytest.mark.parametrize("argv", [[], ["--endpoint=h:x"], ["--endpoint=h:1", "--nnodes=3:2"]])
def test_bad_input_exits_with_2(argv: list[str]) -> None:
    assert run(*argv).exit_code == 2


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "CLOCK_SECONDS", 0.01)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


def run_check(*argv: str) -> Result:
    return CliRunner().invoke(main, ["check", *argv])


def test_fit_node(tmp_path: Path) -> None:
    tmp_path /= "d" * 100
    tmp_path.mkdir()
    result = run_check(f"--path={tmp_path}", "--min-disk=0", "--min-memory=0")
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.stdout.splitlines()[:3]] == [
        ["ok", "disk"],
        ["ok", "memory"],
        ["ok", "clock"],
    ]


def test_unfit_node() -> None:
    result = run_check("--min-disk=1e9", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["schema"], document["verdict"]) == ("rallypoint.check/1", "fail")
    assert document["findings"][0]["remedy"].startswith("free some space")


@pytest.mark.parametrize(
    "argv", [["--nodes=2"], ["--nodes=2", "--endpoint=h:1"], ["--endpoint=h:x"], ["--nodes=1"]]
)
def test_usage(argv: list[str]) -> None:
    assert run_check(*argv).exit_code == 2


def test_missing_server_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = run_check("--min-disk=0", "--min-memory=0", f"--endpoint=127.0.0.1:{port}")
    assert result.exit_code == 1
    assert "connect" in result.stdout


def test_failed_meeting_leaves_no_connection(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: object) -> None:
        raise StoreTimeoutError("nobody came")

    monkeypatch.setattr(measurements, "meet", fails)
    argv = [f"--endpoint=127.0.0.1:{server.port}", "--run-id=x", "--nodes=2", "--min-memory=0"]
    result = run_check(*argv, "--min-disk=0")
    assert (result.exit_code, result.stderr) == (1, "rallypoint check: nobody came\n")
    assert server.wait_until_empty(Deadline(20))


@pytest.mark.integration
def test_nodes_measure_each_other(fleet: Fleet) -> None:
    _server, where = fleet.server()
    argv = ["check", "--min-disk=0", "--min-memory=0", f"--endpoint={where}", "--run-id=check-1"]
    nodes = [fleet.rallypoint(f"node{i}", *argv, "--nodes=3", "--json") for i in range(3)]
    seen = []
    for node in nodes:
        assert node.wait() == 0, node.shown()
        seen.append(json.loads(node.out.text)["pairs"])
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 6
    late = fleet.rallypoint("late", *argv, "--nodes=3")
    assert late.wait() == 2
    assert "each check a new --run-id" in late.err.text
    alone = fleet.rallypoint("alone", *argv[:-1], "--run-id=check-2", "--nodes=2", "--wait=1")
    assert alone.wait() == 1
    assert "1 of the nodes did not come" in alone.out.text
