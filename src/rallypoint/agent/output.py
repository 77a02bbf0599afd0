"""Where the workers' stdout and stderr go: to the console, to files, or both.

The options are torchrun's: `redirects` sends a stream to a file only, `tee` to a file and, with
a prefix [node rank], to the console; each is 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for
all local ranks ("3") or for some ("0:1,1:3"). With a log directory and neither option, both
streams go to files and, without a prefix, to the console. Files:
LOGDIR/RUNID/round_N/RANK/stdout.log.

A stdout that goes to the console unchanged is inherited. stderr always passes through a pipe, so
that its last lines are known when a worker fails. A thread per pipe forwards bytes as they
arrive, progress bars included; only where lines are decorated (a prefix, or JSON) it waits for
whole lines.
"""

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import msgspec

from rallypoint.errors import ParameterError
from rallypoint.wallclock import now_text

STDOUT, STDERR = 1, 2
NAMES = {STDOUT: "stdout", STDERR: "stderr"}
COLOURS = (36, 33, 35, 32, 34, 31)  # of prefixes, by rank
LAST_LINES = 40
LINE_LIMIT_BYTES = 4096
CHUNK_BYTES = 65536
QUIET_SECONDS = 0.2
CLOSE_SECONDS = 1.0
_console_lock = threading.Lock()

Choice = dict[int | None, int]
"""Local rank, or None for all -> bits (1 stdout, 2 stderr)."""


def parse_choice(option: str, text: str) -> Choice:
    """Parse the value of `--redirects` or `--tee`. Raises ParameterError."""
    wrong = ParameterError(
        f"{option} {text!r}: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), "
        "or pairs of local rank and one of these: 0:1,1:3"
    )
    choice: Choice = {}
    for part in text.split(","):
        rank, colon, value = part.strip().rpartition(":")
        if value not in ("0", "1", "2", "3") or (colon and not rank.isdecimal()):
            raise wrong
        if not colon and "," in text:
            raise wrong
        choice[int(rank) if colon else None] = int(value)
    return choice


def streams_of(choice: Choice, local_rank: int) -> int:
    """Return the bits (1 stdout, 2 stderr) chosen for a worker."""
    return choice.get(local_rank, choice.get(None, 0))


class Destination(msgspec.Struct, frozen=True):
    """Where one stream of one worker goes.

    Args:
        path: of its file, None for none.
        console: whether it goes to the console, too.
        decorate: turns a line, without its end, into a console line; None: bytes are unchanged.
        max_bytes: size at which the file is rotated, 0 for never.
        keep: number of older files to keep.
    """

    path: Path | None
    console: bool
    decorate: Callable[[bytes], bytes] | None = None
    max_bytes: int = 0
    keep: int = 0


class OutputPlan(msgspec.Struct, frozen=True):
    """What happens to the output of all workers of a node.

    Args:
        log_dir: directory for the files, None for no files.
        redirects: streams that go to a file only.
        tee: streams that go to a file, and with a prefix to the console.
        role: name in the prefix, unless it is "default".
        node: name of this node, in the prefix and in JSON.
        max_bytes: size at which a file is rotated, 0 for never.
        keep: number of older files to keep.
        as_json: whether each console line is a JSON object.
        coloured: streams whose console shows colours.
    """

    log_dir: Path | None = None
    redirects: Choice = {}
    tee: Choice = {}
    role: str = "default"
    node: str = ""
    max_bytes: int = 0
    keep: int = 0
    as_json: bool = False
    coloured: frozenset[int] = frozenset()

    def worker(self, run_id: str, round_number: int, rank: int, local_rank: int) -> "WorkerOutput":
        """Return the output of one worker in one round."""
        folder = None
        if self.log_dir is not None:
            safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in run_id)
            folder = self.log_dir / safe / f"round_{round_number}" / str(rank)
        redirects = streams_of(self.redirects, local_rank)
        tee = streams_of(self.tee, local_rank)
        all_to_files = not self.redirects and not self.tee
        destinations = {}
        for stream in (STDOUT, STDERR):
            to_file = folder is not None and (all_to_files or bool((redirects | tee) & stream))
            destinations[stream] = Destination(
                path=folder / f"{NAMES[stream]}.log" if folder is not None and to_file else None,
                console=not redirects & stream or bool(tee & stream),
                decorate=self._decoration(round_number, rank, stream, bool(tee & stream)),
                max_bytes=self.max_bytes,
                keep=self.keep,
            )
        return WorkerOutput(destinations)

    def _decoration(
        self, round_number: int, rank: int, stream: int, teed: bool
    ) -> Callable[[bytes], bytes] | None:
        if self.as_json:
            facts = {"node": self.node, "rank": rank, "round": round_number}
            return functools.partial(_as_json, {**facts, "stream": NAMES[stream]})
        if not teed:
            return None
        names = [self.node, *([self.role] if self.role != "default" else []), str(rank)]
        prefix = f"[{' '.join(filter(None, names))}]:"
        if stream in self.coloured:
            prefix = f"\x1b[{COLOURS[rank % len(COLOURS)]}m{prefix}\x1b[0m"
        return f"{prefix} ".encode().__add__


