import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
WORKER = Path(__file__).with_name("worker.py")
RALLYPOINT = Path(sys.executable).with_name("rallypoint")


def mpirun(tasks: int, *line: str) -> str:
    program = shutil.which("mpirun")
    assert program is not None
    done = subprocess.run(
        [program, "--allow-run-as-root", "--oversubscribe", "-n", str(tasks), *line],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("tasks", [1, 3])
def test_mpirun_processes_need_no_endpoint(tasks: int) -> None:
    out = mpirun(tasks, str(RALLYPOINT), "run", str(WORKER))
    met = ",".join(map(str, range(tasks)))
    rows = re.findall(rf"rank (\d)/{tasks} run=mpi-\d+ met={met}", out)
    assert sorted(rows) == [str(rank) for rank in range(tasks)]


def test_given_options_override_variables(tmp_path: Path) -> None:
    out = mpirun(2, str(RALLYPOINT), "run", "--standalone", str(WORKER))
    assert len(re.findall(r"rank 0/1 run=run-\w+ met=0", out)) == 2
