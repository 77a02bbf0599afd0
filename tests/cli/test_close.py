import pytest
from tests.cli.test_exclude import run
from tests.integration.cluster import Cluster

from rallypoint.core.state import Verdict

pytestmark = pytest.mark.integration


def test_a_run_is_closed_for_all_and_only_once() -> None:
    with Cluster() as cluster:
        one = cluster.handler(1, 1)
        cluster.join_all(one)
        done = run("close", cluster, "--why=wrong data")
        assert done.exit_code == 0, done.output
        assert f"run '{cluster.run_id}' is closed" in done.stdout
        closed = cluster.until(one, lambda view: view.closed is not None).closed
        assert closed is not None
        assert (closed.why, closed.verdict) == ("wrong data", Verdict.CLOSED)
        assert "@" in closed.by
        done = run("close", cluster, "--why=again")
        assert done.exit_code == 2
        assert "was closed at" in done.stderr


def test_who_closes_a_run_without_a_reason_is_told_and_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        done = run("close", cluster)
        assert done.exit_code == 0, done.output
        assert done.stdout.endswith(" by alice@node7: no reason was given\n")
