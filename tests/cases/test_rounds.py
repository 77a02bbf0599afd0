"""case-B6 and case-C1 to case-C9: how rounds begin, end and continue."""

import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.integration.cluster import Cluster, Mini, end
from tests.integration.harness import LIMIT_SECONDS, Fleet, Process, endpoint

from rallypoint.errors import RendezvousClosedError, RendezvousGracefulExitError
from rallypoint.rendezvous.handler import DynamicRendezvousHandler

pytestmark = pytest.mark.integration


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


def agents(fleet: Fleet, count: int, *options: str) -> list[Process]:
    return [fleet.agent(f"node{i}", *options) for i in range(count)]


def finish(fleet: Fleet, *processes: Process) -> None:
    fleet.release()
    for process in processes:
        process.finished()
    fleet.all_gone()


# -- case-B6 --------------------------------------------------------------------------------


@pytest.mark.cases("case-B6")
def test_two_of_ten_nodes_that_rejoin_first_form_no_round(cluster: Cluster) -> None:
    handlers = [cluster.handler(2, 10, last_call=0.05) for _ in range(10)]
    nodes = [Mini(handler) for handler in handlers]  # a node that misses it comes later
    seats = [node.sized(10) for node in nodes]
    for node in nodes:
        node.stop()
    early = [cluster.join(handler) for handler in handlers[:2]]
    cluster.wait_for("candidate", 2)
    for handler in handlers[2:]:
        opened = cluster.until(handler, lambda view: view.opened is not None).opened
        assert opened is not None
        assert "asked for a new round" in opened.why
    time.sleep(0.3)  # several last calls
    assert not any(future.done() for future in early)
    late = cluster.join_all(*handlers[2:])
    again = [*(future.result(LIMIT_SECONDS) for future in early), *late]
    assert {info.world_size for info in again} == {10}
    assert [info.rank for info in again] == [seat.rank for seat in seats]


# -- case-C1 --------------------------------------------------------------------------------


@pytest.mark.cases("case-C1")
def test_sigterm_to_one_agent_does_not_end_the_others(fleet: Fleet) -> None:
    options = ["--nnodes=1:3", f"--endpoint={endpoint()}", "--run-id=c1"]
    first, second, third = agents(fleet, 3, *options)
    three = {agent: agent.round(3) for agent in (first, second, third)}
    third.send(signal.SIGTERM)
    assert third.wait() == 128 + 15
    assert third.err.text == ""
    two = {agent: agent.round(2, three[agent]) for agent in (first, second)}
    assert "left: received SIGTERM" in first.out.text
    back = fleet.agent("back", *options)
    back.round(3)
    for agent in (first, second):
        agent.round(3, two[agent])
    finish(fleet, first, second, back)


# -- case-C2 --------------------------------------------------------------------------------


def leave_and_rejoin(cluster: Cluster, delay_seconds: float, same_handler: bool) -> str:
    """Make the third of three nodes leave and come back; return the outcome."""
    run_id = cluster.new_run_id()

    def node(number: int) -> DynamicRendezvousHandler:
        return cluster.handler(1, 3, run_id=run_id, local_addr=f"127.0.0.{number}", close=20)

    stay, goer = [Mini(node(1)), Mini(node(2))], node(3)
    ranks = [cluster.join(goer).result(30).rank, *(mini.sized(3, 30).rank for mini in stay)]
    goer.leave("to come back")
    between = "any"
    if delay_seconds >= 1:  # if it is away for less time, it may come before or after the two meet
        between = str({mini.wait_for(lambda seat: seat.round == 2, 30).size for mini in stay})
    time.sleep(delay_seconds)
    if not same_handler:
        goer = node(3)
    back = cluster.join(goer).result(30).assignment
    assert back is not None
    after = [mini.wait_for(lambda seat: seat.round == back.round, 30) for mini in stay]
    end(*stay)
    goer.leave()
    now = [back.rank, *(seat.rank for seat in after)]
    number = back.round if delay_seconds >= 1 or back.round > 3 else "2 or 3"
    return f"ranks {ranks} -> {now} of {back.size} in round {number}, between: {between}"


@pytest.mark.cases("case-C2")
def test_leaving_and_rejoining_always_has_the_same_outcome(cluster: Cluster) -> None:
    delays = [delay for delay in (0.0, 0.1, 1.0, 5.0, 20.0) for _ in range(20)]
    with ThreadPoolExecutor(len(delays)) as threads:
        asked = [
            threads.submit(leave_and_rejoin, cluster, delay, bool(i % 2))
            for i, delay in enumerate(delays)
        ]
        outcomes = {(delay, future.result(90)) for delay, future in zip(delays, asked, strict=True)}
    short = "ranks [2, 0, 1] -> [2, 0, 1] of 3 in round 2 or 3, between: any"
    long = "ranks [2, 0, 1] -> [2, 0, 1] of 3 in round 3, between: {2}"
    assert outcomes == {(delay, short if delay < 1 else long) for delay in delays}


