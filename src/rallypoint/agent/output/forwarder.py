"""One output stream of a worker, carried from its pipe to where it goes.

Bytes are carried as they come, progress bars included; where lines get a dress (a prefix, or
JSON), whole lines are. The last lines are remembered, for when the worker fails.
"""

import os
import threading
from collections import deque
from collections.abc import Callable

import msgspec

from rallypoint.agent.output.logfile import LogFile

LAST_LINES = 40
LINE_LIMIT_BYTES = 4096
CHUNK_BYTES = 65536
QUIET_SECONDS = 0.2
STDOUT, STDERR = 1, 2
NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_console_lock = threading.Lock()


class Way(msgspec.Struct, frozen=True):
    """Where one stream goes: a file, the console, or both.

    Args:
        file: what it is added to, None for nothing.
        console: whether it goes there, too.
        dress: makes a console line of a line without its end; None: bytes go as they come.
        console_fd: descriptor of the console's stream.
    """

    file: LogFile | None
    console: bool
    dress: Callable[[bytes], bytes] | None
    console_fd: int


class Pump(threading.Thread):
    """Carries one stream, and remembers its last lines.

    Args:
        fd: reading end of the worker's pipe; closed at its end.
        stream: STDOUT or STDERR, for the thread's name.
        way: where it goes.
    """

    def __init__(self, fd: int, stream: int, way: Way) -> None:
        super().__init__(name=f"rallypoint-{NAMES[stream]}", daemon=True)
        self._fd = fd
        self._way = way
        self._file = way.file
        self._console = way.console
        self._lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self._partial = b""
        self._undressed = b""
        self._seen = 0
        self._changed = threading.Condition()

    def run(self) -> None:
        """Carry until the last writer is gone."""
        try:
            while chunk := os.read(self._fd, CHUNK_BYTES):
                self._remember(chunk)
                self._write_file(chunk)
                self._write_console(chunk)
            if self._undressed:
                self._write_console(b"\n")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close what the pump holds."""
        os.close(self._fd)
        if self._file is not None:
            self._file.close()

    def last_lines(self, wait_seconds: float) -> tuple[str, ...]:
        """Return the last lines, giving the stream so long to come to its end."""
        self.join(wait_seconds)
        with self._changed:
            return self._shown(LAST_LINES)

    def said_after(self, act: Callable[[], None], limit_seconds: float) -> tuple[str, ...]:
        """Do something; return what comes then, up to a short silence; () if nothing does."""
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
            self._console = True  # a full disk must not lose what a worker says
            note = f"rallypoint: {path}: {error.strerror}; going on without it\n"
            self._to_console(STDERR, note.encode())

    def _write_console(self, chunk: bytes) -> None:
        if not self._console:
            return
        if self._way.dress is not None:
            *whole, self._undressed = (self._undressed + chunk).split(b"\n")
            if len(self._undressed) > CHUNK_BYTES:  # a line without end must take no memory
                whole, self._undressed = [*whole, self._undressed], b""
            chunk = b"".join(self._way.dress(line) + b"\n" for line in whole)
        self._to_console(self._way.console_fd, chunk)

    def _to_console(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            with _console_lock:
                while view:
                    view = view[os.write(fd, view) :]
        except OSError:
            self._console = False  # nobody reads the console any more; the worker goes on
