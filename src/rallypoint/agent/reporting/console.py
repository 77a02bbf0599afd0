"""Prints the agent's lines: progress on stdout, errors on stderr.

A normal run leaves stderr to its workers (D4). With `--log-format json` each line is a JSON
object, like the workers' lines (`agent.output`).

A console that is full or gone ends no job: text that cannot be written is dropped, and nothing
stays in a buffer, whose last flush would change the exit code.
"""

import contextlib
import io
import logging
import os
import sys
import threading
from typing import TextIO

import msgspec

from rallypoint.wallclock import now_text

CLEAR_LINE = "\r\x1b[K"


class _Console:
    """State of this process's console."""

    def __init__(self) -> None:
        self.node: str | None = None  # the "node" field of JSON lines; None: lines are text
        self.lock = threading.Lock()
        self.live = False  # whether the terminal's last line is a live line


_console = _Console()


def use_json(node: str | None) -> None:
    """Print JSON lines from now on, with `node` in each; None: text lines again."""
    _console.node = node


class _LogHandler(logging.Handler):
    """Prints warnings of the library as errors of the agent."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.format(record))


_log_handler = _LogHandler(logging.WARNING)


def print_logs() -> None:
    """Print what the `rallypoint` logger gets in the agent's format, JSON or text."""
    logging.getLogger("rallypoint").addHandler(_log_handler)  # a second time has no effect


def say(text: str) -> None:
    """Print one line about progress."""
    _print(text, "info", error=False)


def complain(text: str) -> None:
    """Print one line about an error."""
    _print(text, "error", error=True)


def _print(text: str, level: str, error: bool) -> None:
    line = f"rallypoint: {text}"
    if _console.node is not None:
        value = {"at": now_text(), "source": "rallypoint", "level": level}
        line = msgspec.json.encode({**value, "node": _console.node, "text": text}).decode()
    with _console.lock:
        if _console.live:
            _write(sys.stdout, CLEAR_LINE)
            _console.live = False
        _write(sys.stderr if error else sys.stdout, f"{line}\n")


def _write(stream: TextIO | None, text: str) -> None:
    """Try once to write, past the stream's buffer if it has a file descriptor."""
    if stream is None:  # closed before this process started
        return
    with contextlib.suppress(OSError):
        try:
            fd = stream.fileno()
        except io.UnsupportedOperation:
            stream.write(text)
            return
        data = memoryview(text.encode(stream.encoding, "backslashreplace"))
        while data:
            data = data[os.write(fd, data) :]


def is_live() -> bool:
    """Return whether stdout is a terminal that can show a live line."""
    if _console.node is not None or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return sys.stdout.isatty()


def replace_live_line(text: str) -> None:
    """Replace the terminal's live line; "" removes it."""
    with _console.lock:
        if text or _console.live:
            _write(sys.stdout, f"{CLEAR_LINE}{text}")
        _console.live = bool(text)