# -- case-C3 --------------------------------------------------------------------------------


@pytest.mark.cases("case-C3")
def test_restarted_node_does_not_form_a_round_alone(fleet: Fleet) -> None:
    _server, where = fleet.server()
    options = ["--nnodes=1:2", f"--endpoint={where}", "--run-id=c3"]
    first, second = agents(fleet, 2, *options)
    first.round(2)
    before = second.round(2)
    first.kill()
    restarted = fleet.agent("restarted", *options)
    restarted.round(2)
    second.round(2, before)
    fleet.release()
    restarted.finished()
    second.finished()
    worlds = re.findall(r"work: round \d+ rank \d+ of (\d+)", restarted.out.text)
    assert set(worlds) == {"2"}


# -- case-C4 --------------------------------------------------------------------------------


@pytest.mark.cases("case-C4")
def test_late_node_joins_the_next_round(cluster: Cluster) -> None:
    members = [cluster.handler(2, 4, last_call=0.1) for _ in range(2)]
    cluster.join_all(*members)
    late = cluster.handler(2, 4)
    asked = cluster.join(late)
    parked = cluster.until(late, lambda view: view.parked is not None).parked
    assert parked is not None
    assert not parked.spare
    assert "the next one has room" in parked.why
    for member in members:
        cluster.until(member, lambda view: view.waiting == 1)
        assert member.num_nodes_waiting() == 1
    assert not asked.done()
    infos = cluster.join_all(*members)
    assert [info.world_size for info in (*infos, asked.result(5))] == [3, 3, 3]


# -- case-C5 --------------------------------------------------------------------------------


@pytest.mark.cases("case-C5")
def test_round_at_target_size_is_sealed_at_once(cluster: Cluster) -> None:
    handlers = [cluster.handler(2, 8, target_nodes=4, last_call=60) for _ in range(4)]
    began = time.monotonic()
    assert {info.world_size for info in cluster.join_all(*handlers)} == {4}
    assert {info.world_size for info in cluster.join_all(*handlers)} == {4}  # and each restart
    assert time.monotonic() - began < 5.0


@pytest.mark.cases("case-C5")
def test_two_newcomers_to_four_nodes_cost_one_round(fleet: Fleet) -> None:
    _server, where = fleet.server()
    options = ["--nnodes=2:6", f"--endpoint={where}", "--run-id=c5", "--last-call=4"]
    options.append("--monitor-interval=2")  # how long newcomers are gathered; processes are slow
    four = agents(fleet, 4, *options)
    before = {agent: agent.round(4) for agent in four}
    newcomers = [fleet.agent(f"new{i}", *options) for i in range(2)]
    six = [agent.round(6) for agent in newcomers]
    six += [agent.round(6, before[agent]) for agent in four]
    assert all("round 2:" in line.text for line in six)
    fleet.release()
    for agent in (*four, *newcomers):
        agent.finished()


# -- case-C6 --------------------------------------------------------------------------------


@pytest.mark.cases("case-C6")
def test_each_round_has_its_own_bootstrap_address(cluster: Cluster) -> None:
    nodes = [cluster.handler(2, 4, local_addr=f"127.0.0.{i}", target_nodes=4) for i in range(1, 5)]
    seen: set[tuple[str, int]] = set()
    for size in (4, 3, 2):
        infos = cluster.join_all(*nodes)
        assert {info.world_size for info in infos} == {size}
        places = {info.bootstrap_store_info for info in infos}
        (place,) = {(p.master_addr, p.master_port) for p in places if p is not None}
        leader = nodes[[info.rank for info in infos].index(0)]
        first = infos[0].participants[0]
        assert place == (first.address, first.port)
        assert place not in seen
        assert place[0] not in {address for address, _ in seen}  # another node's
        seen.add(place)
        nodes.remove(leader)
        if size > 2:
            leader.leave("rank 0 goes")
    assert len(seen) == 3


# -- case-C7 --------------------------------------------------------------------------------


@pytest.mark.cases("case-C7")
def test_run_id_is_given_or_generated(fleet: Fleet) -> None:
    fleet.release()
    missing = fleet.agent("missing", "--nnodes=2", f"--endpoint={endpoint()}")
    assert missing.wait() == 2
    assert "--run-id is missing" in missing.err.text
    argv = ["--no-python", "--standalone", sys.executable, "-c"]
    say = "import os; print('id', os.environ['RALLYPOINT_RUN_ID'])"
    runs = [fleet.rallypoint(f"run{i}", "run", *argv, say) for i in range(2)]
    for run in runs:
        run.finished()
    assert len({run.expect("^id ").text for run in runs}) == 2


