"""The agent's words: what goes on, what went wrong, and the failure report at the end.

What goes wrong is said on stderr; what goes on is said on stdout, so that a normal run
leaves stderr to its workers (case-D4). With `--log-format json` each of them is a JSON object on
one line, as the workers' lines are (`agent.output`).

A console that is full or gone ends no job: what cannot be written is dropped, and nothing stays
in a buffer, whose last flush would change the exit code.
"""

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import TextIO

import msgspec

from rallypoint.agent.policy.events import Exit
from rallypoint.agent.reporting.exit_codes import EXIT_DONE, EXIT_SIGNAL_BASE
from rallypoint.core.state import Failure
from rallypoint.wallclock import now_text

LATER_FAILURES_SHOWN = 8
CLEAR_LINE = "\r\x1b[K"


class _Console:
    """How this process speaks: one for all, as there is one stdout."""

    def __init__(self) -> None:
        self.node: str | None = None  # said in each line where lines are JSON
        self.lock = threading.Lock()
        self.live = False  # a line that changes is on the terminal


_console = _Console()


def speak_json(node: str | None) -> None:
    """Say everything as JSON lines from now on, in the name of `node`; None: as text again."""
    _console.node = node


class _Complaints(logging.Handler):
    """Says what the library logs (a server that is away, a token file) as the agent would."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.format(record))


_complaints = _Complaints(logging.WARNING)


def speak_for_logs() -> None:
    """Say what is logged under our name in the agent's own form, JSON or text, from now on."""
    logging.getLogger("rallypoint").addHandler(_complaints)  # which takes each handler once


def say(text: str) -> None:
    """Print one line about what goes on."""
    _print(text, "info", error=False)


def complain(text: str) -> None:
    """Print one line about what went wrong."""
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
    """Write in one attempt, past the stream's buffer where it is a real one."""
    if stream is None:  # closed before we were started
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
    """Return whether stdout is a terminal on which a line can change."""
    if _console.node is not None or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return sys.stdout.isatty()


def replace_live_line(text: str) -> None:
    """Replace the line that changes; "" takes it away."""
    with _console.lock:
        if text or _console.live:
            _write(sys.stdout, f"{CLEAR_LINE}{text}")
        _console.live = bool(text)


def final_report(end: Exit, own: Sequence[Failure] = ()) -> str:
    """Return the text that ends a run that failed, "" when there is nothing to say.

    The first failure is on top, with its last lines; the later ones are its consequences.

    Args:
        end: how the agent ends.
        own: failures of this node's workers, for when the coordinator has told of none.
    """
    if end.code == EXIT_DONE or end.code >= EXIT_SIGNAL_BASE:
        return ""
    failures = end.failures or tuple(own)
    lines = []
    if failures:
        first, *later = failures
        lines += [f"first failure: {_in_round(first)}", *_quoted(first.message)]
        same = [failure for failure in later if failure.round == first.round]
        lines += _listed("later failures, probably its consequences:", same)
        others = [failure for failure in later if failure.round != first.round]
        lines += [*_listed("in later rounds:", others), ""]
    return "\n".join([*lines, end.text]).strip("\n")


def _in_round(failure: Failure) -> str:
    return f"{failure.label}, in round {failure.round}" if failure.round else failure.label


def _quoted(message: str) -> list[str]:
    if not message.strip():
        return ["  (it wrote nothing to stderr)"]
    return ["  its last lines:", *(f"  | {line}" for line in message.splitlines())]


def _listed(head: str, failures: Sequence[Failure]) -> list[str]:
    if not failures:
        return []
    shown = [f"  {_in_round(failure)}" for failure in failures[:LATER_FAILURES_SHOWN]]
    hidden = len(failures) - len(shown)
    more = [f"  and {hidden} more"] if hidden else []
    return ["", head, *shown, *more]
