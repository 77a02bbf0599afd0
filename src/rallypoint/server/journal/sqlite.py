"""A journal in a directory: one SQLite file in write-ahead mode, synced with every commit.

SQLite comes with Python, its file format is kept readable for decades, and its behaviour at a
crash or a loss of power is exceptionally well tested. A commit is one transaction:
`synchronous=FULL` syncs the write-ahead log before it returns.

One process at a time: a lock on a file beside it is held as long as the process lives, and the
kernel frees it however the process ends. (SQLite's own lock does not say who holds it.)

A file that is not ours is refused by name and never changed: one that is no SQLite database,
that belongs to another program (`application_id`), that has a newer format (`user_version`), or
that is damaged. `quick_check` reads the whole file at the start, but cannot see a value changed
in place, so each entry has a checksum of its own. An empty file beside a lock file that says a
state was kept (`_KEPT`) was truncated.

A commit counts only if the file is still found under its name: what is written to a deleted or
replaced file is lost with this process.
"""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import sqlite3
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rallypoint.deadline import Deadline
from rallypoint.errors import (
    JournalCorruptError,
    JournalError,
    JournalFullError,
    JournalLostError,
)
from rallypoint.server.journal.contract import Journal, Opened

FILE_NAME = "rallypoint.db"
LOCK_NAME = "rallypoint.lock"
APPLICATION_ID = 0x52616C79  # "Raly"
FORMAT = 2  # 1: without checksums
CHECKPOINT_PAGES = 4000  # of the log, until they move into the file
_MIB = 1 << 20
_KEPT = b"kept"  # in the lock's file, once there is a state beside it

logger = logging.getLogger("rallypoint.server")


