import pytest
from tests.cli.test_exclude import run
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.integration


def test_who_is_admitted_comes_back() -> None:
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


def test_all_are_admitted_at_once() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        assert "nobody was kept out" in run("admit", cluster, "--all").stdout
        for slot in "ab":
            run("exclude", cluster, f"--slot={slot}")
        assert ": slot a, slot b" in run("admit", cluster, "--all").stdout
        assert "nobody was kept out" in run("admit", cluster, "--all").stdout


def test_who_is_not_kept_out_is_answered_with_those_that_are() -> None:
    with Cluster() as cluster:
        cluster.join_all(cluster.handler(1, 1))
        done = run("admit", cluster, "--node=n7")
        assert (done.exit_code, "kept out are: nobody" in done.stderr) == (2, True)
        done = run("admit", cluster)
        assert (done.exit_code, "--slot and --all" in done.stderr) == (2, True)
        run("exclude", cluster, "--slot=b")
        done = run("admit", cluster, "--node=b")
        assert done.exit_code == 2
        assert f"--node b: it is not kept out of run '{cluster.run_id}'" in done.stderr
        assert done.stderr.endswith("kept out are: slot b\n")
