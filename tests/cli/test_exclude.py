import pytest
from click.testing import CliRunner, Result
from tests.integration.cluster import Cluster

from rallypoint.cli import main
from rallypoint.core.events import Refusal

pytestmark = pytest.mark.integration


def run(command: str, cluster: Cluster, *argv: str) -> Result:
    where = f"--endpoint=127.0.0.1:{cluster.server.port}"
    return CliRunner().invoke(main, [command, cluster.run_id, where, *argv])


def test_a_node_is_kept_out_for_a_while_and_status_shows_it() -> None:
    with Cluster() as cluster:
        one, two = cluster.handler(1, 2, slot="a"), cluster.handler(1, 2, slot="b")
        cluster.join_all(one, two)
        done = run("exclude", cluster, f"--node={two.node_id[:8]}", "--for=2h", "--why=bad memory")
        assert done.exit_code == 0, done.output
        assert f"kept out of run '{cluster.run_id}' for 2 h: " in done.stdout
        assert "was excluded by" in done.stdout
        fenced = cluster.until(two, lambda view: view.fenced is not None).fenced
        assert fenced is not None
        assert fenced.refusal is Refusal.EXCLUDED
        assert "for 7200 s: bad memory" in fenced.why
        where = f"--endpoint=127.0.0.1:{cluster.server.port}"
        shown = CliRunner().invoke(main, ["status", where]).stdout
        assert f"kept out node {two.node_id}, 1 h 59 min more: bad memory (by " in shown


def test_a_slot_is_kept_out_before_anybody_comes() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 2, target_nodes=1))
        done = run("exclude", cluster, "--slot=pod-3")
        assert done.exit_code == 0, done.output
        assert "until it is admitted: slot pod-3 (nobody yet)" in done.stdout


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--node=nobody"], "has no such node; there are: "),
        ([], "no node given: give one of"),
        (["--node=x", "--for=soon"], "'soon' is no duration"),
    ],
)
def test_bad_input_is_code_2(argv: list[str], words: str) -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        done = run("exclude", cluster, *argv)
        assert (done.exit_code, words in done.stderr) == (2, True), done.output
