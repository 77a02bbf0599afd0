import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rallypoint.agent.output import (
    LAST_LINES,
    LINE_LIMIT_BYTES,
    STDERR,
    Destination,
    Forwarder,
    LogFile,
    OutputPlan,
    WorkerOutput,
    parse_choice,
    streams_of,
)
from rallypoint.errors import ParameterError

SCRIPT = "import sys; print('out'); print('err', file=sys.stderr)"


def run(output: WorkerOutput, script: str = SCRIPT) -> tuple[str, ...]:
    streams = output.open()
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=streams.stdout, stderr=streams.stderr
    )
    output.begin()
    assert process.wait(30) == 0
    lines = output.stderr.last_lines(10)
    output.close()
    return lines


@pytest.mark.parametrize(
    ("text", "choice"),
    [("0", {None: 0}), ("3", {None: 3}), ("0:1,1:3", {0: 1, 1: 3}), (" 2:2 ", {2: 2})],
)
def test_choices_are_parsed_as_torchrun_does(text: str, choice: dict[int | None, int]) -> None:
    assert parse_choice("--tee", text) == choice


@pytest.mark.parametrize("text", ["4", "", "a:1", "1:9", "1,2", "0:1,", "-1:1", "1:1:1"])
def test_invalid_choice_is_refused_and_names_the_option(text: str) -> None:
    with pytest.raises(ParameterError, match="--redirects"):
        parse_choice("--redirects", text)


def test_choice_applies_to_the_named_ranks_only() -> None:
    assert [streams_of({0: 1, 1: 3}, rank) for rank in range(3)] == [1, 3, 0]
    assert streams_of({None: 2}, 7) == 2


def test_both_streams_reach_the_console_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    output = OutputPlan().worker("run", 1, 0, 0)
    assert run(output) == ("err",)
    assert capfd.readouterr() == ("out\n", "err\n")