class SQLiteJournal(Journal):
    """A journal in a directory of this machine.

    Args:
        directory: created for its owner only if it does not exist.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.file = self.directory / FILE_NAME
        self.where = f"directory {self.directory}"
        self._database: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._had_state = False  # an earlier opening left one
        self._opened: os.stat_result | None = None

    def open(self, deadline: Deadline) -> Opened:
        """Open at once; a directory in use by another server is refused."""
        try:
            self._make_directory()
            self._take_lock()
            found = self._read()
            self._write_lock(_KEPT)
            self._opened = self.file.stat()
            return found
        except BaseException:
            self.close()
            raise

    def _make_directory(self) -> None:
        try:
            if not self.directory.exists():
                self.directory.mkdir(mode=0o700, parents=True)
                _sync(self.directory.parent)
            elif self.directory.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                logger.warning(
                    "%s can be written by other users, who can replace what is kept there: "
                    "chmod 700 it",
                    self.where,
                )
        except OSError as error:
            raise JournalError(
                f"{self.where} cannot be made: {error.strerror}; give one that this user may make"
            ) from error

    def _take_lock(self) -> None:
        path = self.directory / LOCK_NAME
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if self._lock is not None and error.errno in (errno.EAGAIN, errno.EACCES):
                raise JournalLostError(self._taken(self._lock)) from error
            raise JournalError(
                f"{path} cannot be used: {error.strerror}; give a place that this user may write"
            ) from error
        self._had_state = self.file.exists() and _KEPT in os.pread(self._lock, 64, 0).split()
        self._write_lock(_KEPT if self._had_state else b"")

    def _write_lock(self, mark: bytes) -> None:
        if self._lock is not None:
            text = b"%d\n%s\n" % (os.getpid(), mark)
            os.pwrite(self._lock, text, 0)
            os.ftruncate(self._lock, len(text))

    def _taken(self, lock: int) -> str:
        pid = os.pread(lock, 64, 0).decode("ascii", "replace").partition("\n")[0]
        return (
            f"{self.where} is in use by another server (pid {pid or 'unknown'}): stop that one, "
            "or give this one a directory of its own"
        )

    def _read(self) -> Opened:
        fresh = not self.file.exists() or self.file.stat().st_size == 0
        if not fresh:
            self._check_header()
        elif self._had_state:
            raise self._damaged("it is empty, and was not")
        with self._mapped():
            self._database = database = sqlite3.connect(
                self.file, isolation_level=None, check_same_thread=False, timeout=0.0
            )
            self.file.chmod(0o600)
            database.execute("PRAGMA locking_mode=EXCLUSIVE")
            database.execute("PRAGMA synchronous=FULL")
            if not fresh:
                self._check(database)
            with _transaction(database):
                if self._is_older(database):
                    _add_checksums(database)
                epoch = _next_epoch(database)
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
            return Opened(epoch, self._entries(database))

    def _entries(self, database: sqlite3.Connection) -> Mapping[str, bytes]:
        entries: dict[str, bytes] = {}
        for name, value, checksum in database.execute("SELECT name, value, checksum FROM entries"):
            if checksum != _checksum(name, value):
                shown = bytes(name).decode("utf-8", "replace")
                raise self._damaged(f"the entry {shown!r} is not as it was stored")
            entries[bytes(name).decode()] = bytes(value)
        return entries

    def _check_header(self) -> None:
        """Look before SQLite does: it takes an empty file for a database of its own."""
        try:
            with self.file.open("rb") as file:
                head = file.read(16)
        except OSError as error:
            raise JournalError(f"{self.file} cannot be read: {error.strerror}") from error
        if head and not head.startswith(b"SQLite format 3\0"):
            raise self._foreign(f"it begins with {head!r}")

    def _check(self, database: sqlite3.Connection) -> None:
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise self._foreign(f"its application_id is {application:#x}")
        if version > FORMAT:
            raise JournalCorruptError(
                f"{self.file} has format {version}, and this version of rallypoint knows up to "
                f"{FORMAT}: it was written by a newer one; use that, or another directory"
            )
        found = [str(row[0]) for row in database.execute("PRAGMA quick_check(3)")]
        if found != ["ok"]:
            raise self._damaged("; ".join("\n".join(found).splitlines()))

    @staticmethod
    def _is_older(database: sqlite3.Connection) -> bool:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        return 0 < int(version) < FORMAT

    def _foreign(self, seen: str) -> JournalCorruptError:
        return JournalCorruptError(
            f"{self.file} is no file of a rallypoint server ({seen}): give another directory; it "
            "was not changed"
        )

    def _damaged(self, seen: str) -> JournalCorruptError:
        return JournalCorruptError(
            f"{self.file} is damaged ({seen}): put back a copy, or move it away and start "
            "without what it held (its runs must then be started again)"
        )

    def commit(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> None:
        """Commit; the deadline is ignored, since a disk takes as long as it takes."""
        database = self._database
        if database is None:
            raise JournalLostError(f"{self.where} is closed")
        if not changes:
            return
        names = [(name.encode(), value) for name, value in changes.items() if value is not None]
        written = [(name, value, _checksum(name, value)) for name, value in names]
        deleted = [(name.encode(),) for name, value in changes.items() if value is None]
        with self._mapped(), _transaction(database):
            database.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", written)
            database.executemany("DELETE FROM entries WHERE name = ?", deleted)
        self._check_place()

    def _check_place(self) -> None:
        try:
            if self._opened is not None and os.path.samestat(self.file.stat(), self._opened):
                return
            seen = "another file is in its place"
        except OSError as error:
            seen = str(error.strerror)
        raise JournalError(
            f"{self.file} was removed while this server used it ({seen}): put it back, or start "
            "without what it held"
        )

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Raise SQLite's errors as ours, by their code."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise JournalFullError(self._full()) from error
            if code == sqlite3.SQLITE_NOTADB:
                raise self._foreign(str(error)) from error
            if code == sqlite3.SQLITE_CORRUPT:
                raise self._damaged(str(error)) from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                text = f"{self.file} is locked by another program ({error}): end that one"
                raise JournalLostError(text) from error
            raise JournalError(f"{self.file}: {error} (sqlite error {code})") from error

    def _full(self) -> str:
        try:
            free = f"{shutil.disk_usage(self.directory).free / _MIB:.1f} MiB free"
        except OSError as error:
            free = str(error.strerror)
        return f"{self.where} has no room ({free}): nothing can be stored; make room on its disk"

    def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with contextlib.suppress(sqlite3.Error):  # commits are safe without it
                database.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _sync(directory: Path) -> None:
    """Make a new name in a directory survive a loss of power."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _next_epoch(database: sqlite3.Connection) -> int:
    database.execute(f"PRAGMA application_id={APPLICATION_ID}")
    database.execute(f"PRAGMA user_version={FORMAT}")
    database.execute(
        "CREATE TABLE IF NOT EXISTS entries "
        "(name BLOB PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL)"
    )
    database.execute("CREATE TABLE IF NOT EXISTS epochs (epoch INTEGER NOT NULL)")
    (last,) = database.execute("SELECT coalesce(max(epoch), 0) FROM epochs").fetchone()
    database.execute("DELETE FROM epochs")
    database.execute("INSERT INTO epochs VALUES (?)", (last + 1,))
    return int(last) + 1


def _checksum(name: bytes, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(name))


def _add_checksums(database: sqlite3.Connection) -> None:
    """Bring a file of format 1 to the current one."""
    database.create_function("checksum_of", 2, _checksum, deterministic=True)
    database.execute("ALTER TABLE entries ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
    database.execute("UPDATE entries SET checksum = checksum_of(name, value)")


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
