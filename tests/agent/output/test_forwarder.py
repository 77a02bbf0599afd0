import os
import threading
from collections.abc import Callable

import pytest

from rallypoint.agent.output.forwarder import LAST_LINES, LINE_LIMIT_BYTES, STDERR, Pump, Way


class Piped:
    """A pump that is fed by hand; its console is a pipe."""

    def __init__(self, dress: Callable[[bytes], bytes] | None = None) -> None:
        read_end, self.fd = os.pipe()
        self.console, console_fd = os.pipe()
        self._console_fd = console_fd
        self.pump = Pump(read_end, STDERR, Way(None, True, dress, console_fd))
        self.pump.start()

    def write(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> tuple[str, ...]:
        os.close(self.fd)
        lines = self.pump.last_lines(10)
        os.close(self._console_fd)
        return lines

    def shown(self) -> str:
        with os.fdopen(self.console, "r") as reader:
            return reader.read()


def test_only_the_last_lines_are_kept() -> None:
    piped = Piped()
    piped.write("".join(f"{i}\n" for i in range(1000)) + "x")
    lines = piped.end()
    assert lines[-2:] == ("999", "x")
    assert len(lines) == LAST_LINES
    assert len(piped.shown().splitlines()) == 1001


def test_a_line_without_end_takes_no_memory_and_is_not_held_back() -> None:
    piped = Piped()
    for _ in range(30):
        piped.write("x" * 1000)
    (line,) = piped.end()
    assert len(line) == LINE_LIMIT_BYTES
    assert len(piped.shown()) == 30_000


def test_a_dressed_line_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rallypoint.agent.output.forwarder.CHUNK_BYTES", 100)
    piped = Piped(b"> ".__add__)
    piped.write("x" * 250 + "\nend")
    piped.end()
    lines = piped.shown().splitlines()
    assert "".join(line.removeprefix("> ") for line in lines) == "x" * 250 + "end"
    assert all(line.startswith("> ") for line in lines)


def test_what_is_said_after_something_is_done() -> None:
    piped = Piped()
    assert piped.pump.said_after(lambda: piped.write("before\n"), 10.0) == ("before",)

    def act() -> None:
        threading.Timer(0.05, piped.write, ["one\ntwo\n"]).start()

    assert piped.pump.said_after(act, 10.0) == ("one", "two")
    assert piped.pump.said_after(lambda: None, 0.05) == ()
    assert piped.end() == ("before", "one", "two")
    assert piped.shown() == "before\none\ntwo\n"


def test_a_console_that_is_full_holds_no_worker_up() -> None:
    read_end, fd = os.pipe()
    console = os.open("/dev/full", os.O_WRONLY)
    pump = Pump(read_end, STDERR, Way(None, True, None, console))
    pump.start()
    for _ in range(40):
        os.write(fd, b"x" * 9999 + b"\n")  # more than a pipe holds
    os.close(fd)
    assert len(pump.last_lines(10)) == LAST_LINES
    os.close(console)
