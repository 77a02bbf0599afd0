"""`close`, `exclude`, `admit` and `notify`: which nodes they mean, what they do, how they fail."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.core.builders import a_node, a_settings
from tests.integration.cluster import Cluster

from rallypoint.cli import admin_commands, main
from rallypoint.cli.admin_commands import NodeSelector, RunLocation, meant
from rallypoint.core.events import Close, Refusal
from rallypoint.core.state import Aspect, Verdict
from rallypoint.errors import ParameterError
from rallypoint.net.addresses import free_port
from rallypoint.rendezvous.coordinator import NodeStatus, Order, Report
from rallypoint.rendezvous.reports.status import RunStatus, run_status

NODES = [
    a_node("node7", id="77777777aa", address="10.0.0.7", host="node7", slot="s7"),
    a_node("node8", id="88888888aa", address="10.0.0.7", host="node8", slot="s8"),
    a_node("node9", id="88888899aa", address="10.0.0.9", host="node9"),
]


def a_run() -> RunStatus:
    members = [NodeStatus(node, "participant") for node in NODES[:2]] + [
        NodeStatus(NODES[2], "finished")
    ]
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
def test_nodes_with_a_name(aspect: Aspect, name: str, found: list[str]) -> None:
    assert [member.id for member in meant(a_run(), aspect, name)] == found


@pytest.mark.parametrize("name", ["node9", "77777", "node"])
def test_unknown_node_is_refused_with_the_names_of_the_nodes(name: str) -> None:
    there = r"node7 \(10.0.0.7\) pid 7, node8 \(10.0.0.7\) pid 8$"
    with pytest.raises(ParameterError, match=f"--node {name}: run 'job' has no such .*{there}"):
        meant(a_run(), Aspect.NODE, name)


def test_message_lists_few_names_and_says_none_for_an_empty_run() -> None:
    many = tuple(NodeStatus(a_node(f"n{i:02}"), "participant") for i in range(25))
    run = run_status(Report("job", "sealed", 1, 1, "", members=many))
    with pytest.raises(ParameterError, match="n19 pid 19 and 5 more"):
        meant(run, Aspect.NODE, "x")
    with pytest.raises(ParameterError, match="its nodes: none"):
        meant(run_status(Report("job", "closed", 1, 1, "")), Aspect.NODE, "x")


@pytest.mark.parametrize(
    ("whom", "words"),
    [
        (NodeSelector(None, None, None), "no node given"),
        (
            NodeSelector("a", "", "b"),
            "--node and --slot given: give one of --node, --address and --slot",
        ),
    ],
)
def test_exactly_one_name_is_required(whom: NodeSelector, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        whom.named()
    assert NodeSelector(None, "b", None).named() == (Aspect.ADDRESS, "b")


def test_caller_is_user_at_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    monkeypatch.setattr("socket.gethostname", lambda: "node1")
    assert admin_commands.by_whom() == "alice@node1"

    def nobody() -> str:
        raise KeyError("uid 4711")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert admin_commands.by_whom() == "unknown@node1"


@click.command()
@admin_commands.of_a_run
def close_command(where: RunLocation) -> None:
    def decide(run: RunStatus) -> tuple[list[Order], str]:
        return [Close("me", "enough", "noon")], f"closing {run.run_id}"

    admin_commands.carry_out("closing", where, decide)


def close(*argv: str) -> Result:
    return CliRunner().invoke(close_command, argv)


@pytest.mark.integration
def test_command_to_a_run_on_a_server() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        done = close(cluster.run_id, f"--endpoint=127.0.0.1:{cluster.server.port}")
        assert done.exit_code == 0, done.output
        first, second = done.stdout.splitlines()
        assert first == f"closing {cluster.run_id}"
        assert second.startswith(f"run '{cluster.run_id}' was closed at ")


@pytest.mark.integration
def test_command_to_a_run_in_a_shared_file(tmp_path: Path) -> None:
    from rallypoint.core.events import Join
    from rallypoint.deadline import Deadline
    from rallypoint.rendezvous.serverless.backends.store import FileRendezvousBackend
    from rallypoint.rendezvous.serverless.cas_loop import CasLoop

    path = tmp_path / "state"
    exchange = CasLoop(FileRendezvousBackend(str(path), "job"), "job")
    exchange.run(lambda _: [Join(a_node("n1"), a_settings(1, 1))], Deadline(5))
    done = close("job", "--backend=file", f"--endpoint={path}")
    assert done.exit_code == 0, done.output
    assert "was closed at noon by me: enough" in done.stdout
    assert exchange.run(lambda _: [], Deadline(5)).reason.endswith("by me: enough")


@pytest.mark.integration
def test_failures_state_the_reason() -> None:
    with Cluster() as cluster:
        where = f"--endpoint=127.0.0.1:{cluster.server.port}"
        done = close("nope", where)
        assert (done.exit_code, done.stdout) == (3, "")
        assert "has no run 'nope': no node has joined it; no run is there" in done.stderr
        assert "0 runs" in CliRunner().invoke(main, ["status", where]).stdout  # none was made
    done = close("job", f"--endpoint=127.0.0.1:{free_port('127.0.0.1')}", "--timeout=0.3")
    assert (done.exit_code, "no process is listening there" in done.stderr) == (1, True)
    done = close("job", "--backend=file", "--endpoint=/nowhere/state")
    assert (done.exit_code, "there is no such file" in done.stderr) == (2, True)


def run(command: str, cluster: Cluster, *argv: str) -> Result:
    where = f"--endpoint=127.0.0.1:{cluster.server.port}"
    return CliRunner().invoke(main, [command, cluster.run_id, where, *argv])


@pytest.mark.integration
def test_excluded_node_is_shown_by_status() -> None:
    with Cluster() as cluster:
        one, two = cluster.handler(1, 2, slot="a"), cluster.handler(1, 2, slot="b")
        cluster.join_all(one, two)
        done = run("exclude", cluster, f"--node={two.node_id[:8]}", "--for=2h", "--why=bad memory")
        assert done.exit_code == 0, done.output
        assert f"excluded from run '{cluster.run_id}' for 2 h: " in done.stdout
        assert "was excluded by" in done.stdout
        fenced = cluster.until(two, lambda view: view.fenced is not None).fenced
        assert fenced is not None
        assert fenced.refusal is Refusal.EXCLUDED
        assert "for 7200 s: bad memory" in fenced.why
        where = f"--endpoint=127.0.0.1:{cluster.server.port}"
        shown = CliRunner().invoke(main, ["status", where]).stdout
        assert f"excluded node {two.node_id}, 1 h 59 min more: bad memory (by " in shown


@pytest.mark.integration
def test_slot_can_be_excluded_before_a_node_fills_it() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 2, target_nodes=1))
        done = run("exclude", cluster, "--slot=pod-3")
        assert done.exit_code == 0, done.output
        assert "until it is admitted: slot pod-3 (no such node yet)" in done.stdout


@pytest.mark.integration
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--node=nobody"], "has no such node; its nodes: "),
        ([], "no node given: give one of"),
        (["--node=x", "--for=soon"], "'soon' is not a duration"),
    ],
)
def test_bad_input_exits_with_2(argv: list[str], words: str) -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        done = run("exclude", cluster, *argv)
        assert (done.exit_code, words in done.stderr) == (2, True), done.output


@pytest.mark.integration
def test_admitted_node_joins_again() -> None:
    with Cluster() as cluster:
        one, two = cluster.handler(1, 2, slot="a"), cluster.handler(1, 2, slot="b")
        cluster.join_all(one, two)
        assert run("exclude", cluster, "--slot=b").exit_code == 0
        cluster.until(two, lambda view: view.fenced is not None)
        done = run("admit", cluster, "--slot=b")
        assert done.exit_code == 0, done.output
        assert f"admitted to run '{cluster.run_id}': slot b" in done.stdout
        again = cluster.join(two)
        cluster.wait_for("candidate", 1)
        assert one.next_rendezvous().world_size == 2
        assert again.result(20).world_size == 2


@pytest.mark.integration
def test_all_ends_every_exclusion() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        assert "no node was excluded" in run("admit", cluster, "--all").stdout
        for slot in "ab":
            run("exclude", cluster, f"--slot={slot}")
        assert ": slot a, slot b" in run("admit", cluster, "--all").stdout
        assert "no node was excluded" in run("admit", cluster, "--all").stdout


@pytest.mark.integration
def test_admit_of_a_node_that_is_not_excluded_lists_the_exclusions() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        done = run("admit", cluster, "--node=n7")
        assert (done.exit_code, "exclusions: none" in done.stderr) == (2, True)
        done = run("admit", cluster)
        assert (done.exit_code, "--slot and --all" in done.stderr) == (2, True)
        run("exclude", cluster, "--slot=b")
        done = run("admit", cluster, "--node=b")
        assert done.exit_code == 2
        assert f"--node b: not excluded from run '{cluster.run_id}'" in done.stderr
        assert done.stderr.endswith("exclusions: slot b\n")


@pytest.mark.integration
def test_run_is_closed_for_all_nodes_and_only_once() -> None:
    with Cluster() as cluster:
        one = cluster.handler(1, 1)
        cluster.join_all(one)
        done = run("close", cluster, "--why=wrong data")
        assert done.exit_code == 0, done.output
        assert f"run '{cluster.run_id}' was closed at" in done.stdout
        assert len(done.stdout.splitlines()) == 1
        closed = cluster.until(one, lambda view: view.closed is not None).closed
        assert closed is not None
        assert (closed.why, closed.verdict) == ("wrong data", Verdict.CLOSED)
        assert "@" in closed.by
        done = run("close", cluster, "--why=again")
        assert done.exit_code == 2
        assert "was closed at" in done.stderr


@pytest.mark.integration
def test_closing_without_a_reason_reports_the_user_and_no_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        done = run("close", cluster)
        assert done.exit_code == 0, done.output
        assert done.stdout.endswith(" by alice@node7: no reason was given\n")


@pytest.mark.integration
def test_all_nodes_receive_the_notice() -> None:
    with Cluster() as cluster:
        one, two = cluster.handler(1, 2, slot="a"), cluster.handler(1, 2, slot="b")
        cluster.join_all(one, two)
        done = run("notify", cluster, "--slot=b", "--why=the machine is taken away", "--in=2m")
        assert done.exit_code == 0, done.output
        assert "notice given: " in done.stdout
        for handler in (one, two):
            (notice,) = cluster.until(handler, lambda view: bool(view.notices)).notices
            assert (notice.node, notice.seconds) == (two.node_id, 120.0)
            assert notice.why == "the machine is taken away"
            assert "@" in notice.by


@pytest.mark.integration
def test_notice_for_an_unknown_node_lists_the_nodes() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1, slot="a"))
        for argv in (["--slot=b"], ["--node=b"], ["--address=b"]):
            done = run("notify", cluster, *argv)
            assert done.exit_code == 2
            assert "has no such node; its nodes: " in done.stderr
            assert "none" not in done.stderr


@pytest.mark.integration
def test_slot_that_is_the_beginning_of_an_id_is_excluded_as_a_slot() -> None:
    with Cluster() as cluster:
        handler = cluster.handler(1, 1, slot="b")
        while not handler.node_id.startswith("b"):
            handler = cluster.handler(1, 1, slot="b")
        cluster.join_all(handler)
        assert "excluded: slot b (by " in run("exclude", cluster, "--slot=b").stdout
