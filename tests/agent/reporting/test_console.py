import json
import logging
import os
import sys
from pathlib import Path

import pytest

from rallypoint.agent.reporting import console


def test_progress_goes_to_stdout_and_errors_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("well")
    console.complain("ill")
    assert capsys.readouterr() == ("rallypoint: well\n", "rallypoint: ill\n")


def test_lines_can_be_json(capsys: pytest.CaptureFixture[str]) -> None:
    console.use_json("node-a")
    try:
        console.say("two\nlines")
        console.complain("ill")
        assert not console.is_live()
    finally:
        console.use_json(None)
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert (said["text"], said["level"], said["node"]) == ("two\nlines", "info", "node-a")
    assert json.loads(err)["level"] == "error"


def test_log_records_are_printed_like_other_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("rallypoint")
    before = list(logger.handlers)
    try:
        console.print_logs()
        console.print_logs()
        logging.getLogger("rallypoint.part").warning("%s is away", "h:1")
        logger.info("a detail")
        console.use_json("node-a")
        logger.warning("it is back")
    finally:
        console.use_json(None)
        logger.handlers[:] = before
    text, line = capsys.readouterr().err.splitlines()
    assert text == "rallypoint: h:1 is away"
    assert json.loads(line)["text"] == "it is back"


def test_live_line_is_cleared_before_another_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console.replace_live_line("")
    console.replace_live_line("1 of 2")
    console.replace_live_line("2 of 2")
    console.say("sealed")
    console.replace_live_line("")
    clear = console.CLEAR_LINE
    assert capsys.readouterr().out == f"{clear}1 of 2{clear}2 of 2{clear}rallypoint: sealed\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_unwritable_console_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    for stream in (open("/dev/full", "w"), open(write_end, "w"), None):  # noqa: SIM115
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, stream)
        console.say("well")
        console.complain("ill")
        console.replace_live_line("now")
        console.say("well again")
        if stream is not None:
            stream.close()  # nothing is left in its buffer, whose flush would fail
