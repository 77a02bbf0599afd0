import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integrations.schedulers.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
WORKER = Path(__file__).with_name("worker.py")
RALLYPOINT = Path(sys.executable).with_name("rallypoint")
LIMIT_SECONDS = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    found = Cluster()
    try:
        found.start()
        yield found
    finally:
        found.stop()


def write(folder: Path, options: str, line: str) -> str:
    """Write a batch script, as a user would; nothing in it names an endpoint or a run."""
    script = folder / "job.sh"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --output={folder}/out.%a {options}\n"
        f"export RALLYPOINT_TOKEN=abc\nsrun {RALLYPOINT} run {line}\n"
    )
    return str(script)


def until(condition: Callable[[], bool], file: Path) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, file.read_text() if file.exists() else "no output"
        time.sleep(0.1)


def test_batch_job_needs_no_endpoint(cluster: Cluster, tmp_path: Path) -> None:
    cluster.run("sbatch", "--wait", write(tmp_path, "--ntasks=3", str(WORKER)))
    (out,) = tmp_path.glob("out.*")
    rows = re.findall(r"rank (\d)/3 run=slurm-\d+\.0 met=0,1,2", out.read_text())
    assert sorted(rows) == ["0", "1", "2"]


def test_array_elements_are_separate_runs(cluster: Cluster, tmp_path: Path) -> None:
    script = write(tmp_path, "--ntasks=2 --array=1-2", str(WORKER))
    cluster.run("sbatch", "--wait", script)
    for element in (1, 2):
        text = (tmp_path / f"out.{element}").read_text()
        assert len(re.findall(rf"run=slurm-\d+_{element}\.0 met=0,1", text)) == 2, text


def test_requeued_job_is_a_new_run(cluster: Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = write(tmp_path, "--ntasks=2 --requeue --open-mode=append", f"{WORKER} {go}")
    job = cluster.run("sbatch", "--parsable", script)
    out = next(iter(tmp_path.glob("out.*")), tmp_path / "out.4294967294")
    until(lambda: out.exists() and out.read_text().count("start") == 2, out)
    cluster.run("scontrol", "requeue", job)
    again = f"run=slurm-{job}.0-r1"
    until(lambda: out.read_text().count(f"/2 {again}") == 2, out)
    go.touch()
    until(lambda: out.read_text().count(f"{again} met=0,1") == 2, out)


def test_preempted_job_stops_its_workers_cleanly(cluster: Cluster, tmp_path: Path) -> None:
    script = write(tmp_path, "--ntasks=2", f"{WORKER} {tmp_path / 'never'}")
    job = cluster.run("sbatch", "--parsable", script)
    out = next(iter(tmp_path.glob("out.*")), tmp_path / "out.4294967294")
    until(lambda: out.exists() and out.read_text().count("start") == 2, out)
    began = time.monotonic()
    cluster.run("scancel", job)  # what a preemption sends too: SIGTERM, and KillWait to go
    until(lambda: not cluster.run("squeue", "-h", "-j", job, check=False), out)
    assert time.monotonic() - began < 15, "well before KillWait"
    text = out.read_text()
    assert text.count("rallypoint: stopped by SIGTERM\n") == 2
    for trouble in ("Traceback", "the guard is gone", "reconnecting", "left without"):
        assert trouble not in text