def _as_json(facts: Mapping[str, object], line: bytes) -> bytes:
    text = line.decode("utf-8", "replace").rstrip("\r")
    return msgspec.json.encode({"at": now_text(), "source": "worker", **facts, "text": text})


class Streams(msgspec.Struct, frozen=True):
    """File descriptors that a worker is started with; None is inherited."""

    stdout: int | None
    stderr: int


class WorkerOutput:
    """The two streams of one worker. Order of calls: open, begin (or abandon), close."""

    def __init__(self, destinations: Mapping[int, Destination]) -> None:
        self._destinations = destinations
        self._forwarders: dict[int, Forwarder] = {}

    def open(self) -> Streams:
        """Make pipes and files. Raises ParameterError when a file cannot be made."""
        try:
            for stream, to in self._destinations.items():
                if stream == STDERR or to.path or not to.console or to.decorate is not None:
                    self._forwarders[stream] = Forwarder(stream, to, console_fd=stream)
        except OSError as error:
            self.abandon()
            raise ParameterError(
                f"--log-dir: cannot write {error.filename}: {error.strerror}"
            ) from error
        stdout = self._forwarders.get(STDOUT)
        return Streams(None if stdout is None else stdout.write_end, self.stderr.write_end)

    def begin(self) -> None:
        """Forward the output, now that the worker holds its ends of the pipes."""
        for forwarder in self._forwarders.values():
            forwarder.begin()

    def abandon(self) -> None:
        """Undo `open`: the worker did not start."""
        for forwarder in self._forwarders.values():
            forwarder.abandon()
        self._forwarders.clear()

    @property
    def stderr(self) -> "Forwarder":
        """The forwarder of stderr, once `open` has been called."""
        return self._forwarders[STDERR]

    def close(self) -> None:
        """Wait up to a second for what the worker wrote before its end."""
        for forwarder in self._forwarders.values():
            forwarder.join(CLOSE_SECONDS)  # a descendant that was not killed may hold the pipe


