import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
RALLYPOINT = Path(sys.executable).with_name("rallypoint")


def test_torchrun_script_runs_unchanged() -> None:
    done = subprocess.run(
        [
            *(str(RALLYPOINT), "run", "--standalone", "--nproc-per-node", "2"),
            "examples/train_accelerate.py",
        ],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found = re.search(r"^2 workers: accuracy (0\.\d+)$", done.stdout, re.MULTILINE)
    assert found is not None
    assert float(found[1]) > 0.9
