"""What the commands that give orders have in common: whom they mean, where, and how they fail."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.core.builders import a_node, a_settings
from tests.integration.cluster import Cluster

from rallypoint.cli import admin_commands, main
from rallypoint.cli.admin_commands import Where, Whom, meant
from rallypoint.core.annotations import Aspect
from rallypoint.core.events import Close
from rallypoint.errors import ParameterError
from rallypoint.net.addresses import free_port
from rallypoint.rendezvous.coordinator import Member, Order, Report
from rallypoint.rendezvous.reports.status import RunStatus, run_status

NODES = [
    a_node("node7", id="77777777aa", address="10.0.0.7", host="node7", slot="s7"),
    a_node("node8", id="88888888aa", address="10.0.0.7", host="node8", slot="s8"),
    a_node("node9", id="88888899aa", address="10.0.0.9", host="node9"),
]


def a_run() -> RunStatus:
    members = [Member(node, "participant") for node in NODES[:2]] + [Member(NODES[2], "finished")]
    return run_status(Report("job", "sealed", 1, 1, "", members=tuple(members)))


@pytest.mark.parametrize(
    ("aspect", "name", "found"),
    [
        (Aspect.NODE, "node7", ["77777777aa"]),
        (Aspect.NODE, "node8 (10.0.0.7) pid 8", ["88888888aa"]),
        (Aspect.NODE, "777777", ["77777777aa"]),
        (Aspect.NODE, "888888", ["88888888aa"]),  # the other one has finished
        (Aspect.ADDRESS, "10.0.0.7", ["77777777aa", "88888888aa"]),
        (Aspect.ADDRESS, "10.0.0.9", []),
        (Aspect.SLOT, "s8", ["88888888aa"]),
        (Aspect.SLOT, "s9", []),
    ],
)
def test_whom_a_name_means(aspect: Aspect, name: str, found: list[str]) -> None:
    assert [member.id for member in meant(a_run(), aspect, name)] == found


@pytest.mark.parametrize("name", ["node9", "77777", "node"])
def test_an_unknown_node_is_answered_with_those_that_are_there(name: str) -> None:
    there = r"node7 \(10.0.0.7\) pid 7, node8 \(10.0.0.7\) pid 8$"
    with pytest.raises(ParameterError, match=f"--node {name}: run 'job' has no such .*{there}"):
        meant(a_run(), Aspect.NODE, name)


def test_few_names_are_enough_and_nobody_is_told_as_nobody() -> None:
    many = tuple(Member(a_node(f"n{i:02}"), "participant") for i in range(25))
    run = run_status(Report("job", "sealed", 1, 1, "", members=many))
    with pytest.raises(ParameterError, match="n19 pid 19 and 5 more"):
        meant(run, Aspect.NODE, "x")
    with pytest.raises(ParameterError, match="there are: nobody"):
        meant(run_status(Report("job", "closed", 1, 1, "")), Aspect.NODE, "x")


@pytest.mark.parametrize(
    ("whom", "words"),
    [
        (Whom(None, None, None), "no node given"),
        (Whom("a", "", "b"), "--node and --slot given: give one of --node, --address and --slot"),
    ],
)
def test_one_name_is_wanted(whom: Whom, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        whom.named()
    assert Whom(None, "b", None).named() == (Aspect.ADDRESS, "b")


def test_by_whom_is_a_user_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    monkeypatch.setattr("socket.gethostname", lambda: "node1")
    assert admin_commands.by_whom() == "alice@node1"

    def nobody() -> str:
        raise KeyError("uid 4711")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert admin_commands.by_whom() == "somebody@node1"


@click.command()
@admin_commands.of_a_run
def closing(where: Where) -> None:
    def decide(run: RunStatus) -> tuple[list[Order], str]:
        return [Close("me", "enough", "noon")], f"closing {run.run_id}"

    admin_commands.carry_out("closing", where, decide)


def close(*argv: str) -> Result:
    return CliRunner().invoke(closing, argv)


@pytest.mark.integration
def test_an_order_to_a_run_on_a_server() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        done = close(cluster.run_id, f"--endpoint=127.0.0.1:{cluster.server.port}")
        assert done.exit_code == 0, done.output
        first, second = done.stdout.splitlines()
        assert first == f"closing {cluster.run_id}"
        assert second.startswith(f"run '{cluster.run_id}' was closed at ")


@pytest.mark.integration
def test_an_order_to_a_run_in_a_shared_file(tmp_path: Path) -> None:
    from rallypoint.core.events import Join
    from rallypoint.deadline import Deadline
    from rallypoint.rendezvous.serverless.backends.file import FileRendezvousBackend
    from rallypoint.rendezvous.serverless.cas_loop import Exchange

    path = tmp_path / "state"
    exchange = Exchange(FileRendezvousBackend(str(path), "job"), "job")
    exchange.run(lambda _: [Join(a_node("n1"), a_settings(1, 1))], Deadline(5))
    done = close("job", "--backend=file", f"--endpoint={path}")
    assert done.exit_code == 0, done.output
    assert "was closed at noon by me: enough" in done.stdout
    assert exchange.run(lambda _: [], Deadline(5)).reason.endswith("by me: enough")


@pytest.mark.integration
def test_what_cannot_be_done_says_why() -> None:
    with Cluster() as cluster:
        where = f"--endpoint=127.0.0.1:{cluster.server.port}"
        done = close("nope", where)
        assert (done.exit_code, done.stdout) == (3, "")
        assert "has no run 'nope': no node has joined it; no run is there" in done.stderr
        assert "0 runs" in CliRunner().invoke(main, ["status", where]).stdout  # none was made
    done = close("job", f"--endpoint=127.0.0.1:{free_port('127.0.0.1')}", "--timeout=0.3")
    assert (done.exit_code, "nobody listens there" in done.stderr) == (1, True)
    done = close("job", "--backend=file", "--endpoint=/nowhere/state")
    assert (done.exit_code, "there is no such file" in done.stderr) == (2, True)
