"""case-B1: the others learn of a dead member and continue without it; no restart is counted."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.harness import Fleet, Process, Proxy, proxy_to

pytestmark = pytest.mark.integration

LEASE_SECONDS = 2.0
GRACE_SECONDS = 1.0


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


def kill(victim: Process, _cable: Proxy) -> Callable[[], object]:
    victim.kill()
    return lambda: None


def stop(victim: Process, _cable: Proxy) -> Callable[[], object]:
    victim.send(signal.SIGSTOP)
    return lambda: victim.send(signal.SIGCONT)


def cut(_victim: Process, cable: Proxy) -> Callable[[], object]:
    cable.cut()
    return cable.mend


WAYS = {
    "kill -9": (kill, GRACE_SECONDS, "its connection closed and it did not reconnect within"),
    "SIGSTOP": (stop, LEASE_SECONDS, "its lease lapsed"),
    "network cut": (cut, LEASE_SECONDS, "its lease lapsed"),
}


@pytest.mark.cases("case-B1")
@pytest.mark.parametrize("way", WAYS)
def test_others_learn_which_node_is_lost_and_continue_as_two(fleet: Fleet, way: str) -> None:
    end_of, limit, why = WAYS[way]
    _server, where = fleet.server()
    options = ["--nnodes=2:3", "--run-id=b1", f"--lease={LEASE_SECONDS}"]
    options += ["--rejoin-timeout=15", "--stop-grace=14"]
    with proxy_to(where) as cable:
        victim = fleet.agent("victim", *options, f"--endpoint={cable.endpoint}")
        good = [fleet.agent(f"node{i}", *options, f"--endpoint={where}") for i in range(2)]
        victim.round(3)
        three = [agent.round(3) for agent in good]

        began = time.monotonic()
        come_back = end_of(victim, cable)
        told = [agent.expect(f"joining .* pid {victim.pid} was lost: {why}", line)
                for agent, line in zip(good, three, strict=True)]  # fmt: skip
        two = [agent.round(2, line) for agent, line in zip(good, told, strict=True)]
        detected = max(line.at for line in told) - began
        formed = max(line.at for line in two) - began
        print(
            f"figures: {way}: detected {detected * 1000:.0f} ms, re-formed {formed * 1000:.0f} ms"
        )
        assert detected < limit + 1.0
        assert formed < limit + 2.0

        come_back()
        if way == "kill -9":
            victim = fleet.agent("another", *options, f"--endpoint={where}")
        for agent, line in zip(good, two, strict=True):
            agent.round(3, line)
        back = victim.expect("round [3-9]: rank . of 3 nodes")  # L2: it is notified, and a newcomer
        if way != "kill -9":
            assert victim.expect("joining the next round: was fenced").number < back.number
        fleet.release()
        for agent in good:
            agent.finished()
        assert victim.wait() == 0
        allowed = ("reconnecting", "reconnected") if way != "kill -9" else ()
        for line in victim.err.lines:  # it was disconnected, and may say so
            assert any(word in line.text for word in allowed), victim.shown()


# Two connected workers; each fails as soon as the connection to the other breaks.
TALKING_WORKER = """
import os, socket, sys, time

e = os.environ
print(f"work: {e['WORLD_SIZE']} workers, restarts {e['TORCHELASTIC_RESTART_COUNT']}", flush=True)
if e["WORLD_SIZE"] == "1":
    sys.exit(0)
place = (e["MASTER_ADDR"], int(e["MASTER_PORT"]))
if e["RANK"] == "0":
    peer, _ = socket.create_server(place).accept()
else:
    while True:
        try:
            peer = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.02)
print("connected", flush=True)
peer.recv(1)
sys.exit(7)
"""


@pytest.mark.cases("case-B1")
@pytest.mark.parametrize("backend", ["file", "hosted"])
@pytest.mark.parametrize("rank", [0, 1])
def test_worker_failures_caused_by_a_lost_node_use_no_budget(
    fleet: Fleet, backend: str, rank: int
) -> None:
    (fleet.folder / "talk.py").write_text(TALKING_WORKER, encoding="utf-8")
    where = [f"--endpoint={fleet.folder / 'job'}", "--backend=file"]
    if backend == "hosted":
        where = [f"--endpoint={fleet.server()[1]}"]
    options = ["--nnodes=1:2", "--run-id=b1", f"--lease={LEASE_SECONDS}", "--max-restarts=0"]
    agents = [fleet.agent(f"node{i}", *options, *where, "talk.py") for i in range(2)]
    seats = [agent.round(2) for agent in agents]
    for agent in agents:
        agent.expect("connected")
    (lost,) = (i for i, seat in enumerate(seats) if f"rank {rank} of" in seat.text)
    victim, survivor = agents[lost], agents[1 - lost]

    victim.kill()  # its worker dies too; over a file, others notice only when its lease ends
    failed = survivor.expect(r"a worker of this node failed: .*: exit code 7")
    survivor.round(1, failed)
    survivor.expect("work: 1 workers, restarts 0", failed)
    assert survivor.wait() == 0, survivor.shown()


@pytest.mark.parametrize("backend", ["file", "hosted"])
def test_worker_failure_without_a_lost_node_ends_the_run(fleet: Fleet, backend: str) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(60)\n"
    (fleet.folder / "fails.py").write_text(script, encoding="utf-8")
    where = [f"--endpoint={fleet.folder / 'job'}", "--backend=file"]
    if backend == "hosted":
        where = [f"--endpoint={fleet.server()[1]}"]
    options = ["--nnodes=2", "--run-id=b1", "--max-restarts=0", *where, "fails.py"]
    agents = [fleet.agent(f"node{i}", *options) for i in range(2)]
    for agent in agents:
        assert agent.wait() == 1, agent.shown()
        text = agent.out.text + agent.err.text
        assert "a worker failed and max_restarts=0 is used up: rank 1 (local 0) on " in text
