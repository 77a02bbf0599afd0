"""A helper process that ends the workers when the agent is killed with no chance to do so.

The agent holds the only writing end of a pipe and names on it each worker as it comes and
goes ("+PID START", "-PID"). However the agent ends, the kernel closes the pipe; the guard, in
a session of its own, then kills the workers that are left and all that came from them
(`agent.tree`). Works wherever pipes do.

A worker that is just being started holds a copy of the pipe until it runs its own program,
so the guard begins only when each one can be seen by its mark: none slips through.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rallypoint.agent.workers import process_tree

END_SECONDS = 10.0
QUIET_PASSES = 2  # a worker that closed the pipe a moment before its exec has no mark yet
GOODBYE = b".\n"  # the agent has ended its workers itself


class Guard:
    """The agent's end: names the workers to be killed if this process dies.

    Args:
        on_lost: called once with a sentence if the guard itself was ended by someone.
        mark: in the environment of all workers (`tree.MARK`).
    """

    def __init__(self, on_lost: Callable[[str], None], mark: str) -> None:
        """Start the guard. Raises OSError when no process can be started."""
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
        """Name workers to be killed: process id and start time."""
        self._write(f"+{pid} {start!r}\n" for pid, start in workers.items())

    def forget(self, workers: Iterable[int]) -> None:
        """Take workers back, before their ids can be used again."""
        self._write(f"-{pid}\n" for pid in workers)

    def _write(self, lines: Iterable[str]) -> None:
        with self._lock:
            try:
                self._pipe.write("".join(lines).encode())
                self._pipe.flush()
            except BrokenPipeError:
                if not self._lost:
                    self._lost = True
                    self._on_lost("the guard is gone: if this agent is killed, its workers stay")

    def close(self) -> None:
        """End the guard; it kills what is still named."""
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

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()


def _environment() -> dict[str, str]:
    """Return ours, in which this package is found wherever it was imported from."""
    paths = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).resolve().parents[2])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def workers_left(lines: Iterable[bytes]) -> tuple[dict[int, float], bool]:
    """Return the workers still named once the lines end, and whether the agent said goodbye."""
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


def _guard(pipe: IO[bytes], mark: str) -> None:
    workers, goodbye = workers_left(pipe)
    if workers or not goodbye:
        process_tree.end(mark, workers, END_SECONDS, QUIET_PASSES)


if __name__ == "__main__":
    # A scheduler that ends a job signals all its processes at once: the guard goes last.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _guard(sys.stdin.buffer, sys.argv[1])
