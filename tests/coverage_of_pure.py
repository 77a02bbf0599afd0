"""Line and branch coverage of each PURE module by its own test file: 100%, or what is missing.

    python tests/coverage_of_pure.py [MODULE ...]        such as rendezvous/core/ranks.py

Each module is measured alone, with its mirrored test file and nothing else, so that a rule is
shown by the tests that are written for it.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.test_architecture import PURE_FILES, mirror_of, name_of  # noqa: E402 - the path first

LIMIT_SECONDS = 300


def modules() -> list[str]:
    """Return the PURE modules that have code."""
    return [name_of(path) for path in PURE_FILES if mirror_of(path).exists()]


def uncovered(module: str) -> list[str]:
    """Return the lines and branches of a module that its test file does not reach.

    Raises AssertionError if the tests fail.
    """
    import rallypoint

    source = Path(rallypoint.__file__).parent / module  # the one that is tested, not a copy
    mirror = mirror_of(next(path for path in PURE_FILES if name_of(path) == module))
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"COVERAGE_FILE": f"{folder}/data", "COVERAGE_CORE": "ctrace"}
        coverage = [sys.executable, "-m", "coverage"]
        measured = ["run", "--branch", "--parallel-mode", "-m", "pytest"]
        run = [*coverage, *measured, "-q", "-x", "-p", "no:cacheprovider", str(mirror)]
        report_of = ["json", "-q", f"--include={source}", "-o", f"{folder}/report"]
        done = subprocess.run(
            run, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        for step in (["combine", "-q"], report_of):
            subprocess.run([*coverage, *step], cwd=ROOT, env=env, check=True, capture_output=True)
        (report,) = json.loads(Path(f"{folder}/report").read_text("utf-8"))["files"].values()
    lines = [f"line {line}" for line in report["missing_lines"]]
    branches = [f"line {a} never goes on to {b}" for a, b in report["missing_branches"]]
    return lines + branches


def main() -> int:
    """Print what is missing; 1 if anything is."""
    bad, names = 0, sys.argv[1:] or modules()

    def look(module: str) -> list[str]:
        try:
            return uncovered(module)
        except AssertionError as error:
            return [f"its tests fail: {error}"]

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for module, missing in zip(names, threads.map(look, names), strict=True):
            bad += bool(missing)
            print(f"{module}: {'; '.join(missing) or 'all'}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
