import os
import queue
import shutil
import sys
from pathlib import Path

import pytest
from tests.agent.workers.test_processes import Group, ready, says_pid

from rallypoint.agent.output import OutputPlan
from rallypoint.agent.policy import events as e
from rallypoint.agent.workers import hangs
from rallypoint.agent.workers.hangs import HangWatcher, StallDetector
from rallypoint.agent.workers.processes import WorkerProcesses, WorkerSpec

LIMIT_SECONDS = 20


def test_worker_with_progress_is_not_hung() -> None:
    still = StallDetector(8.0, 0.0)
    for now in range(1, 100):
        assert still.check({0: now, 1: now // 4 + 1}, float(now)) == {}


def test_worker_without_progress_is_hung_after_the_limit() -> None:
    still = StallDetector(8.0, 0.0)
    found = [still.check({0: now, 1: 5}, float(now)) for now in range(1, 11)]
    assert found[:8] == [{}] * 8
    assert found[8] == {1: 8.0}


def test_worker_that_never_reported_progress_is_not_watched() -> None:
    still = StallDetector(8.0, 0.0)
    assert all(still.check({0: 0}, float(now)) == {} for now in range(1, 100))
    assert still.check({0: 1}, 100.0) == {}


def test_time_in_which_the_agent_did_not_run_does_not_count() -> None:
    still = StallDetector(8.0, 0.0)
    still.check({0: 5}, 1.0)
    assert still.check({0: 5}, 3601.0) == {}  # the machine slept for an hour
    found = [still.check({0: 5}, 3601.0 + step) for step in range(1, 9)]
    assert found[-1] != {}


def test_without_a_limit_no_file_is_made() -> None:
    told: list[object] = []
    watch = HangWatcher(1, 0.0, told.append, told.append)
    assert watch.environment(0) == {}
    watch.begin(WorkerProcesses(told.append, told.append))
    watch.end()
    assert told == []


HANGS = """
import sys, time
from rallypoint import worker
def stands_here():
    time.sleep(60)
for number in range(5):
    worker.step(number)
stands_here()
"""


def started(script: str, watch: HangWatcher) -> Group:
    group = Group()
    env = {**os.environ, **watch.environment(0)}
    spec = WorkerSpec(0, (sys.executable, "-c", script), env)
    group.group.start([spec], [OutputPlan().worker("run", 1, 0, 0)])
    watch.begin(group.group)
    return group


def test_hung_worker_is_reported_with_its_stack() -> None:
    told: queue.Queue[object] = queue.Queue()
    watch = HangWatcher(3, 0.5, told.put, told.put)
    group = started(HANGS, watch)
    hung = told.get(timeout=LIMIT_SECONDS)
    watch.end()
    group.group.kill()
    assert isinstance(hung, e.WorkerHung)
    assert (hung.round, hung.local_rank, hung.step) == (3, 0, 4)
    assert hung.still_seconds >= 0.5
    assert any("in stands_here" in line for line in hung.lines), hung.lines
    assert told.empty()


def test_hung_worker_without_a_stack_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hangs, "STACK_SECONDS", 0.1)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    group = Group()
    script = f"import signal; signal.signal({int(hangs.SIGNAL)}, signal.SIG_IGN)\n"
    group.start(script + says_pid(tmp_path / "pid") + "time.sleep(60)")
    ready(tmp_path / "pid")
    assert hangs.stack_of(group.group, 0) == (
        "(no stack: it did not print one, and py-spy is not installed or not permitted)",
    )
    py_spy = tmp_path / "py-spy"
    py_spy.write_text("#!/bin/sh\necho seen $*\n")
    py_spy.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _name: str(py_spy))
    assert hangs.stack_of(group.group, 0) == (f"seen dump --pid {group.group.pid_of(0)}",)
    group.group.kill()
