import threading
from collections.abc import Iterator

import pytest

from rallypoint.agent import report
from rallypoint.agent.events import Exit
from rallypoint.rendezvous.core.state import Failure

FIRST = Failure("node-a (10.0.0.1) pid 7", 3, 1, 9, "", "12:00:01", "Traceback\nValueError: x", 2)
LATER = Failure("node-b pid 8", 0, 0, None, "SIGABRT", "12:00:02", "", 2)


def test_the_first_failure_is_named_and_the_later_ones_follow() -> None:
    assert report.final_report(Exit(1, "the run was closed", (FIRST, LATER))) == (
        "the run was closed\n"
        "\n"
        "first failure: rank 3 (local 1) on node-a (10.0.0.1) pid 7: exit code 9 at 12:00:01, "
        "in round 2\n"
        "  its last lines:\n"
        "  | Traceback\n"
        "  | ValueError: x\n"
        "\n"
        "later failures, probably its consequences:\n"
        "  rank 0 (local 0) on node-b pid 8: signal SIGABRT at 12:00:02, in round 2"
    )


def test_own_failures_stand_in_when_the_coordinator_told_of_none() -> None:
    assert "exit code 9" in report.final_report(Exit(1, "no connection"), [FIRST])
    assert "(it wrote nothing to stderr)" in report.final_report(Exit(1), [LATER])


def test_many_later_failures_are_counted() -> None:
    text = report.final_report(Exit(1, "", (FIRST, *[LATER] * 20)))
    assert text.count("node-b") == report.LATER_FAILURES_SHOWN
    assert text.endswith("and 12 more")


@pytest.mark.parametrize("code", [0, 143])
def test_nothing_to_say_when_it_was_done_or_asked_for(code: int) -> None:
    assert report.final_report(Exit(code, "received SIGTERM"), [FIRST]) == ""


def test_waiting_is_told_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "WAIT_INTERVALS_SECONDS", (0.001, 0.002))
    lines: list[str] = []
    done = threading.Event()
    answers: Iterator[str | Exception] = iter(
        ["1 of 2 nodes", RuntimeError("gone"), "2 of 2 nodes"]
    )

    def ask() -> str:
        answer = next(answers, "more")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tell(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            done.set()

    waiting = report.WaitingLines(ask, tell)
    waiting.start()
    assert done.wait(10)
    waiting.stop()
    assert lines[:3] == [
        "1 of 2 nodes",
        "cannot ask what is being waited for: gone",
        "2 of 2 nodes",
    ]


def test_progress_goes_to_stdout_and_trouble_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    report.say("well")
    report.complain("ill")
    assert capsys.readouterr() == ("rallypoint: well\n", "rallypoint: ill\n")


def test_the_doctor_looks_once_when_a_join_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "EXAMINE_SECONDS", 0.001)
    for look, line in ((lambda: "doctor: x", "doctor: x"), (fails, "the doctor failed: ")):
        lines: list[str] = []
        told = threading.Event()

        def tell(text: str, lines: list[str] = lines, told: threading.Event = told) -> None:
            lines.append(text)
            told.set()

        waiting = report.WaitingLines(lambda: "", tell, look)
        waiting.start()
        assert told.wait(10)
        waiting.stop()
        assert len(lines) == 1
        assert lines[0].startswith(line)


def fails() -> str:
    raise OSError("no network")


def test_the_doctor_is_silent_when_the_join_was_quick() -> None:
    looked = threading.Event()

    def look() -> str:
        looked.set()
        return ""

    waiting = report.WaitingLines(lambda: "", lambda _: None, look)
    waiting.start()
    waiting.stop()
    assert not looked.is_set()
