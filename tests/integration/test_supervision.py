"""How an agent supervises its node and its workers, seen from outside: `rallypoint run ...`."""

import http.client
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.integration.harness import Fleet, endpoint, free_port

from rallypoint.agent.reporting import records
from rallypoint.agent.reporting.console import CLEAR_LINE

pytestmark = pytest.mark.integration

HANGS_ONCE = """
import os, time
from rallypoint import worker
def stuck_here():
    time.sleep(600)
for number in range(3):
    worker.step(number)
if worker.round() == 1 and worker.rank() == 0:
    stuck_here()
worker.beat()
print("done in round", worker.round(), flush=True)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


def lines(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for line in found:
        jsonschema.validate(line, records.json_schema())
    return found


def test_hanging_worker_is_reported_and_a_new_round_starts(fleet: Fleet) -> None:
    (fleet.folder / "hangs.py").write_text(HANGS_ONCE, encoding="utf-8")
    argv = ["--standalone", "--max-restarts=1", "--hang-timeout=1", "--events=e.jsonl", "hangs.py"]
    agent = fleet.agent("node", *argv)
    assert agent.wait() == 0, agent.shown()
    agent.expect("a worker of this node failed: rank 0 .*: it hung at")
    agent.expect("done in round 2")
    assert "in stuck_here" in agent.err.text, "its stack is on its stderr"
    (hung,) = [line for line in lines(fleet.folder / "e.jsonl") if line["kind"] == "worker-hung"]
    assert hung["data"]["step"] == 2
    assert any("in stuck_here" in line for line in hung["data"]["stack"])
    fleet.all_gone()


def test_event_log_is_in_order(fleet: Fleet) -> None:
    _server, where = fleet.server()
    options = ["--nnodes=1:2", f"--endpoint={where}", "--run-id=told", "--target-nodes=2"]
    first = fleet.agent("first", *options, "--events=first.jsonl")
    second = fleet.agent("second", *options)
    before = first.round(2)
    second.round(2)
    second.kill()
    first.round(1, before)
    first.send(signal.SIGTERM)
    assert first.wait() == 143
    told = lines(fleet.folder / "first.jsonl")
    assert [line["kind"] for line in told if line["kind"] != "worker-exited"] == [
        "join", "sealed", "started", "lost", "restart", "stopping", "stopped",
        "join", "sealed", "started", "signal", "stopping", "leave", "stopped", "exit",
    ]  # fmt: skip
    assert f"pid {second.pid}" in told[3]["data"]["node"]
    assert told[-1]["data"]["code"] == 143


def test_h1_unhealthy_node_does_not_join(fleet: Fleet) -> None:
    _server, where = fleet.server()
    options = ["--nnodes=1:2", f"--endpoint={where}", "--run-id=h1", "--last-call=0.1"]
    sick = fleet.agent(
        "sick", *options, "--health-check=echo no scratch disk; exit 5", "--join-timeout=4"
    )
    sick.expect("failed with exit code 5: no scratch disk; this node does not join; checking again")
    well = fleet.agent("well", *options, "--health-check=true")
    well.expect("work: round 1 rank 0 of 1")
    assert sick.wait() == 3
    assert "was not healthy within 4 s (--join-timeout)" in sick.err.text
    fleet.release()
    well.finished()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_running_health_check_ends_with_its_agent(fleet: Fleet, number: signal.Signals) -> None:
    agent = fleet.agent("node", "--standalone", "--health-check=echo up > up; sleep 600")
    until(lambda: (fleet.folder / "up").exists())
    agent.send(number)
    assert agent.wait() == (143 if number == signal.SIGTERM else -number)
    fleet.all_gone()  # also the server that nobody joined


def until(true: Any) -> None:
    limit = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


def probe(port: int, path: str) -> tuple[int, str]:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", path)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        return answer.status, said["phase"]
    except OSError:
        return 0, ""


def test_waiting_node_is_live_and_working_node_is_ready(fleet: Fleet) -> None:
    port, where = free_port(), endpoint()
    options = ["--nnodes=2", f"--endpoint={where}", "--run-id=probed"]
    first = fleet.agent("first", *options, f"--health-port={port}")
    until(lambda: probe(port, "/live") == (200, "joining"))
    assert probe(port, "/ready") == (503, "joining")
    second = fleet.agent("second", *options)
    first.expect("work: round 1")
    assert probe(port, "/ready") == (200, "working")
    assert probe(port, "/live") == (200, "working")
    fleet.release()
    first.finished()
    second.finished()


def test_every_log_line_can_be_json(fleet: Fleet) -> None:
    (fleet.folder / "fails.py").write_text("print('x')\nraise ValueError('no')", encoding="utf-8")
    argv = ["--standalone", "--max-restarts=1", "--log-format=json", "fails.py"]
    agent = fleet.agent("node", *argv)
    assert agent.wait() == 93
    said = [json.loads(line.text) for line in (*agent.out.lines, *agent.err.lines)]
    assert {line["source"] for line in said} == {"worker", "rallypoint"}
    (report,) = [line for line in said if line.get("level") == "error"]
    assert report["text"].startswith("first failure: rank 0")
    assert "ValueError: no" in report["text"]


def test_progress_on_a_terminal_updates_one_line(fleet: Fleet) -> None:
    near, far = pty.openpty()
    argv = ["run", "--nnodes=2", f"--endpoint={endpoint()}", "--run-id=live", "worker.py", "stop"]
    agent = subprocess.Popen(
        [sys.executable, "-m", "rallypoint", *argv],
        cwd=fleet.folder,
        env={**fleet.environment(), "TERM": "xterm", "COLUMNS": "120"},
        stdout=far,
        stderr=far,
        start_new_session=True,
    )
    os.close(far)
    seen = b""
    while seen.count(CLEAR_LINE.encode()) < 3:
        assert select.select([near], [], [], 20.0)[0], seen
        seen += os.read(near, 4096)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(20.0) == 143
    while select.select([near], [], [], 5.0)[0]:
        try:
            seen += os.read(near, 4096)
        except OSError:  # Linux's error once the other end is closed
            break
    os.close(near)
    shown = seen.decode().split(CLEAR_LINE)
    live = [line for line in shown if "waiting for 1" in line]
    assert live[0].startswith(
        "rallypoint: 1 of 2 nodes, waiting for 1: not heard of yet; join timeout in"
    )
    assert len(set(live)) > 1, "it counts down"
    assert "\n" not in "".join(live), "and stays one line"


def test_agents_say_that_the_server_is_gone(fleet: Fleet) -> None:
    server, where = fleet.server()
    options = ["--nnodes=1", f"--endpoint={where}", "--run-id=gone", "--close-timeout=4"]
    agent = fleet.agent("node", *options)
    agent.expect("work: round 1")
    server.kill()
    fleet.release()
    began = time.monotonic()
    assert agent.wait() == 0, agent.shown()
    assert time.monotonic() - began < 10.0
    agent.expect("notifying the coordinator that its work is done: no answer yet, up to 4 s")
    assert "work is done, but the coordinator" in agent.err.text


@pytest.mark.cases("case-G2")
def test_preemption_signal_reaches_all_nodes(fleet: Fleet) -> None:
    _server, where = fleet.server()
    options = ["--nnodes=2", f"--endpoint={where}", "--run-id=preempt", "--preempt-signal=USR2"]
    agents = [fleet.agent(f"node{i}", *options) for i in range(2)]
    for agent in agents:
        agent.expect("work: round 1")
    agents[0].send(signal.SIGUSR2)
    agents[0].expect("this node will leave soon: received SIGUSR2; notifying all nodes")
    status = fleet.rallypoint("status", "status", f"--endpoint={where}", "--run-id=preempt")
    assert status.wait() == 0, status.shown()
    assert ": received SIGUSR2" in " ".join(status.out.text.split())
    for agent in agents:
        agent.send(signal.SIGTERM)
        agent.wait()