def test_with_a_log_dir_output_goes_to_files_and_console(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(OutputPlan(log_dir=tmp_path).worker("my/run", 3, 5, 1))
    folder = tmp_path / "my_run" / "round_3" / "5"
    assert (folder / "stdout.log").read_text() == "out\n"
    assert (folder / "stderr.log").read_text() == "err\n"
    assert capfd.readouterr() == ("out\n", "err\n")


def test_redirected_stream_does_not_reach_the_console(
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


def test_prefix_contains_the_role_unless_it_is_the_default(
    capfd: pytest.CaptureFixture[str],
) -> None:
    run(OutputPlan(tee={0: 1}, role="trainer", node="n").worker("run", 1, 7, 0))
    assert capfd.readouterr().out == "[n trainer 7]: out\n"


def test_only_coloured_streams_get_coloured_prefixes(capfd: pytest.CaptureFixture[str]) -> None:
    plan = OutputPlan(tee={None: 3}, node="n", coloured=frozenset({1}))
    run(plan.worker("run", 1, 1, 0))
    assert capfd.readouterr() == ("\x1b[33m[n 1]:\x1b[0m out\n", "[n 1]: err\n")


def test_console_lines_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    run(OutputPlan(as_json=True, node="n").worker("run", 2, 5, 0))
    out, err = (json.loads(text) for text in capfd.readouterr())
    assert out.pop("at").endswith("UTC")
    known = {"source": "worker", "node": "n", "rank": 5, "round": 2}
    assert out == {**known, "stream": "stdout", "text": "out"}
    assert err["text"] == "err"


def test_unusable_log_dir_is_an_error_and_leaks_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(ParameterError, match="--log-dir"):
        OutputPlan(tmp_path / "file").worker("run", 1, 0, 0).open()
    assert len(os.listdir("/dev/fd")) == before


def test_log_files_are_rotated(tmp_path: Path) -> None:
    plan = OutputPlan(tmp_path, redirects={None: 1}, max_bytes=1, keep=1)
    run(plan.worker("run", 1, 0, 0), "import sys; sys.stdout.write('a\\n' * 3)")
    assert (tmp_path / "run/round_1/0/stdout.log.1").read_text() == "a\n"


class Piped:
    """A forwarder whose input and console are pipes of the test."""

    def __init__(self, decorate: Callable[[bytes], bytes] | None = None) -> None:
        self.console, self._console_fd = os.pipe()
        self.forwarder = Forwarder(STDERR, Destination(None, True, decorate), self._console_fd)
        self.fd = os.dup(self.forwarder.write_end)
        self.forwarder.begin()

    def write(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> tuple[str, ...]:
        os.close(self.fd)
        lines = self.forwarder.last_lines(10)
        os.close(self._console_fd)
        return lines

    def shown(self) -> str:
        with os.fdopen(self.console, "r") as reader:
            return reader.read()


def test_only_the_last_lines_are_remembered() -> None:
    piped = Piped()
    piped.write("".join(f"{i}\n" for i in range(1000)) + "x")
    lines = piped.end()
    assert lines[-2:] == ("999", "x")
    assert len(lines) == LAST_LINES
    assert len(piped.shown().splitlines()) == 1001


def test_endless_line_is_forwarded_and_remembered_in_part() -> None:
    piped = Piped()
    for _ in range(30):
        piped.write("x" * 1000)
    (line,) = piped.end()
    assert len(line) == LINE_LIMIT_BYTES
    assert len(piped.shown()) == 30_000


def test_endless_line_is_cut_when_decorated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rallypoint.agent.output.CHUNK_BYTES", 100)
    piped = Piped(b"> ".__add__)
    piped.write("x" * 250 + "\nend")
    piped.end()
    lines = piped.shown().splitlines()
    assert "".join(line.removeprefix("> ") for line in lines) == "x" * 250 + "end"
    assert all(line.startswith("> ") for line in lines)


def test_lines_after_an_action_are_returned() -> None:
    piped = Piped()
    assert piped.forwarder.lines_after(lambda: piped.write("before\n"), 10.0) == ("before",)

    def act() -> None:
        threading.Timer(0.05, piped.write, ["one\ntwo\n"]).start()

    assert piped.forwarder.lines_after(act, 10.0) == ("one", "two")
    assert piped.forwarder.lines_after(lambda: None, 0.05) == ()
    assert piped.end() == ("before", "one", "two")
    assert piped.shown() == "before\none\ntwo\n"


def test_full_console_does_not_block_the_worker() -> None:
    console = os.open("/dev/full", os.O_WRONLY)
    forwarder = Forwarder(STDERR, Destination(None, True), console)
    fd = os.dup(forwarder.write_end)
    forwarder.begin()
    for _ in range(40):
        os.write(fd, b"x" * 9999 + b"\n")  # more than a pipe holds
    os.close(fd)
    assert len(forwarder.last_lines(10)) == LAST_LINES
    os.close(console)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_full_file_is_rotated_at_the_end_of_a_line(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "deep" / "x.log", max_bytes=4, keep=2)
    for text in ("aaaa", "a\n", "b\n", "bb\n", "cccc\n", "d"):
        log.write(text.encode())
    log.close()
    found = texts(tmp_path / "deep")
    assert found == {"x.log": "d", "x.log.1": "cccc\n", "x.log.2": "b\nbb\n"}


def test_endless_line_is_rotated_at_twice_the_size(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=4, keep=1)
    for _ in range(9):
        log.write(b"a")
    log.close()
    assert texts(tmp_path) == {"x.log": "a", "x.log.1": "a" * 8}


def test_keep_zero_keeps_no_older_file(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=2, keep=0)
    log.write(b"a\n")
    log.close()
    assert texts(tmp_path) == {"x.log": ""}


def test_without_limit_the_file_grows_and_is_appended_to(tmp_path: Path) -> None:
    for text in (b"a\n" * 1000, b"b"):
        log = LogFile(tmp_path / "x.log")
        log.write(text)
        log.close()
    assert texts(tmp_path) == {"x.log": "a\n" * 1000 + "b"}


def test_chunk_is_split_at_line_ends(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=6, keep=9)
    log.write(b"aa\nbb\ncccc\nd\n" + b"e" * 15 + b"\nf")
    log.close()
    found = texts(tmp_path)
    oldest_first = [found[name] for name in sorted(found, reverse=True)]
    assert oldest_first == ["aa\nbb\n", "cccc\nd\n", "e" * 12, "eee\nf"]
