import json
import logging
import os
import sys
from pathlib import Path

import msgspec
import pytest

from rallypoint.agent.policy.events import Exit
from rallypoint.agent.reporting import report
from rallypoint.core.state import Failure

FIRST = Failure("node-a (10.0.0.1) pid 7", 3, 1, 9, "", "12:00:01", "Traceback\nValueError: x", 2)
LATER = Failure("node-b pid 8", 0, 0, None, "SIGABRT", "12:00:02", "", 2)


def test_the_first_failure_is_named_and_the_later_ones_follow() -> None:
    assert report.final_report(Exit(1, "the run was closed", (FIRST, LATER))) == (
        "first failure: rank 3 (local 1) on node-a (10.0.0.1) pid 7: exit code 9 at 12:00:01, "
        "in round 2\n"
        "  its last lines:\n"
        "  | Traceback\n"
        "  | ValueError: x\n"
        "\n"
        "later failures, probably its consequences:\n"
        "  rank 0 (local 0) on node-b pid 8: signal SIGABRT at 12:00:02, in round 2\n"
        "\n"
        "the run was closed"
    )


def test_failures_of_later_rounds_are_no_consequences() -> None:
    text = report.final_report(Exit(93, "closed", (FIRST, msgspec.structs.replace(LATER, round=5))))
    assert "consequences" not in text
    assert "in later rounds:\n  rank 0 (local 0) on node-b pid 8: signal SIGABRT" in text


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


def test_progress_goes_to_stdout_and_trouble_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    report.say("well")
    report.complain("ill")
    assert capsys.readouterr() == ("rallypoint: well\n", "rallypoint: ill\n")


def test_everything_can_be_said_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    report.speak_json("node-a")
    try:
        report.say("two\nlines")
        report.complain("ill")
        assert not report.is_live()
    finally:
        report.speak_json(None)
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert (said["text"], said["level"], said["node"]) == ("two\nlines", "info", "node-a")
    assert json.loads(err)["level"] == "error"


def test_what_the_library_logs_is_said_like_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("rallypoint")
    before = list(logger.handlers)
    try:
        report.speak_for_logs()
        report.speak_for_logs()
        logging.getLogger("rallypoint.part").warning("%s is away", "h:1")
        logger.info("a detail")
        report.speak_json("node-a")
        logger.warning("it is back")
    finally:
        report.speak_json(None)
        logger.handlers[:] = before
    text, line = capsys.readouterr().err.splitlines()
    assert text == "rallypoint: h:1 is away"
    assert json.loads(line)["text"] == "it is back"


def test_a_line_that_changes_gives_way_to_one_that_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report.replace_live_line("")
    report.replace_live_line("1 of 2")
    report.replace_live_line("2 of 2")
    report.say("sealed")
    report.replace_live_line("")
    clear = report.CLEAR_LINE
    assert capsys.readouterr().out == f"{clear}1 of 2{clear}2 of 2{clear}rallypoint: sealed\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_console_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    for console in (open("/dev/full", "w"), open(write_end, "w"), None):  # noqa: SIM115
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, console)
        report.say("well")
        report.complain("ill")
        report.replace_live_line("now")
        report.say("well again")
        if console is not None:
            console.close()  # nothing is left in its buffer, whose flush would fail
