"""The docs are current: generated parts, names and links."""

import inspect
import re
from pathlib import Path

import generate
import pytest

from rallypoint.store.api import Store

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = ROOT / "tests" / "cases" / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), CATALOGUE])


@pytest.mark.parametrize("name", sorted(generate.PARTS))
def test_generated_parts_are_current(name: str) -> None:
    path, text = generate.renewed(name)
    assert path.read_text("utf-8") == text, f"{path.name}: run `make docs`"


def test_every_store_call_is_described() -> None:
    page = (ROOT / "docs" / "store.md").read_text("utf-8")
    calls = [name for name, _ in inspect.getmembers(Store) if not name.startswith("_")]
    missing = [name for name in calls if f"`{name}" not in page]
    assert not missing, f"docs/store.md does not name {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: no {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_in_the_docs_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"`make ([a-z-]+)`", page.read_text("utf-8")):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"


def test_every_public_report_has_a_test_and_no_test_names_an_unknown_one() -> None:
    page = CATALOGUE.read_text("utf-8").partition("<!-- generated: cases -->")[0]
    rows = set(re.findall(r"^\| (case-\S+) \|", page, re.MULTILINE))
    shown = {row for row, _, _ in generate.case_tests()}
    assert rows == shown, f"no test: {sorted(rows - shown)}; no such row: {sorted(shown - rows)}"


def test_only_rows_of_the_catalogue_are_mentioned() -> None:
    page = CATALOGUE.read_text("utf-8")
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *PAGES]:
        for row in re.findall(r"\bcase-[A-Z]\d+\b", path.read_text("utf-8")):
            assert f"| {row} |" in page, f"{path}: {row}"
