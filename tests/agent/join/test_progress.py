import threading
from collections.abc import Callable

import pytest

from rallypoint.agent.join import progress
from rallypoint.agent.join.progress import JoinProgress
from rallypoint.agent.reporting import console
from rallypoint.rendezvous.coordinator import Report
from rallypoint.testing.fakes import ManualClock


def report_of(reason: str) -> Report:
    return Report("run", "gathering", 1, 1, reason)


class Lines:
    """Takes lines; waits until there are so many."""

    def __init__(self, count: int) -> None:
        self.lines: list[str] = []
        self._count = count
        self._all = threading.Event()

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        if len(self.lines) == self._count:
            self._all.set()

    def wait(self) -> list[str]:
        assert self._all.wait(10)
        return self.lines[: self._count]


def answers(*reasons: str | Exception) -> Callable[[], Report | None]:
    rest = iter(reasons)

    def ask() -> Report | None:
        answer = next(rest, "more")
        if isinstance(answer, Exception):
            raise answer
        return report_of(answer)

    return ask


def test_progress_is_printed_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVALS_SECONDS", (0.001, 0.002))
    lines = Lines(3)
    shown = JoinProgress(
        answers("1 of 2 nodes", RuntimeError("gone"), "2 of 2 nodes"), 600.0, lines
    )
    shown.start()
    found = lines.wait()
    shown.stop()
    assert found[0].startswith("1 of 2 nodes; join timeout in 9 min 5")
    assert found[1] == "cannot ask the coordinator about the run: gone"
    assert found[2].startswith("2 of 2 nodes; join timeout in")


def test_live_line_asks_seldom_and_counts_locally(manual_clock: ManualClock) -> None:
    asked: list[int] = []

    def ask() -> Report:
        asked.append(1)
        return report_of(f"answer {len(asked)}")

    shown = JoinProgress(ask, 30.0, show=lambda _line: None, clock=manual_clock)
    lines = []
    for _ in range(8):
        lines.append(shown.line())
        manual_clock.advance(1.0)
    assert lines[:2] == ["answer 1; join timeout in 30 s", "answer 1; join timeout in 29 s"]
    assert lines[5] == "answer 2; join timeout in 25 s"
    assert len(asked) == 2


def test_live_line_is_updated_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LIVE_SECONDS", 0.001)
    lines = Lines(5)
    shown = JoinProgress(answers("1 of 2"), 600.0, pytest.fail, lines)
    shown.start()
    lines.wait()
    shown.stop()
    assert lines.lines[-1] == ""


def test_live_line_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    for text in ("1 of 2", "1 of 2 nodes", "x" * 100, ""):
        progress.live_line(text)
    shown = ["", "rallypoint: 1 of 2", "1 of 2 nodes", "x" * 19, ""]
    assert capsys.readouterr().out.split(console.CLEAR_LINE) == shown


def test_no_line_in_the_last_second_of_a_join(manual_clock: ManualClock) -> None:
    shown = JoinProgress(lambda: report_of("0 of 2"), 5.0, pytest.fail, clock=manual_clock)
    manual_clock.advance(3.0)
    assert shown.line() == "0 of 2; join timeout in 2.0 s"
    manual_clock.advance(1.5)
    assert shown.line() == ""  # the join's error tells more, and may be newer


def test_a_spare_is_told_that_it_is_one_and_its_join_time_begins_anew(
    manual_clock: ManualClock,
) -> None:
    phases = ["sealed"]

    def ask() -> Report:
        return Report("run", phases[-1], 1, 1, "round 1 is running with 2 nodes")

    shown = JoinProgress(
        ask, 5.0, pytest.fail, is_spare=lambda: phases == ["sealed"], clock=manual_clock
    )
    told = "this node is a spare: it joins when a node leaves"
    manual_clock.advance(60.0)
    assert shown.line() == f"round 1 is running with 2 nodes; {told}"
    phases.append("gathering")
    assert shown.line().endswith("; join timeout in 5.0 s")


def test_no_line_without_a_report() -> None:
    assert JoinProgress(lambda: None, 600.0, pytest.fail).line() == ""


def test_long_join_is_examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EXAMINE_SECONDS", 0.001)
    for look, line in ((lambda: "doctor: x", "doctor: x"), (fails, "the doctor failed: ")):
        lines = Lines(1)
        shown = JoinProgress(lambda: None, 600.0, lines, examine=look)
        shown.start()
        (found,) = lines.wait()
        shown.stop()
        assert found.startswith(line)


def fails() -> str:
    raise OSError("no network")


def test_short_join_is_not_examined() -> None:
    looked = threading.Event()

    def look() -> str:
        looked.set()
        return ""

    shown = JoinProgress(lambda: None, 600.0, pytest.fail, examine=look)
    shown.start()
    shown.stop()
    assert not looked.is_set()


@pytest.fixture
def manual_clock() -> ManualClock:
    return ManualClock()
