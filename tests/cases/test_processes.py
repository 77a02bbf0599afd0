"""case-D3 and case-G1 to case-G3: an agent ends its workers properly, however it ends."""

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.harness import Fleet, Process, endpoint

pytestmark = pytest.mark.integration

GONE_SECONDS = 2.0
MOMENTS = int(os.environ.get("RALLYPOINT_KILLS", "10"))  # 50 of them: RALLYPOINT_KILLS=50

# A worker with a child, one in a session of its own, a daemon without parents, and a port.
PARENT = """
import os, socket, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
time.sleep(600)
"""
STRANGER = "import sys, time; print('here', flush=True); time.sleep(600)"

# A worker that needs argv[1] seconds to end by itself.
SLOW = """
import signal, sys, time
def end(number, frame):
    print("asked", flush=True)
    time.sleep(float(sys.argv[1]))
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
while True:
    time.sleep(60)
"""

HEARS = """
import os, signal, subprocess, sys, time
def heard(number, frame):
    print("heard", signal.Signals(number).name, flush=True)
for name in ("SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), heard)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", os.getpid(), flush=True)
while child.poll() is None:
    time.sleep(0.02)
print("the child has died")
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


def script(fleet: Fleet, name: str, text: str) -> str:
    (fleet.folder / name).write_text(text, encoding="utf-8")
    return name


# -- case-D3 --------------------------------------------------------------------------------

TIRED = """
import os, sys, time
print("up", flush=True)
time.sleep(float(sys.argv[1 + int(os.environ["RANK"])]))
sys.exit(int(sys.argv[3]) if os.environ["RANK"] == "0" else 0)
"""


@pytest.mark.cases("case-D3")
def test_each_node_leaves_as_soon_as_it_is_done(fleet: Fleet) -> None:
    _server, where = fleet.server()
    tired = script(fleet, "tired.py", TIRED)
    options = ["--nnodes=2", f"--endpoint={where}", "--run-id=d3", tired, "0", "6", "0"]
    first = fleet.agent("first", *options, env={"RALLYPOINT_NODE_RANK": "0"})
    second = fleet.agent("second", *options, env={"RALLYPOINT_NODE_RANK": "1"})
    began = second.expect("up").at
    first.finished()
    assert time.monotonic() - began < 5.0, "it has waited for the other"
    assert second.is_running()
    second.finished()


@pytest.mark.cases("case-D3")
def test_all_nodes_learn_of_a_failure_at_once(fleet: Fleet) -> None:
    _server, where = fleet.server()
    tired = script(fleet, "tired.py", TIRED)
    options = ["--nnodes=3", f"--endpoint={where}", "--run-id=d3", "--max-restarts=0"]
    agents = [fleet.agent(f"node{i}", *options, tired, "1", "600", "7") for i in range(3)]
    assert [agent.wait() for agent in agents] == [1, 1, 1]
    ends = [line.at for agent in agents for line in agent.err.lines if "exit code 7" in line.text]
    assert len(ends) >= 3
    assert max(ends) - min(ends) < 2.0


# -- case-G1 --------------------------------------------------------------------------------


@pytest.mark.cases("case-G1")
def test_worker_may_use_a_longer_grace_period(fleet: Fleet) -> None:
    """In the report: 45 s of 60, with a fixed limit of 30 s. Here: 4.5 s of 6."""
    slow = script(fleet, "slow.py", SLOW)
    agent = fleet.agent("node", "--standalone", "--stop-grace=6", slow, "4.5")
    agent.expect("up")
    agent.send(signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM
    assert [line.text for line in agent.out.lines if line.text == "saved"] == ["saved"]
    short = fleet.agent("short", "--standalone", "--stop-grace=3", slow, "4.5")
    short.expect("up")
    short.send(signal.SIGTERM)
    assert short.wait() == 128 + signal.SIGTERM
    assert "saved" not in short.out.text
    fleet.all_gone()


@pytest.mark.cases("case-G1")
def test_second_signal_ends_workers_at_once(fleet: Fleet) -> None:
    slow = script(fleet, "slow.py", SLOW)
    agent = fleet.agent("node", "--standalone", "--stop-grace=600", slow, "600")
    agent.expect("up")
    agent.send(signal.SIGTERM)
    agent.expect("asked")
    agent.send(signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM
    fleet.all_gone()


# -- case-G2 --------------------------------------------------------------------------------


@pytest.mark.cases("case-G2")
def test_scheduler_signals_are_forwarded_to_workers(fleet: Fleet) -> None:
    hears = script(fleet, "hears.py", HEARS)
    agent = fleet.agent("node", "--standalone", "--forward-signals=USR1,SIGUSR2", hears)
    up = agent.expect("up")
    for name in ("SIGUSR1", "SIGUSR2", "SIGUSR1"):
        agent.send(signal.Signals[name])
        up = agent.expect(f"heard {name}", after=up)
    assert agent.is_running()
    agent.send(signal.SIGINT)
    assert agent.wait() == 128 + signal.SIGINT
    assert "the child has died" not in agent.out.text, "it got a signal that was its parent's"
    fleet.all_gone()


@pytest.mark.cases("case-G2")
def test_sighup_ignored_at_start_stays_ignored(fleet: Fleet) -> None:
    hears = script(fleet, "hears.py", HEARS)
    argv = ["-m", "rallypoint", "run", "--standalone", "--forward-signals=USR1", hears]
    agent = fleet.start("node", "nohup", sys.executable, *argv)
    up = agent.expect("up")
    agent.send(signal.SIGHUP)
    agent.send(signal.SIGUSR1)
    agent.expect("heard SIGUSR1", after=up)
    assert agent.is_running()
    agent.send(signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM


# -- case-G3 --------------------------------------------------------------------------------


def left(fleet: Fleet, *known: Process) -> list[psutil.Process]:
    """Return the processes of the fleet, without the known ones."""
    pids = {process.pid for process in known}
    return [process for process in fleet.left() if process.pid not in pids]


def gone_in_time(fleet: Fleet, killed_at: float, *known: Process) -> list[psutil.Process]:
    """Return the processes that are still there after a time."""
    while strays := left(fleet, *known):
        if time.monotonic() - killed_at > GONE_SECONDS:
            return strays
        time.sleep(0.05)
    return []


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.cases("case-G3")
@pytest.mark.timeout(60 + 12 * MOMENTS)
def test_killed_agent_takes_only_its_own_workers_along(fleet: Fleet) -> None:
    server, where = fleet.server()
    stranger = fleet.start("stranger", sys.executable, "-c", STRANGER)
    stranger.expect("here")
    parent = script(fleet, "parent.py", PARENT)
    moments = random.Random(4)
    for number in range(MOMENTS):
        options = ["--nnodes=1", f"--endpoint={where}", f"--run-id=g3-{number}"]
        agent = fleet.agent(f"agent{number}", *options, "--nproc-per-node=2", parent)
        if number % 2:  # at work; otherwise at any moment, also while workers start
            for _ in range(2):
                agent.expect("port")
        time.sleep(moments.uniform(0.0, 0.3 if number % 2 else 2.0))
        killed_at = agent.kill()
        strays = gone_in_time(fleet, killed_at, server, stranger)
        assert not strays, f"kill {number}: left {strays}\n{agent.shown()}"
        ports = [int(line.text.split()[1]) for line in agent.out.lines if "port" in line.text]
        assert not [port for port in ports if is_open(port)]
        assert server.is_running()
        assert stranger.is_running()


@pytest.mark.cases("case-G3")
def test_agents_on_one_machine_do_not_affect_each_other(fleet: Fleet) -> None:
    parent = script(fleet, "parent.py", PARENT)
    agents = [fleet.agent(f"node{i}", "--standalone", parent) for i in range(2)]
    ports = [int(agent.expect("port").text.split()[1]) for agent in agents]
    agents[0].kill()
    limit = time.monotonic() + GONE_SECONDS
    while is_open(ports[0]):
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert is_open(ports[1])
    agents[1].send(signal.SIGTERM)
    assert agents[1].wait() == 128 + signal.SIGTERM
    fleet.all_gone()


# -- case-B1, seen from the launcher ---------------------------------------------------------

ALWAYS = """
import os
raise ValueError(f"fails in round {os.environ['RALLYPOINT_ROUND']}")
"""


@pytest.mark.cases("case-D3")
def test_worker_that_always_fails_ends_the_run_with_its_first_traceback(fleet: Fleet) -> None:
    options = ["--nnodes=2", f"--endpoint={endpoint()}", "--run-id=always", "--max-restarts=2"]
    always = script(fleet, "always.py", ALWAYS)
    idle = script(fleet, "idle.py", "import time; time.sleep(600)")
    agents = [fleet.agent("bad", *options, always), fleet.agent("good", *options, idle)]
    assert [agent.wait(40.0) for agent in agents] == [93, 93]
    for agent in agents:
        said = [line.text for line in agent.err.lines if not line.text.startswith(" ")]
        report = agent.err.text[agent.err.text.index("rallypoint: first failure") :]
        top = report.splitlines()[:6]
        assert "exit code 1" in top[0], said
        assert "in round 1" in top[0]
        assert "Traceback (most recent call last):" in report.splitlines()[2]
        assert "ValueError: fails in round 1" in report
        assert "fails in round 3" not in report.split("in later rounds:")[0]
    pauses = [line.text for line in agents[1].out.lines if "restarting workers in" in line.text]
    assert [pause.split(" in ")[-1] for pause in pauses] == ["1 s", "2 s"]
    fleet.all_gone()
