import os
import time
from pathlib import Path

import psutil
import pytest

from rallypoint.agent.join.health_check import Checkup
from rallypoint.agent.workers import process_tree


def run(command: str, seconds: float = 20.0) -> str:
    return Checkup(command, seconds, os.environ).run()


def test_a_node_that_is_well_says_nothing() -> None:
    assert run("echo fine; true") == ""


def test_what_failed_is_told_with_the_last_lines() -> None:
    assert run("seq 1 9; echo no disk >&2; exit 3") == (
        "the health check 'seq 1 9; echo no disk >&2; exit 3' failed with exit code 3: "
        "6 | 7 | 8 | 9 | no disk"
    )
    assert run("kill -9 $$") == "the health check 'kill -9 $$' failed with signal 9"
    assert "exit code 127" in run("/no/such/program")


def test_it_has_a_limit_and_takes_its_children_along(tmp_path: Path) -> None:
    watched: list[int] = []
    forgotten: list[int] = []
    command = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    checkup = Checkup(
        command, 0.5, os.environ, lambda roots: watched.extend(roots), forgotten.extend
    )
    began = time.monotonic()
    assert "took longer than 0.5 s (--health-check-timeout)" in checkup.run()
    assert time.monotonic() - began < 15
    child = int((tmp_path / "pid").read_text())
    assert process_tree.state_of(child) in ("", psutil.STATUS_ZOMBIE)
    assert watched == forgotten != []


def test_a_shell_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: object, **_kwargs: object) -> None:
        raise OSError(2, "No such file or directory")

    monkeypatch.setattr("rallypoint.agent.join.health_check.subprocess.Popen", fails)
    assert run("true") == "the health check 'true' cannot be run: No such file or directory"
