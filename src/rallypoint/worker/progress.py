"""How a worker reports progress: a counter in memory that it shares with its agent.

The agent makes a small file and names it in the worker's environment (`PROGRESS_FILE`); both
map it. So reporting a step is a write to memory, without a system call. The first report also
registers a signal (`STACK_SIGNAL`) on which this process writes the stacks of its threads to
stderr, so that the agent can report where a worker hangs.
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
_FORMAT = struct.Struct("=Qqq")  # number of reports, last step, number of open `rest` blocks
_STDERR = 2


class ProgressWriter:
    """The worker's side."""

    def __init__(self, path: str | Path) -> None:
        """Map the file. Raises OSError."""
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE_BYTES)
        self._count, self._step, self._rests = _FORMAT.unpack_from(self._memory)

    def beat(self) -> None:
        """Report progress."""
        self._count += 1
        _FORMAT.pack_into(self._memory, 0, self._count, self._step, self._rests)

    def rest(self, more: int) -> None:
        """Begin (1) or end (-1) a block in which no progress is expected."""
        self._rests += more
        self.beat()

    def step(self, number: int) -> None:
        """Report a step; the same step again is no progress."""
        if number != self._step or not self._count:
            self._step = number
            self.beat()


class ProgressReader:
    """The agent's side, which makes the file."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(_FORMAT.pack(0, 0, 0))
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE_BYTES, access=mmap.ACCESS_READ)

    def read(self) -> tuple[int, int]:
        """Return the number of reports, and the last step.

        The number is 0 if the worker has reported nothing, or is in a `rest` block.
        """
        count, step, rests = _FORMAT.unpack_from(self._memory)
        return (0 if rests else count), step

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()


def open_progress(environ: Mapping[str, str]) -> ProgressWriter | None:
    """Return this process's writer, None if no agent watches it."""
    path = environ.get(PROGRESS_FILE)
    if not path:
        return None
    try:
        writer = ProgressWriter(path)
    except FileNotFoundError:
        return None  # the agent is gone, or on another machine
    if number := environ.get(STACK_SIGNAL):
        faulthandler.register(int(number), file=_STDERR, all_threads=True)
    return writer


_lock = threading.Lock()
_own: list[ProgressWriter | None] = []


def _writer() -> ProgressWriter | None:
    if not _own:
        with _lock:
            if not _own:
                _own.append(open_progress(os.environ))
    return _own[0]


def beat() -> None:
    """Report progress; after the first report, `--hang-timeout` applies to this worker.

    A call makes no system call, and has no effect without an agent that watches for hangs.
    """
    writer = _writer()
    if writer is not None:
        writer.beat()


@contextlib.contextmanager
def rest() -> Iterator[None]:
    """Suspend `--hang-timeout` during the block, for example in a long evaluation."""
    writer = _writer()
    if writer is None:
        yield
        return
    writer.rest(1)
    try:
        yield
    finally:
        writer.rest(-1)


def step(number: int) -> None:
    """Report that this worker begins step `number`, as `beat`; the same step is no progress."""
    writer = _writer()
    if writer is not None:
        writer.step(number)
