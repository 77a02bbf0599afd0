import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from rich.console import Console

from rallypoint.cli import demo, main
from rallypoint.cli.demo import View, picture, summary
from rallypoint.cli.demo_facts import Check, DemoFacts, Ended, Line
from rallypoint.cli.demo_processes import DemoProcesses

COMMAND = [sys.executable, "-m", "rallypoint", "demo"]
GRACE_MS = 1000


def started_under(folder: Path) -> Iterator[psutil.Process]:
    """Yield what runs with this temporary folder, which all of a demo's processes inherit."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(folder):
                yield process
        except psutil.Error:
            continue  # another user's, or gone


def under(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


def nothing_is_left(folder: Path) -> None:
    assert list(started_under(folder)) == []
    assert list(folder.iterdir()) == []


def milliseconds(name: str, output: str) -> int:
    found = re.search(rf"^  {name} +([\d,]+) ms", output, re.MULTILINE)
    assert found, output
    return int(found[1].replace(",", ""))


@pytest.mark.integration
def test_demo_shows_a_loss_a_newcomer_and_the_end(tmp_path: Path) -> None:
    done = subprocess.run(
        COMMAND, env=under(tmp_path), capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "all 8 expectations hold" in done.stdout
    assert "\x1b" not in done.stdout  # plain lines where there is no terminal
    assert "on stderr" not in done.stdout
    assert GRACE_MS - 5 <= milliseconds("detection", done.stdout) < 2 * GRACE_MS
    assert milliseconds("new round", done.stdout) < GRACE_MS
    nothing_is_left(tmp_path)


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_training_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        COMMAND,
        env=under(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "epoch  1" in line:
            break
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert stderr == f"rallypoint: demo: received {number.name}; everything was ended\n"
    nothing_is_left(tmp_path)


@pytest.mark.integration
def test_failed_script_is_named_and_the_demo_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit('out of luck')")
    monkeypatch.setattr(demo, "find_script", lambda: script)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "demo: while waiting for 5 epochs in round 1: node" in result.stderr
    assert "(exit code 93)" in result.stderr
    assert "out of luck" in result.stdout
    assert "expected accuracy: over 95%; seen: none was printed" in result.stdout


def test_error_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "sklearn" else object())
    result = CliRunner().invoke(main, ["demo"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "rallypoint: demo: the demo trains on real data and needs sklearn: "
        "pip install 'rallypoint[examples]'\n"
    )


def test_script_is_found() -> None:
    assert demo.find_script().name == "train_digits.py"
    assert demo.find_script().is_file()


def test_every_wait_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "WAIT_SECONDS", 0.0)
    facts = DemoFacts()
    with pytest.raises(demo.DemoFailed, match="a new round did not come within 0 s"):
        demo._until(DemoProcesses(), facts, View(facts, Console()), "a new round", lambda: False)


def test_wait_ends_when_no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, processes = DemoFacts(), DemoProcesses()
    facts.started(1, 11)
    monkeypatch.setattr(processes, "next_event", lambda _deadline: Ended(1.0, 1, 0))
    with pytest.raises(demo.DemoFailed, match="all nodes have ended before round 3 came"):
        demo._until(processes, facts, View(facts, Console()), "round 3", lambda: False)


def a_story() -> DemoFacts:
    facts = DemoFacts()
    facts.started(1, 11)
    for text in (
        "rallypoint: round 1: rank 0 of 1 node (all have come)",
        "round 1  world size 1  epoch   3  loss 0.1  accuracy 96.0%",
    ):
        facts.take(Line(1.0, 1, text))
    facts.take(Line(1.0, 0, " INFO run x: round 1 sealed with 1 nodes: all have come; at work"))
    return facts


def test_picture_shows_nodes_rounds_and_training() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(picture(a_story(), ["something happened"]))
    shown = console.export_text()
    for part in ("in round 1", "all have come", "epoch 3, accuracy 96.0%", "something happened"):
        assert part in shown


def test_each_event_is_a_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with View(DemoFacts(), Console(file=io.StringIO())) as view:
        view.tell(["one", "two"])
        view.tell([])
    assert capsys.readouterr().out == "  0.0 s  one\n  0.0 s  two\n"


def test_picture_is_drawn_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    with View(a_story(), console) as view:
        view.tell(["news"])
    assert "nodes" in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_summary_has_rounds_figures_and_failures() -> None:
    facts = a_story()
    facts.complaints.append("node 1: odd")
    checks = [Check("a", "a", True), Check("accuracy: over 95%", "94.0%", False)]
    lines = summary(facts, [("detection", "1 ms", "kill -> told")], checks)
    assert "  1  1 nodes  all have come" in lines
    assert "  detection            1 ms  kill -> told" in lines
    assert "  node 1: odd" in lines
    assert lines[-1] == "expected accuracy: over 95%; seen: 94.0%"
    assert summary(facts, [], checks[:1])[-1] == "all 1 expectations hold"
