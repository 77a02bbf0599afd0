import os
import signal
from pathlib import Path

import psutil
import pytest

from rallypoint.cli.demo_facts import SERVER, Ended
from rallypoint.cli.demo_processes import DemoInterrupted, DemoProcesses
from rallypoint.deadline import Deadline
from rallypoint.errors import RendezvousConnectionError

pytestmark = pytest.mark.integration


def test_end_of_the_demo_ends_processes_and_removes_the_folder(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import threading; print('here'); threading.Event().wait()")
    with DemoProcesses().open() as processes:
        folder = processes.folder
        processes.start_server(30.0)
        pid = processes.start_node(1, "1", [str(script)])
        deadline = Deadline(30.0)
        while (event := processes.next_event(deadline)) is not None:
            if not isinstance(event, Ended) and (event.source, event.text) == (1, "here"):
                break
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        assert len(family) >= 2
    assert not any(process.is_running() for process in family)
    assert not folder.exists()


def test_killed_node_ends_with_its_worker(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import threading; print('here'); threading.Event().wait()")
    with DemoProcesses().open() as processes:
        processes.start_server(30.0)
        processes.start_node(1, "1", [str(script)])
        deadline, last = Deadline(30.0), None
        while (event := processes.next_event(deadline)) is not None:
            if isinstance(event, Ended):
                last = event
                break
            if event.text == "here":
                processes.kill(1)
    assert last is not None
    assert (last.source, last.code) == (1, -signal.SIGKILL)


def test_signal_is_raised_at_the_next_event() -> None:
    with DemoProcesses().open() as processes:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(DemoInterrupted, match="received SIGTERM") as caught:
            processes.next_event(Deadline(5.0))
    assert caught.value.number == signal.SIGTERM


def test_failed_server_error_has_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with DemoProcesses().open() as processes:
        start = processes._start
        monkeypatch.setattr(
            processes, "_start", lambda source, _argv: start(source, ["serve", "--no"])
        )
        with pytest.raises(RendezvousConnectionError, match=r"(?s)it said: .*No such option"):
            processes.start_server(30.0)
        assert SERVER == 0


def test_options_of_other_runs_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "7")
    monkeypatch.setenv("RALLYPOINT_LEASE", "99")
    kept = DemoProcesses()._env
    assert "PET_NNODES" not in kept
    assert "RALLYPOINT_LEASE" not in kept
    assert kept["RALLYPOINT_TOKEN"] != DemoProcesses()._env["RALLYPOINT_TOKEN"]
