"""`rallypoint run` besides the main job: failures, output, Ctrl-C."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.harness import Fleet, Process, endpoint, free_port, outer_address

from rallypoint.errors import RendezvousStateError
from rallypoint.rendezvous.api import RendezvousParameters
from rallypoint.rendezvous.registry import get_rendezvous_handler

pytestmark = pytest.mark.integration

FAILING = """
import os, pathlib, sys, time
rank, stop = os.environ["RANK"], pathlib.Path(sys.argv[1])
print("started", rank, os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
while rank == "0" and not stop.exists():
    time.sleep(0.02)
if rank == "0" and not pathlib.Path("well").exists():
    print("about to fail", file=sys.stderr)
    [][int(rank)]
while not pathlib.Path("end").exists():
    time.sleep(0.02)
"""

CHATTY = """
import os, sys
line = os.environ["RANK"] + " " + "x" * 99 + "\\n"
for i in range(20_000):
    sys.stdout.write(line)
    if i % 10 == 0:
        sys.stderr.write(line)
"""

# Like gloo, it fails as soon as the connection to its peer breaks.
PAIRED = """
import os, socket, time
port, world = int(os.environ["MASTER_PORT"]), os.environ["WORLD_SIZE"]
if world == "2":
    if os.environ["RANK"] == "0":
        peer, _ = socket.create_server(("127.0.0.1", port)).accept()
    else:
        while True:
            try:
                peer = socket.create_connection(("127.0.0.1", port))
                break
            except OSError:
                time.sleep(0.02)
    print("paired", flush=True)
    peer.recv(1)
    raise ConnectionResetError("the peer is gone")
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        (tmp_path / "failing.py").write_text(FAILING, encoding="utf-8")
        (tmp_path / "chatty.py").write_text(CHATTY, encoding="utf-8")
        yield started


def pair(fleet: Fleet, *options: str) -> list[Process]:
    """Start two agents of the failing worker."""
    shared = ["--nnodes=2", f"--endpoint={endpoint()}", "--run-id=user", *options]
    argv = [*shared, "failing.py", str(fleet.stop_file)]
    agents = [fleet.rallypoint(f"node{i}", "run", *argv) for i in range(2)]
    for agent in agents:
        agent.expect(r"^started \d 0")
    return agents


def test_all_nodes_report_the_first_failure(fleet: Fleet) -> None:
    agents = pair(fleet, "--max-restarts=0")
    fleet.release()
    failed = next(agent for agent in agents if "started 0" in agent.out.text)
    for agent in agents:
        assert agent.wait() == 1
        text = agent.err.text
        assert "max_restarts=0 is used up" in text
        report = text[text.index("first failure: ") :]
        for part in (
            rf"on \S+ pid {failed.pid}:", "rank 0", "exit code 1",
            r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", r"\| about to fail", r"\| Traceback",
            r"\| IndexError: list index out of range",
        ):  # fmt: skip
            assert re.search(part, report), f"{part!r} is not in:\n{agent.shown()}"
        assert "rallypoint/" not in report  # no traceback of ours
    fleet.all_gone()


def test_failure_within_max_restarts_starts_a_new_round(fleet: Fleet) -> None:
    agents = pair(fleet, "--max-restarts=1")
    (fleet.folder / "well").touch()
    failed = next(agent for agent in agents if "started 0" in agent.out.text)
    (fleet.folder / "well").unlink()
    fleet.release()
    failed.expect("a worker of this node failed: .*rank 0")
    (fleet.folder / "well").touch()
    for agent in agents:
        agent.expect(r"round 2: rank \d of 2 nodes")
    (fleet.folder / "end").touch()
    for agent in agents:
        assert agent.wait() == 0
    assert "IndexError" in failed.err.text
    fleet.all_gone()


def test_restart_budget_is_shared_and_counted_once(fleet: Fleet) -> None:
    agents = pair(fleet, "--max-restarts=1")
    fleet.release()  # it fails in every round
    for agent in agents:
        assert agent.wait() == 93
        agent.expect("round 2: rank")
        assert "max_restarts=1 is used up" in agent.err.text
        assert "in round 2" in agent.err.text
        assert "round 3" not in agent.out.text
    fleet.all_gone()


@pytest.mark.cases("case-B1")
def test_worker_failures_caused_by_a_lost_peer_cost_no_restart(fleet: Fleet) -> None:
    (fleet.folder / "paired.py").write_text(PAIRED, encoding="utf-8")
    shared = ["--nnodes=1:2", f"--endpoint={endpoint()}", "--run-id=paired", "--max-restarts=0"]
    agents = [fleet.rallypoint(f"node{i}", "run", *shared, "paired.py") for i in range(2)]
    for agent in agents:
        agent.expect("^paired")
    agents[0].kill()
    agents[1].round(1)
    assert agents[1].wait() == 0
    assert "ConnectionResetError: the peer is gone" in agents[1].err.text
    assert "rallypoint:" not in agents[1].err.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_agent_and_its_workers(fleet: Fleet, number: signal.Signals) -> None:
    agent = fleet.agent("node", "--standalone", "--nproc-per-node=2")
    lines = [agent.expect(f"work: round 1 rank {rank} of 2") for rank in range(2)]
    workers = [psutil.Process(int(line.text.split()[-1])) for line in lines]
    began = time.monotonic()
    agent.send(number)
    agent.expect(f"received {number.name}: stopping the workers within 30 s; send it again")
    assert agent.wait() == 128 + number
    assert time.monotonic() - began < 5.0
    assert agent.err.text == ""
    assert not any(worker.is_running() for worker in workers)
    if number == signal.SIGINT:  # once: the server lingers for three seconds
        fleet.all_gone()


def test_ctrl_c_ends_a_join_that_waits(fleet: Fleet) -> None:
    agent = fleet.agent("node", "--nnodes=2", f"--endpoint={endpoint()}", "--run-id=alone")
    agent.expect("1 of 2 nodes, waiting for 1: not heard of yet; join timeout in 9 min")
    began = time.monotonic()
    agent.send(signal.SIGINT)
    assert agent.wait() == 128 + signal.SIGINT
    assert time.monotonic() - began < 3.0
    assert agent.err.text == ""
    fleet.all_gone()


def test_workers_may_print_a_lot(fleet: Fleet) -> None:
    agent = fleet.rallypoint("node", "run", "--standalone", "--nproc-per-node=2", "chatty.py")
    assert agent.wait(40.0) == 0
    said = [line.text for line in agent.out.lines]
    whole = [f"{rank} {'x' * 99}" for rank in "01"]
    assert {text: said.count(text) for text in whole} == dict.fromkeys(whole, 20_000)
    assert agent.err.text.count("x") == 2 * 2_000 * 99


def test_output_redirection_and_tee(fleet: Fleet) -> None:
    say = (
        "import os, sys; r = os.environ['RANK']; print('out', r); print('err', r, file=sys.stderr)"
    )
    (fleet.folder / "say.py").write_text(say, encoding="utf-8")
    shared = ["run", "--standalone", "--nproc-per-node=2", "--log-dir=logs"]
    silent = fleet.rallypoint("silent", *shared, "--run-id=a", "--redirects=3", "say.py")
    silent.finished()
    assert silent.out.text == ""
    shown = fleet.rallypoint("shown", *shared, "--run-id=b", "--tee=3", "--role=trainer", "say.py")
    assert shown.wait() == 0
    node = socket.gethostname()
    lines = [f"[{node} trainer {rank}]: out {rank}" for rank in range(2)]
    assert sorted(shown.out.text.split("\n")) == lines
    assert sorted(shown.err.text.split("\n")) == [line.replace("out", "err") for line in lines]
    for run in "ab":
        for rank in "01":
            folder = fleet.folder / "logs" / run / "round_1" / rank
            assert (folder / "stdout.log").read_text() == f"out {rank}\n"
            assert (folder / "stderr.log").read_text() == f"err {rank}\n"


@pytest.mark.cases("case-A5")
def test_server_starts_once_its_port_becomes_free(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as former:
        where = f"127.0.0.1:{former.getsockname()[1]}"
        options = ["--nnodes=2", f"--endpoint={where}", "--run-id=later", "--join-timeout=30"]
        agents = [fleet.agent(f"node{i}", *options) for i in range(2)]
        for _ in agents:  # both found the port used, and connected to another program
            former.accept()[0].close()
    for agent in agents:
        agent.round(2)
    fleet.release()
    for agent in agents:
        assert agent.wait() == 0


def test_run_on_another_address_with_a_token(fleet: Fleet) -> None:
    address = outer_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    fleet.env["RALLYPOINT_TOKEN"] = "a-secret-that-all-share"
    where = f"{address}:{free_port(address)}"
    options = ["--nnodes=2", f"--endpoint={where}", "--run-id=off-loopback"]
    agents = [fleet.agent(f"node{i}", *options) for i in range(2)]
    for agent in agents:
        agent.expect(rf"work: round 1 rank \d of 2 at {re.escape(address)}:\d+")
    secret = "a-secret-that-all-share"
    assert not any(secret in " ".join(process.cmdline()) for process in fleet.left())
    fleet.release()
    for agent in agents:
        agent.finished()


@pytest.mark.cases("case-G3")
def test_workers_of_a_killed_agent_are_gone(fleet: Fleet) -> None:
    agent = fleet.agent("node", "--standalone", "--nproc-per-node=2")
    lines = [agent.expect(f"work: round 1 rank {rank} of 2") for rank in range(2)]
    workers = [psutil.Process(int(line.text.split()[-1])) for line in lines]
    agent.kill()
    _gone, alive = psutil.wait_procs(workers, 2.0)
    assert not alive
    fleet.all_gone()


@pytest.mark.parametrize("backend", ["core", "file"])
@pytest.mark.parametrize("way", ["leave", "shutdown"])
def test_node_that_leaves_while_joining_is_released_at_once(
    tmp_path: Path, backend: str, way: str
) -> None:
    where = "127.0.0.1:0" if backend == "core" else str(tmp_path / "job")
    params = RendezvousParameters(backend, where, "let-go", 2, 2, config={"join": 60})
    handler = get_rendezvous_handler(params)
    ended: list[BaseException] = []

    def join() -> None:
        with pytest.raises(RendezvousStateError, match="left while it was joining") as caught:
            handler.next_rendezvous()
        ended.append(caught.value)

    thread = threading.Thread(target=join)
    thread.start()
    while not handler.report().members:  # type: ignore[attr-defined]
        time.sleep(0.01)
    getattr(handler, way)()
    thread.join(5.0)
    assert ended
    handler.shutdown()


QUIET = """
import os, pathlib, sys
for i in range(2000):
    print("x" * 99, file=sys.stderr)
pathlib.Path(os.environ["RALLYPOINT_ROUND"]).touch()
sys.exit(int(sys.argv[1]) if os.environ["RALLYPOINT_ROUND"] == "1" else 0)
"""


@pytest.mark.parametrize("console", ["> /dev/full 2>&1", "2>&1 | head -n 1 > /dev/null"])
def test_unwritable_console_does_not_end_the_job(fleet: Fleet, console: str) -> None:
    (fleet.folder / "quiet.py").write_text(QUIET, encoding="utf-8")
    line = f"run --standalone --max-restarts=1 quiet.py 7 {console}; exit ${{PIPESTATUS[0]}}"
    argv = ["bash", "-c", f"{sys.executable} -m rallypoint {line}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RALLYPOINT_")}
    done = subprocess.run(argv, cwd=fleet.folder, env=environment, timeout=60, check=False)
    assert done.returncode == 0
    assert (fleet.folder / "2").exists()
