import os
import signal
from pathlib import Path

import psutil
import pytest

from rallypoint.cli.demo_stage import InterruptedShow, Stage
from rallypoint.cli.demo_story import SERVER, Ended
from rallypoint.deadline import Deadline
from rallypoint.errors import RendezvousConnectionError

pytestmark = pytest.mark.integration


def test_end_of_the_demo_ends_processes_and_removes_the_folder(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import threading; print('here'); threading.Event().wait()")
    with Stage().open() as stage:
        folder = stage.folder
        stage.start_server(30.0)
        pid = stage.start_node(1, "1", [str(script)])
        deadline = Deadline(30.0)
        while (event := stage.next_event(deadline)) is not None:
            if not isinstance(event, Ended) and (event.source, event.text) == (1, "here"):
                break
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        assert len(family) >= 2
    assert not any(process.is_running() for process in family)
    assert not folder.exists()


def test_killed_node_ends_with_its_worker(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import threading; print('here'); threading.Event().wait()")
    with Stage().open() as stage:
        stage.start_server(30.0)
        stage.start_node(1, "1", [str(script)])
        deadline, last = Deadline(30.0), None
        while (event := stage.next_event(deadline)) is not None:
            if isinstance(event, Ended):
                last = event
                break
            if event.text == "here":
                stage.kill(1)
    assert last is not None
    assert (last.source, last.code) == (1, -signal.SIGKILL)


def test_signal_is_raised_at_the_next_event() -> None:
    with Stage().open() as stage:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(InterruptedShow, match="received SIGTERM") as caught:
            stage.next_event(Deadline(5.0))
    assert caught.value.number == signal.SIGTERM


def test_failed_server_error_has_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Stage().open() as stage:
        start = stage._start
        monkeypatch.setattr(stage, "_start", lambda source, _argv: start(source, ["serve", "--no"]))
        with pytest.raises(RendezvousConnectionError, match=r"(?s)it said: .*No such option"):
            stage.start_server(30.0)
        assert SERVER == 0


def test_options_of_other_runs_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "7")
    monkeypatch.setenv("RALLYPOINT_LEASE", "99")
    kept = Stage()._env
    assert "PET_NNODES" not in kept
    assert "RALLYPOINT_LEASE" not in kept
    assert kept["RALLYPOINT_TOKEN"] != Stage()._env["RALLYPOINT_TOKEN"]
