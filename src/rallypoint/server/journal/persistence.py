"""A server that outlives its process: its runs and stores are kept in a journal.

`Persistence` has every change of a run or store committed (group_commit.py says what waits for
a commit), and restores a server from where the last one ended:

* The epoch is the journal's. It is larger than that of every earlier server.
* Runs go on from their stored state. Nobody is connected yet, and every lease and timer starts
  again: a node has a whole lease to come back, and stays a member all that time.
* Stores have their keys and know their clients. A client that comes back sends its open calls
  again. Those that had taken effect are answered from the kept answers, so each takes effect
  once.
"""

import asyncio
import logging
from typing import Protocol

from rallypoint.errors import JournalError
from rallypoint.server.connection import Connection, OwningServer
from rallypoint.server.journal.contract import Journal, Opened
from rallypoint.server.journal.group_commit import GroupCommit, Writer, WriterThread
from rallypoint.server.journal.records import (
    FORMAT,
    FORMAT_NAME,
    OtherRecords,
    RunRecords,
    Stored,
    StoreRecords,
)
from rallypoint.server.runs import RunHost
from rallypoint.server.store_host import StoreHost

logger = logging.getLogger("rallypoint.server")

HELD_BYTES = 64 * 1024  # answers that one connection may have waiting before it is paused


class PersistentServer(Protocol):
    """What `Persistence` needs from the server that it restores."""

    loop: asyncio.AbstractEventLoop
    epoch: int
    persistence: "Persistence | None"

    def run(self, run_id: str) -> RunHost:
        """Return a run; make it if there is none."""

    def new_store(self, run_id: str) -> StoreHost:
        """Make a run's store."""

    def fence(self, error: BaseException) -> None:
        """End at once, and answer nobody any more."""


class DurableConnection(Connection):
    """A connection whose frames are held until what they tell is durable.

    Held frames count as unread: above `HELD_BYTES` nothing more is read from the client, above
    `buffer_limit` it is disconnected.
    """

    def __init__(self, server: OwningServer, group_commit: GroupCommit) -> None:
        super().__init__(server)
        self.deaf = False  # the server ends: the next one answers what comes now
        self._group_commit = group_commit
        self._held = 0
        self._waits = False

    def data_received(self, data: bytes) -> None:
        if not self.deaf:
            super().data_received(data)

    def send(self, data: bytes) -> None:
        self._hold(data, aside=False)

    def _hold(self, data: bytes, aside: bool) -> None:
        self._held += len(data)
        self._group_commit.hold(self, data, aside)
        if self._held > self.server.options.buffer_limit:
            logger.warning("disconnecting %s: %d bytes wait to be stored", self.peer, self._held)
            self.abort()
        elif self._held > HELD_BYTES and not self._waits and self._transport is not None:
            self._waits = True
            self._transport.pause_reading()

    def inform(self, data: bytes) -> None:
        """Send a frame about a run; at once if the journal is full.

        So a client is let in although its record cannot be stored (its changes are refused
        until there is room, its heartbeats are taken), and an inquiry gets the reason.
        """
        if self._group_commit.trouble:
            self.send_at_once(data)
        else:
            self._hold(data, aside=True)

    def release(self, data: bytes) -> None:
        self._held -= len(data)
        self.send_at_once(data)
        if self._waits and not self._held:
            self._waits = False
            self._read_on()

    def _may_read(self) -> bool:
        return super()._may_read() and not self._waits


class Persistence:
    """Keeps a server in a journal.

    Args:
        server: without runs and stores yet.
        journal: opened.
        opened: what was found in it.
        writer: commits to it; None: a thread of its own.

    Raises JournalCorruptError when what is stored cannot be used.
    """

    def __init__(
        self,
        server: PersistentServer,
        journal: Journal,
        opened: Opened,
        writer: Writer | None = None,
    ) -> None:
        stored = Stored(journal.where, opened.entries)
        loop = server.loop
        writer = writer or WriterThread(loop, journal)
        self.group_commit = GroupCommit(loop, journal, writer, server.fence)
        self._others = OtherRecords()
        self._runs: dict[str, RunRecords] = {}
        self._stores: dict[str, StoreRecords] = {}
        server.epoch = opened.epoch
        server.persistence = self
        if stored.is_new:
            self._others.add({FORMAT_NAME: FORMAT})
            self.group_commit.mark(self._others)
        for run_id, state in stored.runs.items():
            server.run(run_id).adopt(state)
        for run_id, found in stored.stores.items():
            store = server.new_store(run_id)
            store.keys.resume(found.changes, found.changes)
            for key, (version, value, first) in found.keys.items():
                store.keys.put_back(key, version, value, first)
            for client_id, kept in found.clients.items():
                store.put_back(client_id, kept.since, kept.record, kept.results)
            self._stores[run_id].read_back(found)

    def connection(self, server: OwningServer) -> Connection:
        """Return a new connection."""
        return DurableConnection(server, self.group_commit)

    def keep_run(self, run_id: str, host: RunHost) -> None:
        """Store a run from now on."""
        records = self._runs[run_id] = RunRecords(host)
        host.mark = lambda: self.group_commit.mark(records)

    def keep_store(self, run_id: str, store: StoreHost) -> None:
        """Store a run's keys and clients from now on."""
        store.changes = self._stores[run_id] = StoreRecords(run_id, store, self.group_commit)

    def forget_run(self, run_id: str) -> None:
        """Delete what is stored of a run."""
        self._forget(self._runs.pop(run_id))

    def forget_store(self, run_id: str) -> None:
        """Delete what is stored of a run's store."""
        self._forget(self._stores.pop(run_id))

    def _forget(self, records: RunRecords | StoreRecords) -> None:
        self.group_commit.unmark(records)
        self._others.add(records.gone())
        self.group_commit.mark(self._others)

    async def finish(self, connections: list[Connection], seconds: float) -> JournalError | None:
        """Take in nothing more, and wait until all changes are stored and answered.

        Returns what is wrong if that takes longer than `seconds`.
        """
        for connection in connections:
            if isinstance(connection, DurableConnection):
                connection.deaf = True
        if await self.group_commit.rest(seconds):
            return None
        where = self.group_commit.where
        why = self.group_commit.trouble or f"{where} did not take them in {seconds:g} s"
        return JournalError(f"the last changes are not stored, and no client knows of them: {why}")

    def close(self) -> None:
        """Write nothing more, and close the journal."""
        self.group_commit.close()
