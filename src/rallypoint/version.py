"""The commit of this version, for `--version` and reports of faults.

A wheel has it in `revision.txt`, which hatch_build.py writes; in a checkout git knows it.
"""

import subprocess
from importlib.resources import files
from pathlib import Path

GIT_SECONDS = 2.0
ROOT = Path(__file__).resolve().parents[2]


def revision() -> str:
    """Return the short commit, with a + for uncommitted changes; "" if unknown."""
    kept = files("rallypoint") / "revision.txt"
    if kept.is_file():
        return kept.read_text("utf-8").strip()
    return of_checkout(ROOT)


def of_checkout(folder: Path) -> str:
    """Return the commit of a checkout, "" if the folder is none or without git."""
    if not (folder / ".git").exists():
        return ""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],  # noqa: S607 - on the PATH
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
