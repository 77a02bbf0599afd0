"""A helper process that kills the workers if the agent is killed.

The agent holds the only writing end of a pipe, and writes a line when a worker starts ("+PID
START") or ends ("-PID"). However the agent ends, the kernel closes the pipe; the reaper, in its
own session, then kills the remaining workers and their descendants (`process_tree`).

A worker that is being started holds a copy of the pipe until its exec. So when the pipe closes,
every worker has run its exec and is found by its mark.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Self

from rallypoint.agent.workers import process_tree

END_SECONDS = 10.0
QUIET_PASSES = 2  # a worker may close the pipe a moment before its mark is visible
GOODBYE = b".\n"  # the agent has stopped its workers itself


class Reaper:
    """The agent's end of the pipe.

    Args:
        on_lost: called once with a sentence if the reaper process was killed.
        mark: in the environment of all workers (`process_tree.MARK`).
    """

    def __init__(self, on_lost: Callable[[str], None], mark: str) -> None:
        """Start the reaper. Raises OSError when no process can be started."""
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._lost = False
        read_end, write_end = os.pipe()
        self._pipe = os.fdopen(write_end, "wb")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, mark],  # -P: no module of the user's
                env=_environment(),
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(read_end)

    def watch(self, workers: process_tree.Roots) -> None:
        """Add workers, by process id and start time, that are killed if this process dies."""
        self._write(f"+{pid} {start!r}\n" for pid, start in workers.items())

    def forget(self, workers: Iterable[int]) -> None:
        """Remove workers, before their process ids can be reused."""
        self._write(f"-{pid}\n" for pid in workers)

    def _write(self, lines: Iterable[str]) -> None:
        with self._lock:
            try:
                self._pipe.write("".join(lines).encode())
                self._pipe.flush()
            except BrokenPipeError:
                if not self._lost:
                    self._lost = True
                    self._on_lost(
                        "the reaper process was killed: if this agent is killed too, "
                        "its workers go on running"
                    )

    def close(self) -> None:
        """End the reaper process; it kills the workers that were not removed."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.write(GOODBYE)
            self._pipe.close()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _environment() -> dict[str, str]:
    """Return our environment, with the folder of this package in PYTHONPATH."""
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).resolve().parents[2])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def workers_left(lines: Iterable[bytes]) -> tuple[dict[int, float], bool]:
    """Return the workers that were not removed, and whether the agent said goodbye."""
    workers: dict[int, float] = {}
    for line in lines:
        if line == GOODBYE:
            return workers, True
        if line.startswith(b"+"):
            pid, start = line[1:].split()
            workers[int(pid)] = float(start)
        else:
            workers.pop(int(line[1:]), None)
    return workers, False


def _run(pipe: IO[bytes], mark: str) -> None:
    workers, goodbye = workers_left(pipe)
    if workers or not goodbye:
        process_tree.end(mark, workers, END_SECONDS, QUIET_PASSES)


if __name__ == "__main__":
    # A scheduler signals all processes of a job at once; the reaper must end last.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _run(sys.stdin.buffer, sys.argv[1])
