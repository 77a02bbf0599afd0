"""Where the workers' stdout and stderr go.

torchrun's words: `redirects` sends a stream to a file only, `tee` to a file and to the
console with a prefix; each is 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for all local
ranks ("3") or for some ("0:1,1:3"). With a log directory and neither word, both streams go
to the files and, without a prefix, to the console. Files: LOGDIR/RUNID/round_N/RANK/stdout.log.

A stream that nothing has to look at is inherited. stderr always passes through a pipe, byte
by byte as it comes (progress bars included), so that its last lines are known when a worker
fails; what it writes is never held back.
"""

import os
import threading
from collections import deque
from pathlib import Path
from typing import IO

import msgspec

from rallypoint.errors import ParameterError

LAST_LINES = 20
LINE_LIMIT_BYTES = 4096
CHUNK_BYTES = 65536
STDOUT, STDERR = 1, 2
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_console_lock = threading.Lock()

Choice = dict[int | None, int]  # local rank, or None for all -> 0..3


def parse_choice(option: str, text: str) -> Choice:
    """Return which streams `--redirects` or `--tee` means. Raises ParameterError."""
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


class OutputPlan(msgspec.Struct, frozen=True):
    """What to do with the output of all workers of a node.

    Args:
        log_dir: directory for the files, None for no files.
        redirects: streams that go to a file only.
        tee: streams that go to a file, and with a prefix to the console.
        role: name in the prefix.
    """

    log_dir: Path | None = None
    redirects: Choice = {}
    tee: Choice = {}
    role: str = "default"

    def worker(self, run_id: str, round_number: int, rank: int, local_rank: int) -> "WorkerOutput":
        """Return the output of one worker in one round."""
        folder = None
        if self.log_dir is not None:
            safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in run_id)
            folder = self.log_dir / safe / f"round_{round_number}" / str(rank)
        redirects = streams_of(self.redirects, local_rank)
        tee = streams_of(self.tee, local_rank)
        all_to_files = not self.redirects and not self.tee
        routes = {}
        for stream in (STDOUT, STDERR):
            to_file = folder is not None and (all_to_files or bool((redirects | tee) & stream))
            routes[stream] = Route(
                path=folder / f"{_NAMES[stream]}.log" if folder is not None and to_file else None,
                console=not redirects & stream or bool(tee & stream),
                prefix=f"[{self.role} {rank}]:" if tee & stream else "",
            )
        return WorkerOutput(routes)


class Route(msgspec.Struct, frozen=True):
    """Where one stream goes: a file, the console, or both; `prefix` begins console lines."""

    path: Path | None
    console: bool
    prefix: str


class Streams(msgspec.Struct, frozen=True):
    """What a worker is started with; None is inherited."""

    stdout: int | None
    stderr: int | None


class WorkerOutput:
    """The two streams of one worker. Order of calls: open, begin (or abandon), close."""

    def __init__(self, routes: dict[int, Route]) -> None:
        self._routes = routes
        self._pumps: dict[int, _Pump] = {}
        self._ours: list[int] = []

    def open(self) -> Streams:
        """Make pipes and files. Raises ParameterError when a file cannot be made."""
        fds: dict[int, int | None] = {}
        try:
            for stream, route in self._routes.items():
                fds[stream] = self._open_stream(stream, route)
        except OSError as error:
            self.abandon()
            raise ParameterError(
                f"--log-dir: cannot write {error.filename}: {error.strerror}"
            ) from error
        return Streams(fds[STDOUT], fds[STDERR])

    def _open_stream(self, stream: int, route: Route) -> int | None:
        if stream == STDOUT and route.path is None and route.console and not route.prefix:
            return None
        file: IO[bytes] | None = None
        if route.path is not None:
            route.path.parent.mkdir(parents=True, exist_ok=True)
            file = route.path.open("ab", buffering=0)
        read_end, write_end = os.pipe()
        self._ours.append(write_end)
        self._pumps[stream] = _Pump(read_end, stream, route, file)
        return write_end

    def begin(self) -> None:
        """Carry output, now that the worker holds its ends of the pipes."""
        self._close_ours()
        for pump in self._pumps.values():
            pump.start()

    def abandon(self) -> None:
        """Undo `open`: the worker did not start."""
        self._close_ours()
        for pump in self._pumps.values():
            pump.abandon()
        self._pumps.clear()

    def last_lines(self, wait_seconds: float) -> tuple[str, ...]:
        """Return the last lines of stderr, giving it `wait_seconds` to come to its end."""
        pump = self._pumps.get(STDERR)
        return pump.last_lines(wait_seconds) if pump is not None else ()

    def close(self) -> None:
        """Wait shortly for what was written before the end of the worker."""
        for pump in self._pumps.values():
            pump.join(1.0)  # a descendant that outlived its kill may hold the pipe open

    def _close_ours(self) -> None:
        for fd in self._ours:
            os.close(fd)
        self._ours.clear()


class _Pump(threading.Thread):
    """Carries one stream from its pipe to where it goes, and remembers its last lines."""

    def __init__(self, fd: int, stream: int, route: Route, file: IO[bytes] | None) -> None:
        super().__init__(name=f"rallypoint-{_NAMES[stream]}", daemon=True)
        self._fd = fd
        self._stream = stream
        self._route = route
        self._file = file
        self._console = route.console
        self._lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self._partial = b""
        self._unprefixed = b""
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            while chunk := os.read(self._fd, CHUNK_BYTES):
                self._remember(chunk)
                self._write_file(chunk)
                self._write_console(chunk)
            if self._unprefixed:
                self._write_console(b"\n")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close what the pump holds."""
        os.close(self._fd)
        if self._file is not None:
            self._file.close()

    def last_lines(self, wait_seconds: float) -> tuple[str, ...]:
        self.join(wait_seconds)
        with self._lock:
            lines = [*self._lines, *([self._partial] if self._partial.strip() else [])]
        return tuple(line.decode("utf-8", "replace").rstrip() for line in lines[-LAST_LINES:])

    def _remember(self, chunk: bytes) -> None:
        with self._lock:
            *whole, self._partial = (self._partial + chunk).split(b"\n")
            self._lines.extend(line[-LINE_LIMIT_BYTES:] for line in whole)
            self._partial = self._partial[-LINE_LIMIT_BYTES:]

    def _write_file(self, chunk: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(chunk)
        except OSError as error:
            self._file.close()
            self._file = None
            self._console = True  # a full disk must not lose what a worker says
            note = f"rallypoint: {self._route.path}: {error.strerror}; going on without it\n"
            self._to_console(2, note.encode())

    def _write_console(self, chunk: bytes) -> None:
        if not self._console:
            return
        if self._route.prefix:
            *whole, self._unprefixed = (self._unprefixed + chunk).split(b"\n")
            head = self._route.prefix.encode()
            chunk = b"".join(head + line + b"\n" for line in whole)
        self._to_console(self._stream, chunk)

    def _to_console(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            with _console_lock:
                while view:
                    view = view[os.write(fd, view) :]
        except OSError:
            self._console = False  # nobody reads the console any more; the worker goes on
