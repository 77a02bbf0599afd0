import json

import pytest
from click.testing import CliRunner, Result
from tests.cli.golden import check, drawn
from tests.integration.cluster import Cluster

from rallypoint.cli import doctor, main
from rallypoint.doctor.findings import Finding, Verdict
from rallypoint.net.addresses import free_port


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
        several = run(place, "--nnodes=1:4")
        assert several.exit_code == 0
        assert "possible cause: whose: the endpoint is a loopback address" in several.stdout
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
