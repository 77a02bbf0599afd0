"""How a worker shows that it goes on: a counter in memory that it shares with its agent.

The agent makes a small file and names it in the worker's environment (`PROGRESS_FILE`); both map
it. Telling a step is then a store to memory: no system call, whatever the rate. The first
one also registers a signal (`STACK_SIGNAL`) at which this process writes the stacks of its
threads to stderr, so that the agent can say where a worker stands still.
"""

import contextlib
import faulthandler
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

PROGRESS_FILE = "RALLYPOINT_PULSE"
STACK_SIGNAL = "RALLYPOINT_STACK_SIGNAL"
SIZE_BYTES = 24
_FORM = struct.Struct("=Qqq")  # moves so far, the last step told, how many rests it is in
_STDERR = 2


class ProgressWriter:
    """A worker's end."""

    def __init__(self, path: str | Path) -> None:
        """Map the file. Raises OSError."""
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE_BYTES)
        self._moves, self._step, self._rests = _FORM.unpack_from(self._memory)

    def beat(self) -> None:
        """Say that the work goes on."""
        self._moves += 1
        _FORM.pack_into(self._memory, 0, self._moves, self._step, self._rests)

    def rest(self, more: int) -> None:
        """Begin (1) or end (-1) a wait in which nothing is expected to move."""
        self._rests += more
        self.beat()

    def step(self, number: int) -> None:
        """Say which step this is; the same number again is no progress."""
        if number != self._step or not self._moves:
            self._step = number
            self.beat()


class ProgressReader:
    """The agent's end; makes the file."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(_FORM.pack(0, 0, 0))
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE_BYTES, access=mmap.ACCESS_READ)

    def read(self) -> tuple[int, int]:
        """Return how often the worker has moved, and its last step.

        No moves: it tells nothing, or rests; it is not watched then.
        """
        moves, step, rests = _FORM.unpack_from(self._memory)
        return (0 if rests else moves), step

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()


def open_progress(environ: Mapping[str, str]) -> ProgressWriter | None:
    """Return this process's progress, None where no agent watches it."""
    path = environ.get(PROGRESS_FILE)
    if not path:
        return None
    try:
        progress = ProgressWriter(path)
    except FileNotFoundError:
        return None  # its agent is gone, or it lives elsewhere
    if number := environ.get(STACK_SIGNAL):
        faulthandler.register(int(number), file=_STDERR, all_threads=True)
    return progress


_lock = threading.Lock()
_own: list[ProgressWriter | None] = []


def _progress() -> ProgressWriter | None:
    if not _own:
        with _lock:
            if not _own:
                _own.append(open_progress(os.environ))
    return _own[0]


def beat() -> None:
    """Say that this worker goes on; with `--hang-timeout`, its agent watches for it.

    Costs no system call. Without an agent that watches, nothing happens.
    """
    progress = _progress()
    if progress is not None:
        progress.beat()


@contextlib.contextmanager
def rest() -> Iterator[None]:
    """Be in no hurry within this block: a long evaluation, a wait for others; see `beat`."""
    progress = _progress()
    if progress is None:
        yield
        return
    progress.rest(1)
    try:
        yield
    finally:
        progress.rest(-1)


def step(number: int) -> None:
    """Say that this worker is at step `number`; see `beat`. The same one again is no progress."""
    progress = _progress()
    if progress is not None:
        progress.step(number)
