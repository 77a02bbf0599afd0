"""case-D1, case-D2, case-D4: the server dies, its node finishes first, a normal end is silent."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from tests.cases.outage import Crowd, SteadyNode
from tests.integration.harness import Fleet, Process, endpoint

from rallypoint.core.events import WaitingChanged
from rallypoint.rendezvous import wire

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


def _serve(fleet: Fleet, name: str, where: str) -> Process:
    """Start a server that keeps its runs in the same directory each time."""
    data = fleet.folder / "data"
    server = fleet.rallypoint(name, "serve", f"--bind={where}", f"--data-dir={data}")
    server.expect(r"^serving on ")
    server.expect(rf"^durable: directory {data}")
    return server


@pytest.mark.cases("case-D1")
def test_restarting_a_killed_server_costs_no_worker(fleet: Fleet) -> None:
    where = endpoint()
    server = _serve(fleet, "server0", where)
    options = ["--nnodes=3", f"--endpoint={where}", "--run-id=d1"]
    agents = [fleet.agent(f"node{i}", *options) for i in range(3)]
    works = [agent.expect("^work: round 1 rank") for agent in agents]
    pids = [int(line.text.rpartition(" ")[2]) for line in works]
    for number in (1, 2):
        server.kill()
        server = _serve(fleet, f"server{number}", where)
        for agent in agents:
            agent.expect_error("reconnected to", times=number)
    shown = fleet.rallypoint("status", "status", "--run-id=d1", f"--endpoint={where}", "--json")
    assert shown.wait() == 0, shown.shown()
    (run,) = json.loads(shown.out.text)["runs"]
    assert (run["phase"], run["round"], run["incarnation"]) == ("sealed", 1, 1)
    assert [member["connected"] for member in run["members"]] == [True] * 3
    assert all(psutil.pid_exists(pid) for pid in pids)
    fleet.release()
    assert [agent.wait() for agent in agents] == [0, 0, 0]
    assert [agent.out.text.count("work: round") for agent in agents] == [1, 1, 1]


@pytest.mark.cases("case-D1")
def test_two_hundred_nodes_resume_in_the_same_round(fleet: Fleet) -> None:
    where = endpoint()
    servers = [_serve(fleet, "server0", where)]

    async def outlive() -> None:
        crowd = Crowd(int(where.rpartition(":")[2]), 200)
        await crowd.connect()
        await crowd.until(lambda node: node.seat is not None)
        seats = [node.seat for node in crowd.nodes]
        for number in (1, 2):
            servers[-1].kill()
            servers.append(await asyncio.to_thread(_serve, fleet, f"server{number}", where))
            await crowd.until(lambda node, n=number: len(node.welcomes) > n)
        crowd.nodes[0].write(wire.Inquire(1))
        await crowd.until(lambda node: node.number or node.report)
        _judge(crowd.nodes, seats)
        for node in crowd.nodes:
            node.leave()

    asyncio.run(outlive())


def _judge(nodes: list[SteadyNode], seats: Sequence[object]) -> None:
    assert [node.seat for node in nodes] == seats
    told = [m for node in nodes for m in node.told if not isinstance(m, WaitingChanged)]
    assert told == []
    assert all(w.resumed for node in nodes for w in node.welcomes[1:])
    epochs = {tuple(w.epoch for w in node.welcomes) for node in nodes}
    assert epochs == {(1, 2, 3)}
    report = nodes[0].report
    assert report is not None
    assert (report.phase, report.round, report.incarnation) == ("sealed", 1, 1)
    assert len(report.members) == 200
    assert all(member.connected for member in report.members)


@pytest.mark.cases("case-D2")
def test_server_stays_when_its_node_finishes_first(fleet: Fleet) -> None:
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
        server.wait(4.0)  # longer than it lingers without members
    assert other.is_running()
    assert len(other.out.lines) == 2  # undisturbed
    stops[1].touch()
    other.finished()
    fleet.all_gone()


def _wait_for_server(fleet: Fleet) -> list[psutil.Process]:
    while not (found := fleet.servers()):
        assert fleet.processes[0].is_running()
    return found


@pytest.mark.cases("case-D4")
def test_normal_run_of_eight_nodes_is_silent_on_stderr(fleet: Fleet) -> None:
    (fleet.folder / "meet.py").write_text(MEETING_WORKER, encoding="utf-8")
    options = ["--nnodes=8", f"--endpoint={endpoint()}", "--run-id=d4", "meet.py"]
    agents = [fleet.rallypoint(f"node{i}", "run", *options) for i in range(8)]
    assert [agent.wait(40.0) for agent in agents] == [0] * 8
    said = sorted(agent.err.text for agent in agents)
    assert said == [""] * 7 + ["a worker's own line"], said
    fleet.all_gone()
