"""An append-only file of records that several processes share. It knows bytes, not stores.

    file    = magic (16 bytes) version (2 bytes) record*
    record  = marker (4) length (4) crc32 (4) body (length)

* Writing: under an exclusive flock, at the end, one write for each record. A complete record
  is committed; every other process sees it when it next reads. Reading takes no lock.
* A writer that dies within a write leaves a torn record at the end. The next writer checks,
  under the lock, that no valid record follows, and truncates it. If one follows, the file was
  damaged: that is an error with file and offset, never a guessed repair. The crc is seeded with
  the record's offset, so a value that is a copy of such a file is not mistaken for records.
* Replacing: the new content is written beside the file and renamed over it. A process that has
  the old file open notices the new inode and starts over.
* Durability: committed records survive the death of any process. They survive a power loss
  only with `sync`, which writes every record through to the disk.

flock belongs to the open file, so a forked child opens the file again. On NFS flock works
between hosts (Linux 2.6.12 and later), and a change is seen after the attribute cache time of
the mount (`actimeo=1` makes that a second).
"""

import fcntl
import os
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreError, StoreTimeoutError

MAGIC = b"rallypoint-store"
VERSION = 1
_HEADER = MAGIC + struct.pack(">H", VERSION)
_MARKER = b"\xf5RP\n"  # no UTF-8 text has byte f5
_RECORD = struct.Struct(">4sII")
_EAGER_TRIES = 50
_LOCK_RETRY_SECONDS = 0.0005
_OPEN_SECONDS = 10.0  # longest wait for another process that creates the file


def _record(body: bytes, offset: int) -> bytes:
    return _RECORD.pack(_MARKER, len(body), zlib.crc32(body, offset & 0xFFFFFFFF)) + body


def _body_at(data: memoryview, at: int, offset: int) -> memoryview | None:
    """Return the body of the valid record at `data[at]`, which is at `offset` of the file."""
    start = at + _RECORD.size
    if start > len(data):
        return None
    marker, length, crc = _RECORD.unpack_from(data, at)
    body = data[start : start + length]
    good = marker == _MARKER and len(body) == length
    return body if good and zlib.crc32(body, offset & 0xFFFFFFFF) == crc else None