class Forwarder(threading.Thread):
    """Forwards one stream from its pipe, and remembers its last lines.

    Args:
        stream: STDOUT or STDERR, for the thread's name.
        destination: where it goes; its file is opened at once (OSError).
        console_fd: file descriptor of the console.
    """

    def __init__(self, stream: int, destination: Destination, console_fd: int) -> None:
        super().__init__(name=f"rallypoint-{NAMES[stream]}", daemon=True)
        self._file: LogFile | None = None
        if destination.path is not None:
            self._file = LogFile(destination.path, destination.max_bytes, destination.keep)
        self._fd, self.write_end = os.pipe()
        self._console = destination.console
        self._console_fd = console_fd
        self._decorate = destination.decorate
        self._lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self._partial = b""
        self._undecorated = b""
        self._seen = 0
        self._changed = threading.Condition()

    def begin(self) -> None:
        """Close our copy of the pipe's writing end, and start to forward."""
        os.close(self.write_end)
        self.start()

    def abandon(self) -> None:
        """Close everything; the thread was not started."""
        os.close(self.write_end)
        self._close()

    def run(self) -> None:
        """Forward until all writers have closed the pipe."""
        try:
            while chunk := os.read(self._fd, CHUNK_BYTES):
                self._remember(chunk)
                self._write_file(chunk)
                self._write_console(chunk)
            if self._undecorated:
                self._write_console(b"\n")
        finally:
            self._close()

    def _close(self) -> None:
        os.close(self._fd)
        if self._file is not None:
            self._file.close()

    def last_lines(self, wait_seconds: float) -> tuple[str, ...]:
        """Return the last lines, once the stream ends or after `wait_seconds`."""
        self.join(wait_seconds)
        with self._changed:
            return self._shown(LAST_LINES)

    def lines_after(self, act: Callable[[], None], limit_seconds: float) -> tuple[str, ...]:
        """Call `act`; return the lines that follow, up to a short silence; () for none."""
        with self._changed:
            before = self._seen
            act()
            if not self._changed.wait_for(lambda: self._seen > before, limit_seconds):
                return ()
            while self._changed.wait(QUIET_SECONDS):
                pass
            return self._shown(min(LAST_LINES, self._seen - before))

    def _shown(self, most: int) -> tuple[str, ...]:
        lines = [*self._lines, *([self._partial] if self._partial.strip() else [])]
        return tuple(line.decode("utf-8", "replace").rstrip() for line in lines[-most:])

    def _remember(self, chunk: bytes) -> None:
        with self._changed:
            *whole, self._partial = (self._partial + chunk).split(b"\n")
            self._lines.extend(line[-LINE_LIMIT_BYTES:] for line in whole)
            self._partial = self._partial[-LINE_LIMIT_BYTES:]
            self._seen += len(whole)
            self._changed.notify_all()

    def _write_file(self, chunk: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(chunk)
        except OSError as error:
            self._file.close()
            path, self._file = self._file.path, None
            self._console = True  # a full disk must not lose the worker's output
            note = f"rallypoint: {path}: {error.strerror}; writing to the console instead\n"
            self._to_console(STDERR, note.encode())

    def _write_console(self, chunk: bytes) -> None:
        if not self._console:
            return
        if self._decorate is not None:
            *whole, self._undecorated = (self._undecorated + chunk).split(b"\n")
            if len(self._undecorated) > CHUNK_BYTES:  # bound the memory of an endless line
                whole, self._undecorated = [*whole, self._undecorated], b""
            chunk = b"".join(self._decorate(line) + b"\n" for line in whole)
        self._to_console(self._console_fd, chunk)

    def _to_console(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            with _console_lock:
                while view:
                    view = view[os.write(fd, view) :]
        except OSError:
            self._console = False  # the console is gone or full; the worker is not affected


class LogFile:
    """A file that is rotated when it is full: stdout.log, stdout.log.1, stdout.log.2 ...

    Args:
        path: of the newest file; its folder is made.
        max_bytes: size at which it is rotated: at the end of the line that reaches it, or inside
            a line at twice the size; 0 for never.
        keep: number of older files to keep.
    """

    def __init__(self, path: Path, max_bytes: int = 0, keep: int = 0) -> None:
        """Open it. Raises OSError."""
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        """Append bytes. Raises OSError."""
        while data:
            end = self._end_of_part(data)
            self._file.write(data[:end])
            self._size += end
            full = self._max_bytes and self._size >= self._max_bytes
            if full and (data[:end].endswith(b"\n") or self._size >= 2 * self._max_bytes):
                self._rotate()
            data = data[end:]

    def _end_of_part(self, data: bytes) -> int:
        """Return how many bytes belong to this file: up to the end of the line that fills it."""
        if not self._max_bytes:
            return len(data)
        room = max(self._max_bytes - self._size, 1)
        line_end = data.find(b"\n", room - 1) + 1
        return min(line_end or len(data), max(2 * self._max_bytes - self._size, 1))

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._keep - 1, 0, -1):
            if self._older(number).exists():
                self._older(number).replace(self._older(number + 1))
        if self._keep:
            self.path.replace(self._older(1))
        self._file = self.path.open("wb", buffering=0)
        self._size = 0

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
