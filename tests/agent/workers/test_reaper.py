import os
import signal
import subprocess
import sys

import psutil
import pytest

from rallypoint.agent.workers import process_tree
from rallypoint.agent.workers.reaper import Guard, workers_left

LIMIT_SECONDS = 20
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEP, start_new_session=True)


def test_what_is_named_and_not_taken_back_is_left() -> None:
    lines = [b"+1 0.5\n", b"+2 1.5\n", b"-1\n", b"-9\n", b"+3 2.5\n"]
    assert workers_left(lines) == ({2: 1.5, 3: 2.5}, False)
    assert workers_left([*lines, b".\n"]) == ({2: 1.5, 3: 2.5}, True)


def test_workers_die_with_an_agent_that_is_killed() -> None:
    program = (
        "import subprocess, sys, time\n"
        "from rallypoint.agent.workers.reaper import Guard\n"
        "guard = Guard(print, 'mark')\n"
        f"worker = subprocess.Popen({SLEEP!r}, start_new_session=True)\n"
        "guard.watch({worker.pid: 0.0})\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        worker = psutil.Process(int(agent.stdout.readline()))
        agent.kill()
        _, alive = psutil.wait_procs([worker], timeout=2)
        assert not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_what_was_taken_back_is_left_alone() -> None:
    kept, ended = sleeper(), sleeper()
    with Guard(pytest.fail, "no-mark") as guard:
        guard.watch(
            {process.pid: process_tree.started_at(process.pid) for process in (kept, ended)}
        )
        guard.forget([kept.pid])
    assert ended.wait(LIMIT_SECONDS) == -signal.SIGKILL
    assert kept.poll() is None
    kept.kill()
    kept.wait(LIMIT_SECONDS)


def test_a_guard_that_someone_ended_is_complained_of_once() -> None:
    said: list[str] = []
    guard = Guard(said.append, "no-mark")
    os.kill(guard._process.pid, signal.SIGKILL)
    guard._process.wait(LIMIT_SECONDS)
    guard.watch({1 << 30: 1.0})
    guard.watch({1 << 30: 1.0})
    guard.close()
    assert said == ["the guard is gone: if this agent is killed, its workers stay"]


def test_a_process_id_that_was_given_away_again_is_not_touched() -> None:
    stranger = sleeper()
    with Guard(pytest.fail, "no-mark") as guard:
        guard.watch({stranger.pid: process_tree.started_at(stranger.pid) - 5.0})
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait(LIMIT_SECONDS)
