from pathlib import Path

import pytest

from rallypoint.doctor.findings import Verdict
from rallypoint.health import machine
from rallypoint.health.judgement import GIB, Gpu
from rallypoint.testing.clock import ManualClock

SMI = """#!/bin/sh
echo "0, Some GPU, 0"
echo "1, Some GPU, [N/A]"
echo "2, Some GPU, 4"
"""


def program(folder: Path, text: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_each_part_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CLOCK_SECONDS", 0.01)
    monkeypatch.setenv("PATH", str(tmp_path))
    paths = [str(tmp_path), str(tmp_path / "none")]
    found = list(machine.examine(paths, 1, 1, 5.0))
    steps = [(finding.step, finding.verdict) for finding in found]
    assert steps[:3] == [("disk", Verdict.OK), ("disk", Verdict.FAIL), ("memory", Verdict.OK)]
    assert [step for step, _ in steps] == ["disk", "disk", "memory", "clock"], "no GPUs here"
    program(tmp_path, SMI)
    found = list(machine.examine(paths[:1], 2**60 * GIB, 2**60 * GIB, 5.0))
    assert [finding.verdict for finding in found if finding.step != "clock"] == [Verdict.FAIL] * 3
    assert found[-1].text == "memory errors that could not be corrected: GPU 2 (4)"


def test_a_clock_that_steps_is_seen() -> None:
    wall, steady = ManualClock(1000.0), ManualClock(5.0)

    def wait(seconds: float) -> None:
        steady.advance(seconds)
        wall.advance(seconds + 3600.0)

    assert machine.clock_step(1.0, wall, steady, wait) == pytest.approx(3600.0)


@pytest.mark.parametrize(
    ("text", "found", "trouble"),
    [
        (SMI, [Gpu(0, "Some GPU", 0), Gpu(1, "Some GPU"), Gpu(2, "Some GPU", 4)], ""),
        ("#!/bin/sh\necho no driver >&2; exit 9", [], "failed with exit code 9: no driver"),
        ("#!/bin/sh\nexec sleep 60", [], "did not answer in 0.2 s"),
        ("nonsense", [], "cannot be run: Exec format error"),
    ],
)
def test_gpus(tmp_path: Path, text: str, found: list[Gpu], trouble: str) -> None:
    limit = 0.2 if "sleep" in text else 20.0
    assert machine.gpus(program(tmp_path, text), limit) == (found, trouble)