class RecordLog:
    """One process's handle on the shared file. Not thread-safe.

    Args:
        path: the file; created if missing.
        sync: write every record through to the disk.
        sleep: waits for a lock that another process holds; tests pass their own.

    Raises StoreError if the file cannot be opened or is not one of ours.
    """

    def __init__(
        self, path: str, sync: bool = False, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._path = path
        self._sync = sync
        self._sleep = sleep
        self._fd = -1
        self._inode = (0, 0)
        self._owner_pid = 0
        self._held = False
        self._end = 0
        self._restarted = True
        self._known_torn = -1
        self._open()

    @property
    def size(self) -> int:
        """Bytes up to the end of the last record that was read or written here."""
        return self._end

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def rewind(self) -> None:
        """Make the next `read` begin at the first record."""
        self._end = len(_HEADER)
        self._restarted = True

    def read(self) -> tuple[bool, list[bytes]]:
        """Return (whether to drop all that was read before, the new records).

        Raises StoreError if the file is damaged, foreign or gone.
        """
        self._reopen_if_replaced()
        bodies, torn = self._scan()
        if torn and self._known_torn != self._end + torn:
            # Half a record: the holder of the lock is writing it, or its writer died.
            with suppress(StoreTimeoutError), self._flock(Deadline(0.0)):
                more, torn = self._scan()
                bodies += more
                if torn:
                    self._check_tail()
                    self._known_torn = self._end + torn
        restarted, self._restarted = self._restarted, False
        return restarted, bodies

    @contextmanager
    def locked(self, deadline: Deadline) -> Iterator[None]:
        """Hold the file's lock, so that no other process writes. `read` first, then `append`.

        Raises StoreTimeoutError when others hold the lock until the deadline.
        """
        while True:
            self._reopen_if_replaced()
            with self._flock(deadline):
                if self._is_current():  # else another process replaced it first
                    yield
                    return

    def append(self, body: bytes) -> None:
        """Commit a record (under `locked`, after `read`).

        Raises StoreError if that fails; the file is then unchanged.
        """
        record = _record(body, self._end)
        with self._os_errors("write"):
            if os.fstat(self._fd).st_size > self._end:
                self._check_tail()
                os.ftruncate(self._fd, self._end)
            try:
                self._write_all(self._fd, record, self._end)
            except OSError:
                os.ftruncate(self._fd, self._end)
                raise
        self._end += len(record)

    def replace(self, body: bytes) -> None:
        """Replace all records by one (under `locked`). Raises StoreError if that fails."""
        beside = self._path + ".new"  # the lock is held, so one name is enough
        content = _HEADER + _record(body, len(_HEADER))
        with self._os_errors("compact"):
            mode = stat.S_IMODE(os.fstat(self._fd).st_mode)
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)  # held over the rename
                self._write_all(fd, content, 0)
                os.rename(beside, self._path)
            except OSError:
                os.close(fd)
                with suppress(OSError):
                    os.unlink(beside)
                raise
        self._adopt(fd)
        self._end = len(content)

    # -- the file -------------------------------------------------------------------------

    @contextmanager
    def _os_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self._path}: cannot {what} the store file: {error}") from error

    def _write_all(self, fd: int, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(fd, view, offset)
            view, offset = view[done:], offset + done
        if self._sync:
            os.fsync(fd)

    def _open(self) -> None:
        with self._os_errors("open"):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._adopt(fd)
        self.rewind()
        head = os.pread(fd, len(_HEADER), 0)
        if len(head) < len(_HEADER) and _HEADER.startswith(head):
            # New, or its creator died: the first process with the lock completes it.
            with self._flock(Deadline(_OPEN_SECONDS)), self._os_errors("write"):
                if os.fstat(fd).st_size < len(_HEADER):
                    self._write_all(fd, _HEADER, 0)
            head = os.pread(fd, len(_HEADER), 0)
        if not head.startswith(MAGIC):
            self.close()
            raise StoreError(f"{self._path}: is not a Rallypoint store file, begins {head!r}")
        if head != _HEADER:
            self.close()
            found = int.from_bytes(head[len(MAGIC) :], "big")
            raise StoreError(f"{self._path}: has format {found}, this version reads {VERSION}")

    def _adopt(self, fd: int) -> None:
        """Use the file `fd`; closing the old one releases its lock."""
        if self._fd >= 0:
            os.close(self._fd)
        status = os.fstat(fd)
        self._fd, self._inode = fd, (status.st_dev, status.st_ino)
        self._owner_pid = os.getpid()
        self._known_torn = -1

    def _is_current(self) -> bool:
        """Return whether the path is still that of the open file."""
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise StoreError(f"{self._path}: the store file is gone: {error}") from error
        return (status.st_dev, status.st_ino) == self._inode

    def _reopen_if_replaced(self) -> None:
        if self._fd < 0:
            raise StoreError(f"{self._path}: the store is closed")
        if not self._is_current():
            self._open()
        elif self._owner_pid != os.getpid():
            end, inode, restarted = self._end, self._inode, self._restarted
            self._held = False
            self._open()
            if inode == self._inode:
                self._end, self._restarted = end, restarted

    @contextmanager
    def _flock(self, deadline: Deadline) -> Iterator[None]:
        if self._held:
            yield
            return
        self._take_lock(deadline)
        self._held = True
        try:
            yield
        finally:
            self._held = False
            with suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _take_lock(self, deadline: Deadline) -> None:
        tries = 0
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if deadline.expired():
                    raise StoreTimeoutError(
                        f"{self._path}: another process held the file's lock for "
                        f"{deadline.timeout:g} s (limit: the call's timeout, else the store's)"
                    ) from None
            except OSError as error:
                raise StoreError(f"{self._path}: cannot lock the store file: {error}") from error
            tries += 1
            # Others hold it for microseconds, unless one of them is stuck.
            self._sleep(0.0 if tries < _EAGER_TRIES else _LOCK_RETRY_SECONDS)

    # -- records --------------------------------------------------------------------------

    def _scan(self) -> tuple[list[bytes], int]:
        """Return the bodies of the next valid records, and the number of bytes after them."""
        with self._os_errors("read"):
            size = os.fstat(self._fd).st_size
            if size < self._end:
                raise StoreError(
                    f"{self._path}: damaged: {self._end} bytes were committed, {size} are left"
                )
            if size == self._end:
                return [], 0
            data = memoryview(os.pread(self._fd, size - self._end, self._end))
        bodies: list[bytes] = []
        at = 0
        while (body := _body_at(data, at, self._end)) is not None:
            bodies.append(bytes(body))
            step = _RECORD.size + len(body)
            at += step
            self._end += step
        return bodies, len(data) - at

    def _check_tail(self) -> None:
        """Raise StoreError if a valid record follows the unreadable part at the end."""
        size = os.fstat(self._fd).st_size
        tail = os.pread(self._fd, size - self._end, self._end)
        view = memoryview(tail)
        at = tail.find(_MARKER, 1)
        while at >= 0:
            if _body_at(view, at, self._end + at) is not None:
                raise StoreError(
                    f"{self._path}: damaged: no record can be read at offset {self._end}, "
                    f"but one at {self._end + at}; restore the file or remove it"
                )
            at = tail.find(_MARKER, at + 1)
