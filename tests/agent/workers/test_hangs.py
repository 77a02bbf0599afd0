import os
import queue
import shutil
import sys
from pathlib import Path

import pytest
from tests.agent.workers.test_processes import Group, ready, says_pid

from rallypoint.agent.output.destinations import OutputPlan
from rallypoint.agent.policy import events as e
from rallypoint.agent.workers import hangs
from rallypoint.agent.workers.hangs import HangWatch, Stillness
from rallypoint.agent.workers.processes import Spec, WorkerGroup

LIMIT_SECONDS = 20


def test_who_moves_does_not_hang() -> None:
    still = Stillness(8.0, 0.0)
    for now in range(1, 100):
        assert still.look({0: now, 1: now // 4 + 1}, float(now)) == {}


def test_who_stands_still_hangs_once_the_limit_is_over() -> None:
    still = Stillness(8.0, 0.0)
    found = [still.look({0: now, 1: 5}, float(now)) for now in range(1, 11)]
    assert found[:8] == [{}] * 8
    assert found[8] == {1: 8.0}


def test_who_tells_no_step_is_not_watched() -> None:
    still = Stillness(8.0, 0.0)
    assert all(still.look({0: 0}, float(now)) == {} for now in range(1, 100))
    assert still.look({0: 1}, 100.0) == {}


def test_time_in_which_nobody_watched_does_not_count() -> None:
    still = Stillness(8.0, 0.0)
    still.look({0: 5}, 1.0)
    assert still.look({0: 5}, 3601.0) == {}  # the machine slept for an hour
    found = [still.look({0: 5}, 3601.0 + step) for step in range(1, 9)]
    assert found[-1] != {}


def test_nothing_is_made_where_nothing_is_watched() -> None:
    told: list[object] = []
    watch = HangWatch(1, 0.0, told.append, told.append)
    assert watch.environment(0) == {}
    watch.begin(WorkerGroup(told.append, told.append))
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


def started(script: str, watch: HangWatch) -> Group:
    group = Group()
    env = {**os.environ, **watch.environment(0)}
    spec = Spec(0, (sys.executable, "-c", script), env)
    group.group.start([spec], [OutputPlan().worker("run", 1, 0, 0)])
    watch.begin(group.group)
    return group


def test_a_worker_that_hangs_is_shown_with_its_stack() -> None:
    told: queue.Queue[object] = queue.Queue()
    watch = HangWatch(3, 0.5, told.put, told.put)
    group = started(HANGS, watch)
    hung = told.get(timeout=LIMIT_SECONDS)
    watch.end()
    group.group.kill()
    assert isinstance(hung, e.WorkerHung)
    assert (hung.round, hung.local_rank, hung.step) == (3, 0, 4)
    assert hung.still_seconds >= 0.5
    assert any("in stands_here" in line for line in hung.lines), hung.lines
    assert told.empty()


def test_a_worker_that_cannot_answer_is_told_without_a_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hangs, "STACK_SECONDS", 0.1)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    group = Group()
    script = f"import signal; signal.signal({int(hangs.SIGNAL)}, signal.SIG_IGN)\n"
    group.start(script + says_pid(tmp_path / "pid") + "time.sleep(60)")
    ready(tmp_path / "pid")
    assert hangs.stack_of(group.group, 0) == (
        "(no stack: it did not answer, and py-spy is not installed or may not look)",
    )
    py_spy = tmp_path / "py-spy"
    py_spy.write_text("#!/bin/sh\necho seen $*\n")
    py_spy.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _name: str(py_spy))
    assert hangs.stack_of(group.group, 0) == (f"seen dump --pid {group.group.pid_of(0)}",)
    group.group.kill()
