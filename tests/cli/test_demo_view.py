import io

import pytest
from rich.console import Console

from rallypoint.cli.demo_story import Check, Line, Story
from rallypoint.cli.demo_view import View, picture, summary


def a_story() -> Story:
    story = Story()
    story.started(1, 11)
    for text in (
        "rallypoint: round 1: rank 0 of 1 node (all have come)",
        "round 1  world size 1  epoch   3  loss 0.1  accuracy 96.0%",
    ):
        story.take(Line(1.0, 1, text))
    story.take(Line(1.0, 0, " INFO run x: round 1 sealed with 1 nodes: all have come; at work"))
    return story


def test_the_picture_shows_nodes_rounds_and_training() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(picture(a_story(), ["something happened"]))
    shown = console.export_text()
    for part in ("in round 1", "all have come", "epoch 3, accuracy 96.0%", "something happened"):
        assert part in shown


def test_without_a_terminal_each_event_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with View(Story(), Console(file=io.StringIO())) as view:
        view.tell(["one", "two"])
        view.tell([])
    assert capsys.readouterr().out == "  0.0 s  one\n  0.0 s  two\n"


def test_on_a_terminal_the_picture_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    with View(a_story(), console) as view:
        view.tell(["news"])
    assert "who is in" in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_the_summary_has_rounds_figures_and_what_failed() -> None:
    story = a_story()
    story.complaints.append("node 1: odd")
    checks = [Check("a", "a", True), Check("accuracy: over 95%", "94.0%", False)]
    lines = summary(story, [("detection", "1 ms", "kill -> told")], checks)
    assert "  1  1 nodes  all have come" in lines
    assert "  detection          1 ms  kill -> told" in lines
    assert "  node 1: odd" in lines
    assert lines[-1] == "expected accuracy: over 95%; seen: 94.0%"
    assert summary(story, [], checks[:1])[-1] == "all 1 expectations hold"
