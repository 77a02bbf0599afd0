import os
import queue
import sys
import time
from pathlib import Path

import psutil
import pytest

from rallypoint.agent.output import OutputPlan
from rallypoint.agent.workers.processes import WorkerExit, WorkerProcesses, WorkerSpec
from rallypoint.errors import ParameterError

LIMIT_SECONDS = 20


class Group:
    """A WorkerProcesses whose news can be waited for."""

    def __init__(self) -> None:
        self.exits: queue.Queue[WorkerExit] = queue.Queue()
        self.failures: queue.Queue[BaseException] = queue.Queue()
        self.stopped: queue.Queue[tuple[int, ...]] = queue.Queue()
        self.reaped: list[int] = []
        self.group = WorkerProcesses(self.exits.put, self.failures.put, self.reaped.extend)

    def start(self, *scripts: str) -> None:
        plan = OutputPlan()
        specs = [
            WorkerSpec(rank, (sys.executable, "-c", text), dict(os.environ))
            for rank, text in enumerate(scripts)
        ]
        self.group.start(specs, [plan.worker("run", 1, s.local_rank, s.local_rank) for s in specs])

    def ended(self) -> WorkerExit:
        return self.exits.get(timeout=LIMIT_SECONDS)


def ready(path: Path) -> int:
    """Wait until a script has written its process id."""
    limit = time.monotonic() + LIMIT_SECONDS
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < limit
        time.sleep(0.01)
    return int(path.read_text())


def says_pid(path: Path) -> str:
    return f"import os, time; open({str(path)!r}, 'w').write(f'{{os.getpid()}}\\n');"


@pytest.fixture
def workers() -> Group:
    return Group()


def test_exit_has_a_code_and_last_lines(workers: Group, capfd: pytest.CaptureFixture[str]) -> None:
    workers.start("import sys; print('bad', file=sys.stderr); sys.exit(3)")
    assert workers.ended() == WorkerExit(0, 3, "", ("bad",))
    assert workers.group.kill() == ()
    assert capfd.readouterr().err == "bad\n"


def test_exit_by_a_signal_has_its_name(workers: Group) -> None:
    workers.start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert workers.ended() == WorkerExit(0, None, "SIGKILL", ())
    workers.group.kill()


def test_workers_lead_their_own_session_and_have_no_stdin(
    workers: Group, capfd: pytest.CaptureFixture[str]
) -> None:
    workers.start(
        "import os, sys; assert os.getsid(0) == os.getpgid(0) == os.getpid();"
        "assert sys.stdin.read() == ''"
    )
    assert workers.ended().exit_code == 0, capfd.readouterr().err
    workers.group.kill()


def test_worker_that_exits_within_the_grace_is_not_killed(workers: Group, tmp_path: Path) -> None:
    workers.start(
        "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.3), sys.exit(0)));"
        + says_pid(tmp_path / "pid")
        + "time.sleep(60)"
    )
    ready(tmp_path / "pid")
    workers.group.stop(LIMIT_SECONDS, workers.stopped.put)
    assert workers.ended().exit_code == 0
    assert workers.stopped.get(timeout=LIMIT_SECONDS) == ()


def test_worker_that_ignores_sigterm_is_killed_with_its_descendants(
    workers: Group, tmp_path: Path
) -> None:
    child = f"{says_pid(tmp_path / 'child')} time.sleep(60)"
    workers.start(
        "import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN);"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True);"
        + says_pid(tmp_path / "pid")
        + "time.sleep(60)"
    )
    pid, stray = ready(tmp_path / "pid"), ready(tmp_path / "child")
    workers.group.stop(0.1, workers.stopped.put)
    assert workers.stopped.get(timeout=LIMIT_SECONDS) == ()
    assert workers.ended().signal == "SIGKILL"
    assert not psutil.pid_exists(pid)
    assert not psutil.pid_exists(stray) or psutil.Process(stray).status() == "zombie"
    assert workers.reaped == [pid]


def test_orphan_without_a_mark_is_killed_too(workers: Group, tmp_path: Path) -> None:
    """Its parent ends well within the grace, its environment is wiped, its session its own."""
    child = f"{says_pid(tmp_path / 'child')} time.sleep(60)"
    workers.start(
        "import signal, subprocess, sys; signal.signal(15, lambda *_: sys.exit(0));"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], env={{}}, start_new_session=True);"
        + says_pid(tmp_path / "pid")
        + "time.sleep(60)"
    )
    ready(tmp_path / "pid")
    orphan = ready(tmp_path / "child")
    workers.group.stop(LIMIT_SECONDS, workers.stopped.put)
    assert workers.stopped.get(timeout=LIMIT_SECONDS) == ()
    assert workers.ended().exit_code == 0
    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == "zombie"


def test_second_stop_shortens_the_grace(workers: Group, tmp_path: Path) -> None:
    workers.start(
        "import signal; signal.signal(15, signal.SIG_IGN);"
        + says_pid(tmp_path / "pid")
        + "time.sleep(60)"
    )
    ready(tmp_path / "pid")
    workers.group.stop(60, workers.stopped.put)
    workers.group.stop(0, workers.stopped.put)
    assert workers.stopped.get(timeout=LIMIT_SECONDS) == ()
    assert workers.stopped.empty()
    assert workers.ended().signal == "SIGKILL"


def test_child_of_an_exited_worker_is_killed(workers: Group, tmp_path: Path) -> None:
    child = f"{says_pid(tmp_path / 'child')} time.sleep(60)"
    workers.start(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])")
    stray = ready(tmp_path / "child")
    assert workers.ended().exit_code == 0
    workers.group.kill()
    deadline = time.monotonic() + LIMIT_SECONDS
    while psutil.pid_exists(stray) and psutil.Process(stray).status() != "zombie":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_command_that_cannot_start_is_named(workers: Group) -> None:
    plan = OutputPlan()
    with pytest.raises(ParameterError, match="/nope/python"):
        workers.group.start([WorkerSpec(0, ("/nope/python",), {})], [plan.worker("run", 1, 0, 0)])
    assert workers.group.kill() == ()


def test_error_in_a_background_thread_is_passed_on() -> None:
    failures: queue.Queue[BaseException] = queue.Queue()

    def broken(_ended: WorkerExit) -> None:
        raise ValueError("a callback of ours fails")

    group = WorkerProcesses(broken, failures.put)
    spec = WorkerSpec(0, (sys.executable, "-c", ""), dict(os.environ))
    group.start([spec], [OutputPlan().worker("run", 1, 0, 0)])
    assert isinstance(failures.get(timeout=LIMIT_SECONDS), ValueError)
    assert group.kill() == ()
