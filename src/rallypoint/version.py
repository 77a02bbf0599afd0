"""The version and its commit, for `--version` and reports of faults.

A wheel has the commit in `revision.txt`, which hatch_build.py writes; in a checkout git knows it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.1.0"
GIT_SECONDS = 2.0


def revision() -> str:
    """Return the short commit, with a + for uncommitted changes; "" if unknown."""
    from importlib.resources import files  # slow to import, for a package that all import
    from pathlib import Path

    kept = files("rallypoint") / "revision.txt"
    if kept.is_file():
        return kept.read_text("utf-8").strip()
    return of_checkout(Path(__file__).resolve().parents[2])


def of_checkout(folder: "Path") -> str:
    """Return the commit of a checkout, "" if the folder is none or without git."""
    import subprocess  # slow to import as well

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
