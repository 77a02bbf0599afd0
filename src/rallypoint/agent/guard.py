"""A helper process that ends the workers when the agent is killed with no chance to do so.

The agent holds the only writing end of a pipe and names on it each worker's process group as
it comes and goes ("+PID", "-PID"). However the agent ends, the kernel closes the pipe; the
guard, in a session of its own, then kills the groups that are left. Works wherever pipes do.

This file is also the guard's program, started by path: the standard library only, so that
it is up in a few milliseconds.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import IO, Self


class Guard:
    """The agent's end: names the groups to be killed if this process dies.

    Args:
        on_lost: called once with a sentence if the guard itself was ended by someone.
    """

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        """Start the guard. Raises OSError when no process can be started."""
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._lost = False
        read_end, write_end = os.pipe()
        self._pipe = os.fdopen(write_end, "wb")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(read_end)

    def watch(self, groups: Iterable[int]) -> None:
        """Name groups to be killed."""
        self._write("+", groups)

    def forget(self, groups: Iterable[int]) -> None:
        """Take groups back, before their ids can be used again."""
        self._write("-", groups)

    def _write(self, sign: str, groups: Iterable[int]) -> None:
        with self._lock:
            try:
                self._pipe.write("".join(f"{sign}{group}\n" for group in groups).encode())
                self._pipe.flush()
            except BrokenPipeError:
                if not self._lost:
                    self._lost = True
                    self._on_lost("the guard is gone: if this agent is killed, its workers stay")

    def close(self) -> None:
        """End the guard; it kills what is still named."""
        with contextlib.suppress(BrokenPipeError):
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


def groups_left(lines: Iterable[bytes]) -> set[int]:
    """Return the groups that were named and not taken back, once the lines end."""
    groups: set[int] = set()
    for line in lines:
        if line.startswith(b"+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    return groups


def _guard(pipe: IO[bytes]) -> None:
    for group in groups_left(pipe):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    # A scheduler that ends a job signals all its processes at once: the guard goes last.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _guard(sys.stdin.buffer)
