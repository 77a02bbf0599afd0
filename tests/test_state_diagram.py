"""The state diagram of docs/state-machine.md matches the core, and every rule is described."""

import re
from pathlib import Path

import diagram
import pytest

RULES = """
    J1 J2 J3 J4 J5 J6 G1 N1 N2 L1 L2 L3 I1 S1 S2 R1 F1 C1 B1 H1 E1
""".split()  # noqa: SIM905 # shorter so


def test_the_diagram_is_current() -> None:
    assert diagram.PAGE.read_text("utf-8") == diagram.renewed(), "run python docs/diagram.py"


@pytest.mark.search
def test_more_steps_find_no_other_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagram.explore()
    monkeypatch.setattr(diagram, "DEPTH", diagram.DEPTH + 1)
    assert diagram.explore() == found


def test_closed_run_is_left_only_by_a_new_incarnation() -> None:
    found = diagram.explore()
    assert {word for (old, _), words in found.items() if old == "Closed" for word in words} == {
        "join (new incarnation)"
    }


def test_l3_only_close_finish_and_a_spent_budget_close_a_run() -> None:
    closings = {
        word: reason
        for (_, new), words in diagram.explore().items()
        if new == "Closed"
        for word, reason in words.items()
    }
    for word, reason in closings.items():
        by_budget = ": a worker failed and max_restarts=0 is used up: " in reason  # B1
        assert by_budget or word in ("close", "finish"), f"{word}: {reason}"
    assert "fail" not in closings, "B1: whether a failure counts is not known when it is told"


@pytest.mark.parametrize("number", RULES)
def test_every_rule_has_its_paragraph(number: str) -> None:
    page = diagram.PAGE.read_text("utf-8")
    assert re.search(rf"^- \*\*{number}\*\* ", page, re.MULTILINE)


def test_page_without_markers_is_named_in_the_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# nothing", "utf-8")
    monkeypatch.setattr(diagram, "PAGE", page)
    with pytest.raises(ValueError, match="has no place for the diagram"):
        diagram.renewed()
