import pytest
from tests.cli.test_exclude import run
from tests.integration.nodes import Cluster

from rallypoint.rendezvous.core.state import Verdict

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
        done = run("close", cluster)
        assert done.exit_code == 2
        assert "was closed at" in done.stderr
