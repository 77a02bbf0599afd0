import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.agent.output.destinations import OutputPlan, WorkerOutput, parse_choice, streams_of
from rallypoint.errors import ParameterError

SCRIPT = "import sys; print('out'); print('err', file=sys.stderr)"


def run(output: WorkerOutput, script: str = SCRIPT) -> tuple[str, ...]:
    streams = output.open()
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=streams.stdout, stderr=streams.stderr
    )
    output.begin()
    assert process.wait(30) == 0
    lines = output.last_lines(10)
    output.close()
    return lines


@pytest.mark.parametrize(
    ("text", "choice"),
    [("0", {None: 0}), ("3", {None: 3}), ("0:1,1:3", {0: 1, 1: 3}), (" 2:2 ", {2: 2})],
)
def test_torchrun_words(text: str, choice: dict[int | None, int]) -> None:
    assert parse_choice("--tee", text) == choice


@pytest.mark.parametrize("text", ["4", "", "a:1", "1:9", "1,2", "0:1,", "-1:1", "1:1:1"])
def test_wrong_words_are_refused_by_name(text: str) -> None:
    with pytest.raises(ParameterError, match="--redirects"):
        parse_choice("--redirects", text)


def test_ranks_that_are_not_named_get_nothing() -> None:
    assert [streams_of({0: 1, 1: 3}, rank) for rank in range(3)] == [1, 3, 0]
    assert streams_of({None: 2}, 7) == 2


def test_by_default_both_streams_reach_the_console(capfd: pytest.CaptureFixture[str]) -> None:
    output = OutputPlan().worker("run", 1, 0, 0)
    assert run(output) == ("err",)
    assert capfd.readouterr() == ("out\n", "err\n")


def test_a_log_dir_gets_all_and_the_console_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(OutputPlan(log_dir=tmp_path).worker("my/run", 3, 5, 1))
    folder = tmp_path / "my_run" / "round_3" / "5"
    assert (folder / "stdout.log").read_text() == "out\n"
    assert (folder / "stderr.log").read_text() == "err\n"
    assert capfd.readouterr() == ("out\n", "err\n")


def test_redirects_keep_a_stream_off_the_console(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(OutputPlan(tmp_path, redirects={None: 3}).worker("run", 1, 0, 0)) == ("err",)
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "run/round_1/0/stderr.log").read_text() == "err\n"


def test_tee_prefixes_whole_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = "import sys; sys.stdout.write('a\\nb'); sys.stdout.flush(); sys.stdout.write('c')"
    plan = OutputPlan(tmp_path, tee={None: 1}, node="gpu-1")
    run(plan.worker("run", 1, 7, 0), script)
    assert capfd.readouterr().out == "[gpu-1 7]: a\n[gpu-1 7]: bc\n"
    assert (tmp_path / "run/round_1/7/stdout.log").read_text() == "a\nbc"
    assert not (tmp_path / "run/round_1/7/stderr.log").exists()


def test_a_role_is_named_where_there_is_one(capfd: pytest.CaptureFixture[str]) -> None:
    run(OutputPlan(tee={0: 1}, role="trainer", node="n").worker("run", 1, 7, 0))
    assert capfd.readouterr().out == "[n trainer 7]: out\n"


def test_colours_are_for_the_streams_that_show_them(capfd: pytest.CaptureFixture[str]) -> None:
    plan = OutputPlan(tee={None: 3}, node="n", coloured=frozenset({1}))
    run(plan.worker("run", 1, 1, 0))
    assert capfd.readouterr() == ("\x1b[33m[n 1]:\x1b[0m out\n", "[n 1]: err\n")


def test_lines_can_be_json(capfd: pytest.CaptureFixture[str]) -> None:
    run(OutputPlan(as_json=True, node="n").worker("run", 2, 5, 0))
    out, err = (json.loads(text) for text in capfd.readouterr())
    assert out.pop("at").endswith("UTC")
    known = {"source": "worker", "node": "n", "rank": 5, "round": 2}
    assert out == {**known, "stream": "stdout", "text": "out"}
    assert err["text"] == "err"


def test_a_log_dir_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(ParameterError, match="--log-dir"):
        OutputPlan(tmp_path / "file").worker("run", 1, 0, 0).open()
    assert len(os.listdir("/dev/fd")) == before


def test_files_are_turned_over(tmp_path: Path) -> None:
    plan = OutputPlan(tmp_path, redirects={None: 1}, max_bytes=1, keep=1)
    run(plan.worker("run", 1, 0, 0), "import sys; sys.stdout.write('a\\n' * 3)")
    assert (tmp_path / "run/round_1/0/stdout.log.1").read_text() == "a\n"
