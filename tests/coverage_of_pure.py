"""Line and branch coverage of each PURE module by its own test file: must be 100%.

    python tests/coverage_of_pure.py [MODULE ...]        such as core/ranks.py

Each module is measured alone, with its mirrored test file only, so that each rule is covered by the
tests written for it. The measurement runs in a process forked from one that has imported the tools
and nothing of Rallypoint.
"""

import json
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.test_architecture import PURE_FILES, mirror_of, name_of  # noqa: E402 - the path first

LIMIT_SECONDS = 300
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["coverage", "hypothesis", "pytest", "msgspec", "psutil", "uvloop"])


def modules() -> list[str]:
    """Return the PURE modules that have code."""
    return [name_of(path) for path in PURE_FILES if mirror_of(path).exists()]


def measure(source: str, mirror: str, folder: str) -> None:
    """Run a test file and write its coverage of a source file to `report`, its output to `log`."""
    log = os.open(f"{folder}/log", os.O_CREAT | os.O_WRONLY, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.chdir(ROOT)
    os.environ["COVERAGE_CORE"] = "ctrace"
    measured = coverage.Coverage(data_file=None, include=[source])
    measured.set_option("run:source_pkgs", [])  # has precedence over include
    ours = "ignore::pytest.PytestAssertRewriteWarning"  # the tools were imported before
    with measured.collect():
        code = pytest.main(["-q", "-x", "-W", ours, "-p", "no:cacheprovider", mirror])
    if not code:
        measured.json_report(outfile=f"{folder}/report")


def uncovered(module: str) -> list[str]:
    """Return the lines and branches of a module that its test file does not reach.

    Raises AssertionError if the tests fail.
    """
    package = find_spec("rallypoint")
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).parent / module  # the source that is tested, not a copy
    mirror = mirror_of(next(path for path in PURE_FILES if name_of(path) == module))
    with tempfile.TemporaryDirectory() as folder:
        process = FORKED.Process(target=measure, args=(str(source), str(mirror), folder))
        process.start()
        process.join(LIMIT_SECONDS)
        process.kill()
        process.join()
        report, log = Path(folder, "report"), Path(folder, "log")
        assert report.exists(), log.read_text("utf-8") if log.exists() else "it did not start"
        (file,) = json.loads(report.read_text("utf-8"))["files"].values()
    lines = [f"line {line}" for line in file["missing_lines"]]
    branches = [f"line {a} never goes on to {b}" for a, b in file["missing_branches"]]
    return lines + branches


def main() -> int:
    """Print the uncovered lines and branches; return 1 if there are any."""
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
