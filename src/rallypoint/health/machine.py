"""Measures this machine; each look ends within its limit."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import psutil

from rallypoint.doctor.findings import Finding
from rallypoint.health import judgement
from rallypoint.health.judgement import Gpu

CLOCK_SECONDS = 1.0
_QUERY = "index,name,ecc.errors.uncorrected.volatile.total"


def examine(
    paths: Sequence[str], disk_bytes: int, memory_bytes: int, limit_seconds: float
) -> Iterator[Finding]:
    """Yield what was found of disks, memory, clock and GPUs.

    Args:
        paths: on the disks to look at.
        disk_bytes: to be free on each.
        memory_bytes: to be free.
        limit_seconds: for nvidia-smi.
    """
    for path in paths:
        try:
            yield judgement.disk(path, shutil.disk_usage(path).free, disk_bytes)
        except OSError as error:
            yield judgement.no_disk(path, error.strerror or str(error))
    yield judgement.memory(int(psutil.virtual_memory().available), memory_bytes)
    yield judgement.clock(clock_step(CLOCK_SECONDS), CLOCK_SECONDS)
    program = shutil.which("nvidia-smi")
    if program is not None:
        yield judgement.gpus(*gpus(program, limit_seconds))


def clock_step(
    seconds: float,
    wall: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] | None = None,
) -> float:
    """Return by how much the wall clock moved against the monotonic one meanwhile."""
    before = wall() - steady()
    (wait or threading.Event().wait)(seconds)
    return wall() - steady() - before


def gpus(program: str, limit_seconds: float) -> tuple[list[Gpu], str]:
    """Return the GPUs that nvidia-smi tells, and what is wrong with it, "" if nothing is."""
    argv = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            argv, capture_output=True, text=True, timeout=limit_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"did not answer in {limit_seconds:g} s"
    except OSError as error:
        return [], f"cannot be run: {error.strerror}"
    if answer.returncode != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        return [], f"failed with exit code {answer.returncode}: {said[-1] if said else ''}".strip()
    return [gpu for line in answer.stdout.splitlines() if (gpu := _gpu(line))], ""


def _gpu(line: str) -> Gpu | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 3 or not parts[0].isdecimal():
        return None
    return Gpu(int(parts[0]), parts[1], int(parts[2]) if parts[2].isdecimal() else None)