@pytest.mark.cases("case-C7")
def test_finished_run_id_is_refused_or_reopened(fleet: Fleet) -> None:
    fleet.release()
    _server, where = fleet.server()
    options = ["--nnodes=1:2", f"--endpoint={where}", "--run-id=c7", "--last-call=0.1"]
    fleet.agent("first", *options).finished()
    again = fleet.agent("again", *options)
    assert again.wait() == 4
    (line,) = again.err.text.splitlines()
    assert re.search(r"run 'c7' finished at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC by .* pid", line)
    assert "the only node of round 1 finished" in line
    assert "use a new run id, or --new-incarnation (new_incarnation) to open it again" in line
    fleet.agent("afresh", *options, "--new-incarnation").finished()


# -- case-C8 --------------------------------------------------------------------------------

VICTIM = """
import os, signal, socket, sys, time
from rallypoint.deadline import Deadline
from rallypoint.rendezvous import wire
from rallypoint.core.events import Join
from rallypoint.core.state import Node
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.net import protocol
from rallypoint.net.connection import ConnectionConfig, open_connection

step, run_id, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if step == "connect":
    link = socket.create_connection(("127.0.0.1", port))
else:
    link = open_connection(ConnectionConfig("127.0.0.1", port, run_id, b""), Deadline(10))
    if step != "handshake":
        node = Node(id="victim", address="127.0.0.1", port=1, pid=os.getpid())
        core = RendezvousSettings(run_id, 2, 3).core()
        link.send(protocol.frame(wire.Ask(0, Join(node, core))))
    if step == "sealed":
        while not any(b"Seated" in bytes(data) for data in link.receive()):
            pass
print("there", flush=True)
time.sleep(60)
"""


@pytest.mark.cases("case-C8")
@pytest.mark.parametrize("step", ["connect", "handshake", "join sent", "sealed"])
def test_node_killed_while_joining_blocks_no_round(
    fleet: Fleet, cluster: Cluster, step: str
) -> None:
    args = (step, cluster.run_id, str(cluster.server.port))
    victim = fleet.start("victim", sys.executable, "-c", VICTIM, *args)
    last_call = 20.0 if step == "sealed" else 0.2
    nodes = [Mini(cluster.handler(2, 3, last_call=last_call))]
    if step == "sealed":
        nodes.append(Mini(cluster.handler(2, 3)))
        assert nodes[1].sized(3).round == 1
    victim.expect("there")
    killed_at = victim.kill()
    if step != "sealed":
        nodes.append(Mini(cluster.handler(2, 3)))
    seats = [node.sized(2) for node in nodes]
    took = time.monotonic() - killed_at
    assert took < 1.0 + 1.0, f"{took:.2f} s"  # disconnect_grace, and some
    assert seats[0].round == seats[1].round
    end(*nodes)


# -- case-C9 --------------------------------------------------------------------------------

FAULTY = """
import sys
from rallypoint.agent import loop as agent
from rallypoint.cli import main

def broken(*_):
    raise KeyError("a fault of this agent")

setattr(agent.Agent, sys.argv.pop(1), broken)
main(prog_name="rallypoint")
"""


@pytest.mark.cases("case-C9")
@pytest.mark.parametrize("where", ["_start_workers", "_next_event"])
def test_agent_exception_leaves_the_run_open(fleet: Fleet, where: str) -> None:
    _server, server = fleet.server()
    options = ["--nnodes=1:3", f"--endpoint={server}", "--run-id=c9", "--target-nodes=3"]
    good = agents(fleet, 2, *options)
    argv = [where, "run", *options, "worker.py", str(fleet.stop_file)]
    if where == "_next_event":
        argv.insert(2, "--max-restarts=3")
    faulty = fleet.start("faulty", sys.executable, "-c", FAULTY, *argv)
    assert faulty.wait() == 1
    assert "internal error, this node leaves" in faulty.err.text
    assert "KeyError: 'a fault of this agent'" in faulty.err.text
    fleet.agent("another", *options) if where == "_next_event" else None
    size = 3 if where == "_next_event" else 2
    for agent in good:
        agent.round(size)
    fleet.release()
    for agent in good:
        agent.finished()


@pytest.mark.cases("case-C9")
def test_only_set_closed_closes_a_run(cluster: Cluster) -> None:
    nodes = [cluster.handler(2, 2) for _ in range(2)]
    cluster.join_all(*nodes)
    nodes[0].shutdown()
    assert not nodes[1].is_closed()
    nodes[1].set_closed("enough")
    third = cluster.handler(2, 2)
    with pytest.raises(RendezvousClosedError, match="enough"):
        third.next_rendezvous()


@pytest.mark.cases("case-C7")
def test_waiting_nodes_end_when_the_run_finishes(cluster: Cluster) -> None:
    nodes = [cluster.handler(2, 2) for _ in range(2)]
    cluster.join_all(*nodes)
    spare = cluster.handler(2, 2)
    asked = cluster.join(spare)
    cluster.wait_for("spare", 1)
    for node in nodes:
        node.finish()
    assert isinstance(asked.exception(5), RendezvousGracefulExitError)
