"""Fakes for tests, to read as examples too: clock, engine, journal, and a network that fails."""

import contextlib
import math
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rallypoint.deadline import Clock, Deadline
from rallypoint.engines.contract import (
    LOOK_SECONDS,
    Commit,
    Engine,
    Entries,
    Entry,
    check_commit,
    version_of,
)
from rallypoint.errors import JournalLostError, ParameterError
from rallypoint.server.journal.contract import Journal, Opened


class ManualClock:
    """A monotonic clock for tests: callable like `time.monotonic`.

    Args:
        start: its first reading in seconds; real ones begin anywhere, too.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(start)

    def __call__(self) -> float:
        """Return the seconds it shows."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on (ParameterError: backwards, which no monotonic clock does)."""
        if not seconds >= 0:
            raise ParameterError(f"seconds={seconds!r}: allowed is 0 or more")
        self._now += seconds


_LEAST_SECONDS = 0.001


@dataclass
class _Data:
    """What all clones share."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    entries: dict[str, Entry] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    version: int = 0


class MemoryEngine(Engine):
    """An engine in memory; `clone` gives another client of the same data.

    Args:
        clock: monotonic clock in seconds, by which entries expire.
    """

    name = "memory"
    where = "memory"

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._data = _Data()

    def clone(self) -> "MemoryEngine":
        """Return another client of the same data."""
        twin = MemoryEngine(self._clock)
        twin._data = self._data
        return twin

    def _present(self) -> dict[str, Entry]:
        data, now = self._data, self._clock()
        for key in [key for key, end in data.ends.items() if end <= now]:
            del data.ends[key]
            data.entries.pop(key, None)
        return data.entries

    def read(self, keys: Sequence[str], deadline: Deadline) -> Entries:
        """Return the entries of those keys that exist."""
        with self._data.changed:
            present = self._present()
            return {key: present[key] for key in keys if key in present}

    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        """Write if every expected key is still as it was seen; all or nothing."""
        check_commit(expected, changes)
        data = self._data
        with data.changed:
            present = self._present()
            if any(
                version_of(present.get(key)) != version_of(seen) for key, seen in expected.items()
            ):
                return Commit(False, 0, {key: present[key] for key in expected if key in present})
            data.version += 1
            for key, value in changes.items():
                data.ends.pop(key, None)
                present.pop(key, None)
                if value is not None:
                    present[key] = Entry(data.version, bytes(value))
                if value is not None and expire and key in expire:
                    data.ends[key] = self._clock() + expire[key]
            data.changed.notify_all()
            return Commit(True, data.version, {})

    def renew(self, key: str, seen: Entry, seconds: float, deadline: Deadline) -> bool:
        """Let an expiring entry live for `seconds` from now; its version stays."""
        with self._data.changed:
            if version_of(self._present().get(key)) != seen.version:
                return False
            self._data.ends[key] = self._clock() + seconds
            return True

    def scan(self, prefix: str, deadline: Deadline) -> list[str]:
        """Return the keys that begin with `prefix`, sorted."""
        with self._data.changed:
            return sorted(key for key in self._present() if key.startswith(prefix))

    def wait(self, key: str, seen: Entry | None, deadline: Deadline) -> bool:
        """Wait until the key's version is not what was seen."""
        with self._data.changed:
            while version_of(self._present().get(key)) == version_of(seen):
                if deadline.expired():
                    return False
                lives = max(self._data.ends.get(key, math.inf) - self._clock(), _LEAST_SECONDS)
                self._data.changed.wait(min(deadline.capped(LOOK_SECONDS), lives))
            return True


class Shelf:
    """What outlives the journals that are opened on it, one after the other."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.epoch = 0


class MemoryJournal(Journal):
    """A journal on a shelf.

    Args:
        shelf: where the entries are.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.where = "the memory of this process"
        self._shelf = shelf
        self._epoch: int | None = None

    def open(self, deadline: Deadline) -> Opened:
        """Whoever had it before is fenced off."""
        self._shelf.epoch = self._epoch = self._shelf.epoch + 1
        return Opened(self._epoch, dict(self._shelf.entries))

    def may_answer(self) -> bool:
        return self._epoch == self._shelf.epoch

    def commit(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> None:
        if self._epoch != self._shelf.epoch:
            raise JournalLostError(
                f"{self.where}: a write of epoch {self._epoch} was refused: the server of epoch "
                f"{self._shelf.epoch} leads"
            )
        for name, value in changes.items():
            if value is None:
                self._shelf.entries.pop(name, None)
            else:
                self._shelf.entries[name] = value

    def close(self) -> None:
        self._epoch = None


_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: close sends a reset
_READ_BYTES = 64 * 1024


class Proxy:
    """Passes bytes between clients and one server, until it is told to cut.

    Args:
        host: address of the server.
        port: its port.
    """

    def __init__(self, host: str, port: int) -> None:
        self.refusing = False
        self.accepted = 0
        self._server = (host, port)
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> int:
        """Reset all connections; return how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for sock in pair:
                _reset(sock)
        return len(pairs)

    def close(self) -> None:
        """Reset all connections and stop listening."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._thread.join(5.0)
        self.cut()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self.accepted += 1
            if self.refusing:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._server, timeout=10.0)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            pair = (client, server)
            with self._lock:
                self._pairs.append(pair)
            for source, sink in (pair, pair[::-1]):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):  # cut
        while data := source.recv(_READ_BYTES):
            sink.sendall(data)
    for sock in (source, sink):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.shutdown(socket.SHUT_RD)  # wakes a thread that reads
    sock.close()
