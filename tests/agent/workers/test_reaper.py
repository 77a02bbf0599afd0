import os
import signal
import subprocess
import sys

import psutil
import pytest

from rallypoint.agent.workers import process_tree
from rallypoint.agent.workers.reaper import Reaper, workers_left

LIMIT_SECONDS = 20
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(SLEEP, start_new_session=True)


def test_workers_that_were_not_removed_are_left() -> None:
    lines = [b"+1 0.5\n", b"+2 1.5\n", b"-1\n", b"-9\n", b"+3 2.5\n"]
    assert workers_left(lines) == ({2: 1.5, 3: 2.5}, False)
    assert workers_left([*lines, b".\n"]) == ({2: 1.5, 3: 2.5}, True)


def test_workers_are_killed_when_the_agent_is_killed() -> None:
    program = (
        "import subprocess, sys, time\n"
        "from rallypoint.agent.workers.reaper import Reaper\n"
        "reaper = Reaper(print, 'mark')\n"
        f"worker = subprocess.Popen({SLEEP!r}, start_new_session=True)\n"
        "reaper.watch({worker.pid: 0.0})\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        worker = psutil.Process(int(agent.stdout.readline()))
        agent.kill()
        _, alive = psutil.wait_procs([worker], timeout=2)
        assert not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_removed_workers_are_not_killed() -> None:
    kept, ended = sleeper(), sleeper()
    with Reaper(pytest.fail, "no-mark") as reaper:
        reaper.watch(
            {process.pid: process_tree.started_at(process.pid) for process in (kept, ended)}
        )
        reaper.forget([kept.pid])
    assert ended.wait(LIMIT_SECONDS) == -signal.SIGKILL
    assert kept.poll() is None
    kept.kill()
    kept.wait(LIMIT_SECONDS)


def test_killed_reaper_is_reported_once() -> None:
    said: list[str] = []
    reaper = Reaper(said.append, "no-mark")
    os.kill(reaper._process.pid, signal.SIGKILL)
    reaper._process.wait(LIMIT_SECONDS)
    reaper.watch({1 << 30: 1.0})
    reaper.watch({1 << 30: 1.0})
    reaper.close()
    assert said == [
        "the reaper process was killed: if this agent is killed too, its workers go on running"
    ]


def test_reused_process_id_is_not_killed() -> None:
    stranger = sleeper()
    with Reaper(pytest.fail, "no-mark") as reaper:
        reaper.watch({stranger.pid: process_tree.started_at(stranger.pid) - 5.0})
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait(LIMIT_SECONDS)
