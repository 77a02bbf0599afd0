import pytest
from tests.cli.test_exclude import run
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.integration


def test_all_nodes_are_told_who_will_leave_and_when() -> None:
    with Cluster() as cluster:
        one, two = cluster.handler(1, 2, slot="a"), cluster.handler(1, 2, slot="b")
        cluster.join_all(one, two)
        done = run("notify", cluster, "--slot=b", "--why=the machine is taken away", "--in=2m")
        assert done.exit_code == 0, done.output
        assert "notice was given: " in done.stdout
        for handler in (one, two):
            (notice,) = cluster.until(handler, lambda view: bool(view.notices)).notices
            assert (notice.node, notice.seconds) == (two.node_id, 120.0)
            assert notice.why == "the machine is taken away"
            assert "@" in notice.by


def test_a_name_that_means_nobody_is_answered_with_those_that_are_there() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1, slot="a"))
        for argv in (["--slot=b"], ["--node=b"], ["--address=b"]):
            done = run("notify", cluster, *argv)
            assert done.exit_code == 2
            assert "has no such node; there are: " in done.stderr
            assert "nobody" not in done.stderr
