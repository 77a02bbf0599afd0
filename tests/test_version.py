import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from rallypoint import __version__, version
from rallypoint.cli import main


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_checkout_reports_commit_and_local_changes(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "one")
    clean = version.of_checkout(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{7,}", clean)
    (tmp_path / "a").write_text("2")
    assert version.of_checkout(tmp_path) == f"{clean}+"


def test_no_commit_outside_a_checkout(tmp_path: Path) -> None:
    assert version.of_checkout(tmp_path) == ""
    (tmp_path / ".git").write_text("nonsense")
    assert version.of_checkout(tmp_path) == ""


def test_no_commit_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    monkeypatch.setenv("PATH", "")
    assert version.of_checkout(tmp_path) == ""


@pytest.mark.parametrize(
    ("found", "shown"), [("abc1234", f"{__version__} (abc1234)"), ("", __version__)]
)
def test_version_option_prints_version_and_commit(
    found: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "revision", lambda: found)
    assert CliRunner().invoke(main, ["--version"]).output == f"rallypoint {shown}\n"


def test_source_tree_knows_its_commit() -> None:
    assert version.revision() == "" or re.fullmatch(r"[0-9a-f]{7,}\+?", version.revision())
