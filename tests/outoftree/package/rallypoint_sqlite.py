"""Rallypoint on SQLite: a package of a third party, as docs/writing-a-backend.md shows it.

An engine over one database file, for processes of one machine. Uses the public API only.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rallypoint import RendezvousHandler, RendezvousParameters
from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Commit, Engine, Entries, Entry, check_commit, version_of
from rallypoint.engines.store import EngineStore
from rallypoint.errors import StoreConnectionError
from rallypoint.rendezvous.registry import create_engine_handler
from rallypoint.rendezvous.serverless.backends.engine import EngineRendezvousBackend

TABLES = """
    CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, version INT, value BLOB, end REAL);
    CREATE TABLE IF NOT EXISTS last (version INT);
    INSERT INTO last SELECT 0 WHERE NOT EXISTS (SELECT * FROM last);
"""
LOOK_SECONDS = 0.005  # SQLite tells nobody that something changed


class SqliteEngine(Engine):
    """An engine in the file `path`."""

    name = "sqlite"

    def __init__(self, path: str) -> None:
        self.path = self.where = path
        self._lock, self._closed = threading.Lock(), False
        self._database = sqlite3.connect(
            path, timeout=10, isolation_level=None, check_same_thread=False
        )
        self._database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + TABLES)

    def clone(self) -> "SqliteEngine":
        return SqliteEngine(self.path)

    def close(self) -> None:
        with self._lock:  # another thread may be in the middle of a step
            self._closed = True
            self._database.close()

    @contextmanager
    def _step(self) -> Iterator[sqlite3.Connection]:
        """One transaction, alone in the file."""
        with self._lock:
            if self._closed:
                raise StoreConnectionError(f"{self.path}: this client was closed")
            try:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.execute("DELETE FROM entries WHERE end <= ?", (time.time(),))
                yield self._database
                self._database.execute("COMMIT")
            except sqlite3.OperationalError as error:
                raise StoreConnectionError(f"{self.path}: {error}") from error
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")

    def _find(self, database: sqlite3.Connection, keys: Sequence[str]) -> Entries:
        query = "SELECT version, value FROM entries WHERE key = ?"
        rows = ((key, database.execute(query, (key,)).fetchone()) for key in keys)
        return {key: Entry(*row) for key, row in rows if row is not None}

    def read(self, keys: Sequence[str], deadline: Deadline) -> Entries:
        with self._step() as database:
            return self._find(database, keys)

    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        check_commit(expected, changes)
        with self._step() as database:
            present = self._find(database, list(expected))
            if any(version_of(present.get(k)) != version_of(e) for k, e in expected.items()):
                return Commit(False, 0, present)
            (last,) = database.execute("SELECT version FROM last").fetchone()
            database.execute("UPDATE last SET version = ?", (last + 1,))
            for key, value in changes.items():
                database.execute("DELETE FROM entries WHERE key = ?", (key,))
                if value is not None:
                    end = time.time() + expire[key] if expire and key in expire else None
                    row = (key, last + 1, value, end)
                    database.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)
            return Commit(True, last + 1, {})

    def renew(self, key: str, seen: Entry, seconds: float, deadline: Deadline) -> bool:
        with self._step() as database:
            change = "UPDATE entries SET end = ? WHERE key = ? AND version = ?"
            changed = database.execute(change, (time.time() + seconds, key, seen.version))
            return changed.rowcount > 0

    def scan(self, prefix: str, deadline: Deadline) -> list[str]:
        with self._step() as database:
            rows = database.execute("SELECT key FROM entries").fetchall()
        return sorted(key for (key,) in rows if key.startswith(prefix))

    def wait(self, key: str, seen: Entry | None, deadline: Deadline) -> bool:
        while version_of(self.read([key], deadline).get(key)) == version_of(seen):
            if deadline.expired():
                return False
            time.sleep(deadline.capped(LOOK_SECONDS))
        return True


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """What the entry point names: makes the handler of backend "sqlite"."""
    store = EngineStore(SqliteEngine(params.endpoint))
    return create_engine_handler(params, EngineRendezvousBackend, store)
