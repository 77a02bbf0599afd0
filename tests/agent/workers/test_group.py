import os
import queue
import signal
import sys
from pathlib import Path

import psutil
import pytest
from tests.agent.test_loop import sealed
from tests.agent.workers.test_processes import LIMIT_SECONDS, ready, says_pid

from rallypoint.agent.config import AgentConfig, Supervision
from rallypoint.agent.output import OutputPlan
from rallypoint.agent.policy import events as e
from rallypoint.agent.workers import process_tree
from rallypoint.agent.workers.environment import WorkerContext
from rallypoint.agent.workers.group import WorkerGroup


class Told:
    """What a workers tells, to be waited for."""

    def __init__(self) -> None:
        self._queue: queue.Queue[e.Event] = queue.Queue()
        self.put = self._queue.put

    def next(self) -> e.Event:
        return self._queue.get(timeout=LIMIT_SECONDS)


def config(script: str, workers: int = 1, hang_seconds: float = 0.0) -> AgentConfig:
    return AgentConfig(
        argv=(sys.executable, "-c", script),
        context=WorkerContext("run", workers),
        output=OutputPlan(),
        node="node-a",
        base_env={**os.environ, process_tree.MARK: "outer"},
        supervision=Supervision(hang_seconds=hang_seconds),
    )


def test_workers_are_killed_when_the_group_exits_with_an_exception(tmp_path: Path) -> None:
    script = says_pid(tmp_path / "pid") + "time.sleep(60)"
    pids: list[int] = []

    def fails() -> None:
        with WorkerGroup(config(script), Told().put) as workers:
            workers.start(sealed(1), {})
            pids.append(ready(tmp_path / "pid"))
            assert {p.pid for p in process_tree.family(workers.mark, {})} == set(pids)
            assert {p.pid for p in process_tree.family("outer", {})} == set(pids)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not psutil.pid_exists(pids[0])


def test_stop_is_answered_by_workers_stopped(tmp_path: Path) -> None:
    told = Told()
    with WorkerGroup(config(says_pid(tmp_path / "pid") + "time.sleep(60)"), told.put) as workers:
        workers.stop(5.0)
        assert told.next() == e.WorkersStopped(), "there are none"
        workers.start(sealed(1), {})
        ready(tmp_path / "pid")
        workers.stop(5.0)
        exited = told.next()
        assert isinstance(exited, e.WorkerExited)
        assert (exited.round, exited.signal) == (1, "SIGTERM")
        assert told.next() == e.WorkersStopped()


def test_signal_reaches_the_worker(tmp_path: Path) -> None:
    told = Told()
    script = (
        "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\n"
        + says_pid(tmp_path / "pid")
        + "time.sleep(60)"
    )
    with WorkerGroup(config(script), told.put) as workers:
        workers.send(signal.SIGUSR1)
        workers.start(sealed(1), {})
        ready(tmp_path / "pid")
        workers.send(signal.SIGUSR1)
        exited = told.next()
        assert isinstance(exited, e.WorkerExited)
        assert exited.exit_code == 7


def test_hung_worker_is_an_event(tmp_path: Path) -> None:
    told = Told()
    script = "from rallypoint import worker; import time; worker.step(3); time.sleep(60)"
    with WorkerGroup(config(script, hang_seconds=0.5), told.put) as workers:
        workers.start(sealed(4), {})
        hung = told.next()
        assert isinstance(hung, e.WorkerHung)
        assert (hung.round, hung.step) == (4, 3)


def test_unkillable_processes_are_reported_by_pid(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in state D answers no signal until its disk does; here tree.end finds one."""

    class InStateD:
        pid = 4711

    monkeypatch.setattr(process_tree, "end", lambda *_args: [InStateD()])
    monkeypatch.setattr(process_tree, "state_of", lambda _pid: psutil.STATUS_DISK_SLEEP)
    told = Told()
    with WorkerGroup(config(""), told.put) as workers:
        workers.start(sealed(1), {})
        assert isinstance(told.next(), e.WorkerExited)
        workers.stop(0.0)
        assert told.next() == e.WorkersStopped((4711,))
    expected = "could not end these processes, going on without: 4711 (disk-sleep)"
    assert expected in capsys.readouterr().err
