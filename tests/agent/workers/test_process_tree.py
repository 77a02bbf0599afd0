import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rallypoint.agent.workers import process_tree

LIMIT_SECONDS = 20
SLEEP = "import time; time.sleep(60)"
# A worker with a child in its group, one in a session of its own, and a daemon without parents.
FAMILY = f"""
import os, subprocess, sys, time
def say(name, pid):
    with open(sys.argv[1], "a") as file:
        file.write(f"{{name}} {{pid}}\\n")
say("worker", os.getpid())
say("child", subprocess.Popen([sys.executable, "-c", {SLEEP!r}]).pid)
say("session", subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True).pid)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        say("daemon", os.getpid())
        time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.01)


def start(path: Path, mark: str) -> tuple[subprocess.Popen[bytes], dict[str, int]]:
    worker = subprocess.Popen(
        [sys.executable, "-c", FAMILY, str(path)],
        env={**os.environ, process_tree.MARK: process_tree.marked("outer", mark)},
        start_new_session=True,
    )
    until(lambda: path.exists() and path.read_text().count("\n") == 4)
    lines = (line.split() for line in path.read_text().splitlines())
    return worker, {name: int(pid) for name, pid in lines}


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_all_descendants_are_killed_and_nothing_else(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    worker, pids = start(tmp_path / "pids", "mine")
    roots = {worker.pid: process_tree.started_at(worker.pid)}
    assert {process.pid for process in process_tree.family("mine", roots)} == set(pids.values())
    assert process_tree.end("mine", roots, LIMIT_SECONDS) == []
    assert not any(alive(pid) for pid in pids.values())
    assert worker.wait(LIMIT_SECONDS) == -signal.SIGKILL
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait(LIMIT_SECONDS)


def test_mark_alone_finds_all_descendants(tmp_path: Path) -> None:
    worker, pids = start(tmp_path / "pids", "mine")
    assert {process.pid for process in process_tree.family("mine", {})} == set(pids.values())
    assert {process.pid for process in process_tree.family("outer", {})} == set(pids.values())
    assert process_tree.family("min", {}) == []
    process_tree.end("mine", {}, LIMIT_SECONDS)
    worker.wait(LIMIT_SECONDS)


def test_parents_and_sessions_find_descendants_without_a_mark(tmp_path: Path) -> None:
    worker, pids = start(tmp_path / "pids", "mine")
    roots = {worker.pid: process_tree.started_at(worker.pid)}
    found = {process.pid for process in process_tree.family("no such mark", roots)}
    assert found == {pids[name] for name in ("worker", "child", "session")}
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: not alive(worker.pid))
    assert pids["child"] in {process.pid for process in process_tree.family("no such mark", roots)}
    process_tree.end("mine", {}, LIMIT_SECONDS)
    worker.wait(LIMIT_SECONDS)


def test_reused_process_id_is_not_found(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    assert (
        process_tree.family("mine", {stranger.pid: process_tree.started_at(stranger.pid) - 1.0})
        == []
    )
    stranger.kill()
    stranger.wait(LIMIT_SECONDS)


def test_unkillable_processes_are_returned_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        """A process in state D: signals wait until its disk answers."""

        pid = 4711

        def kill(self) -> None:
            pass

    stuck = Stuck()
    monkeypatch.setattr(process_tree, "family", lambda _mark, _roots: [stuck])
    began = time.monotonic()
    assert process_tree.end("mine", {}, 0.2) == [stuck]
    assert time.monotonic() - began < LIMIT_SECONDS


def test_processes_started_during_the_kill_are_killed_too(tmp_path: Path) -> None:
    script = f"""
import subprocess, sys, time
while True:
    subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
    time.sleep(0.02)
"""
    env = {**os.environ, process_tree.MARK: "breeder"}
    worker = subprocess.Popen([sys.executable, "-c", script], env=env, start_new_session=True)
    until(lambda: len(process_tree.family("breeder", {})) > 2)
    assert process_tree.end("breeder", {}, LIMIT_SECONDS) == []
    worker.wait(LIMIT_SECONDS)
    threading.Event().wait(0.1)
    assert process_tree.family("breeder", {}) == []


def test_state_of_a_process() -> None:
    assert process_tree.state_of(os.getpid()) in ("running", "sleeping")
    assert process_tree.state_of(1 << 30) == ""
    assert process_tree.started_at(1 << 30) == 0.0
