"""Rows D2 and D4: the host's node may finish first, and a normal end is silent."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.harness import Fleet, endpoint

pytestmark = pytest.mark.integration

MEETING_WORKER = """
import sys
from rallypoint import worker
worker.store().set(f"hello/{worker.rank()}", b"x")
worker.barrier()
names = worker.all_gather(f"rank {worker.rank()}".encode())
assert len(names) == worker.world_size() == 8
if worker.rank() == 3:
    print("a worker's own line", file=sys.stderr)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


@pytest.mark.cases("D2")
def test_the_hosts_node_finishes_first(fleet: Fleet) -> None:
    options = ["--nnodes=2:3", f"--endpoint={endpoint()}", "--run-id=d2", "--target-nodes=2"]
    stops = [fleet.folder / f"stop{i}" for i in range(2)]
    host = fleet.agent("host", *options, "worker.py", str(stops[0]))
    (server,) = _wait_for_server(fleet)
    other = fleet.agent("other", *options, "worker.py", str(stops[1]))
    host.round(2)
    other.round(2)
    other.expect("work: round 1")
    stops[0].touch()
    host.finished()
    assert server.is_running()
    with pytest.raises(psutil.TimeoutExpired):
        server.wait(4.0)  # longer than it lingers once it is empty
    assert other.is_running()
    assert len(other.out.lines) == 2  # undisturbed
    stops[1].touch()
    other.finished()
    fleet.all_gone()


def _wait_for_server(fleet: Fleet) -> list[psutil.Process]:
    while not (found := fleet.servers()):
        assert fleet.processes[0].is_running()
    return found


@pytest.mark.cases("D4")
def test_a_normal_run_of_eight_is_silent_on_stderr(fleet: Fleet) -> None:
    (fleet.folder / "meet.py").write_text(MEETING_WORKER, encoding="utf-8")
    options = ["--nnodes=8", f"--endpoint={endpoint()}", "--run-id=d4", "meet.py"]
    agents = [fleet.rallypoint(f"node{i}", "run", *options) for i in range(8)]
    assert [agent.wait(40.0) for agent in agents] == [0] * 8
    said = sorted(agent.err.text for agent in agents)
    assert said == [""] * 7 + ["a worker's own line"], said
    fleet.all_gone()
