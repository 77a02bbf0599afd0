import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.worker import progress
from rallypoint.worker.progress import (
    PROGRESS_FILE,
    STACK_SIGNAL,
    ProgressReader,
    ProgressWriter,
    open_progress,
)


def test_agent_reads_what_a_worker_writes(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path / "0")
    assert reader.read() == (0, 0)
    own = ProgressWriter(tmp_path / "0")
    own.beat()
    assert reader.read() == (1, 0)
    own.step(7)
    own.step(7)
    assert reader.read() == (2, 7)
    own.step(8)
    own.beat()
    assert reader.read() == (4, 8)
    reader.close()


def test_step_0_is_a_step(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path / "0")
    ProgressWriter(tmp_path / "0").step(0)
    assert reader.read() == (1, 0)
    reader.close()


def test_resting_worker_is_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ProgressReader(tmp_path / "0")
    monkeypatch.setattr(progress, "_own", [ProgressWriter(tmp_path / "0")])
    progress.step(4)
    with progress.rest():
        assert reader.read() == (0, 4)
        with progress.rest():
            pass
        assert reader.read() == (0, 4)
    assert reader.read() == (5, 4)
    monkeypatch.setattr(progress, "_own", [None])
    with progress.rest():
        pass
    reader.close()


def test_without_an_agent_that_watches_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_progress({}) is None
    assert open_progress({PROGRESS_FILE: str(tmp_path / "gone")}) is None
    monkeypatch.setattr(progress, "_own", [])
    monkeypatch.delenv(PROGRESS_FILE, raising=False)
    progress.beat()
    progress.step(3)


def test_worker_sends_heartbeats_and_its_stack(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path / "0")
    number = int(signal.SIGUSR2)
    script = "import os, signal; from rallypoint import worker; worker.beat(); worker.step(5)\n"
    script += f"os.kill(os.getpid(), {number}); worker.beat()"
    env = {**os.environ, PROGRESS_FILE: str(tmp_path / "0"), STACK_SIGNAL: str(number)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert reader.read() == (3, 5)
    assert 'File "<string>", line 2 in <module>' in done.stderr
    reader.close()
