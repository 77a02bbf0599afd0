"""A third party's package, installed beside ours: found by entry point, held to the suites.

It is laid out as `pip install --target` would do it (module and dist-info), which needs
neither a network nor a build.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def install(target: Path) -> None:
    """Install the package into a folder."""
    project = tomllib.loads((HERE / "package" / "pyproject.toml").read_text())["project"]
    shutil.copy(HERE / "package" / "rallypoint_sqlite.py", target)
    info = target / f"rallypoint_sqlite-{project['version']}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head)
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.integration
def test_external_package(tmp_path: Path) -> None:
    install(tmp_path)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            str(HERE / "conformance.py"),
        ],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
        timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stdout
    assert "skipped" not in done.stdout
