"""The group_commit: nobody is told of anything before it is durable.

A server with a journal changes its state in memory at once, as one without. What has changed
is *marked*; at the end of the loop's turn all that is marked becomes one batch, which a writer
commits. While it is being written the next one gathers, so the time of a commit is shared by
everybody who came meanwhile (group commit), and there is at most one under way.

Frames to clients are *held* while anything is marked or being written: a frame that was made
while something was marked goes out with that batch, one that was made while a batch is being
written and nothing is marked goes out with that one. So whatever a frame tells, be it only
what somebody else has just written, is durable when it is told, and each connection's frames
keep their order. With nothing marked and nothing under way a frame is written at once. Signs
of life and what comes before the handshake is done tell nothing, and are not held.

What is held for a client counts as unread (`buffer_limit`): see `Connection`.

When a commit fails:

* no room (JournalFullError): nothing was stored, nobody was told. The same batch is tried
  again each `AGAIN_SECONDS`; until then new changes of the store are refused (`trouble` says
  why) and everything else waits. Once there is room all goes on, and nothing was lost;
* anything else: what is in memory cannot be relied on to be on disk. What is held is dropped
  and the server ends. Whoever waits asks the next server, which knows what was stored.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from rallypoint.deadline import Deadline
from rallypoint.errors import JournalError, JournalFullError, JournalLostError
from rallypoint.rendezvous.reports.status import Durability
from rallypoint.server.journal.contract import Journal

logger = logging.getLogger("rallypoint.server")

AGAIN_SECONDS = 1.0
COMMIT_SECONDS = 30.0  # for an engine that is out of reach; a disk is not waited for by us

Changes = Mapping[str, bytes | None]
Held = tuple["Reader", bytes, bool]
Done = Callable[[BaseException | None], None]


class Source(Protocol):
    """A part of the server whose changes are stored."""

    def unsaved(self) -> Changes:
        """Return the entries that have changed since the last call, None for those that went."""


class Reader(Protocol):
    """A connection, as the group_commit sees it."""

    def release(self, data: bytes) -> None:
        """Write a frame that was held."""


class Writer(Protocol):
    """Carries out commits, one at a time."""

    def write(self, changes: Changes, done: Done) -> None:
        """Commit; later, in the loop, call `done` with None or what went wrong."""

    def stop(self) -> None:
        """Close the journal, once what is under way is done."""


class WriterThread:
    """A thread that commits: the loop never waits for a disk.

    Args:
        loop: where `done` is called.
        journal: opened.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, journal: Journal) -> None:
        self._loop = loop
        self._journal = journal
        self._orders: queue.SimpleQueue[tuple[Changes, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rallypoint-journal", daemon=True)
        self._thread.start()

    def write(self, changes: Changes, done: Done) -> None:
        self._orders.put((changes, done))

    def stop(self) -> None:
        """Returns when that is so, or after the time that a commit has."""
        self._orders.put(None)
        self._thread.join(COMMIT_SECONDS)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            changes, done = order
            failure: BaseException | None = None
            try:
                self._journal.commit(changes, Deadline(COMMIT_SECONDS))
            except BaseException as error:  # handed to the loop, which ends the server
                failure = error
            try:
                self._loop.call_soon_threadsafe(done, failure)
            except RuntimeError:
                break  # the loop has closed: nobody is left to be told
        self._journal.close()


class GroupCommit:
    """Gathers changes, has them written, and lets go of what may then be told.

    Args:
        loop: the server's.
        journal: opened; asked only whether it still leads.
        writer: commits to it.
        failed: called once with what ends the server.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        journal: Journal,
        writer: Writer,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.where = journal.where
        self.trouble = ""
        self.commits = self.entries = 0
        self.commit_seconds = self.worst_seconds = 0.0
        self._loop, self._writer, self._failed = loop, writer, failed
        self._may_answer = journal.may_answer
        self._marked: dict[Source, None] = {}
        self._gathered: list[Held] = []  # go out with the next batch
        self._riding: list[Held] = []  # go out with the one being written
        self._due = self._busy = self._ended = False
        self._began = 0.0
        self._rest: asyncio.Future[None] | None = None
        journal.on_lost = self._lost

    def mark(self, source: Source) -> None:
        """A source has changed; to be said before anything is sent that rests on it."""
        self._marked[source] = None
        self._begin_soon()

    def unmark(self, source: Source) -> None:
        """A source is let go of: its changes are not stored."""
        self._marked.pop(source, None)

    def hold(self, reader: Reader, data: bytes, aside: bool = False) -> None:
        """Write a frame once what it may tell of is durable.

        Args:
            reader, data: who gets what.
            aside: let go of it, too, when nothing can be stored for want of room.
        """
        if self._ended:
            return
        if self._marked or self._gathered:
            self._gathered.append((reader, data, aside))
        elif self._busy:
            self._riding.append((reader, data, aside))
        elif self._may_answer():
            reader.release(data)
        else:
            self._gathered.append((reader, data, aside))
            self._begin_soon()

    # -- batches ----------------------------------------------------------------------------

    def _begin_soon(self) -> None:
        if not self._due and not self._busy:
            self._due = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._due = False
        if self._busy or self._ended:
            return
        changes: dict[str, bytes | None] = {}
        for source in self._marked:
            changes |= source.unsaved()
        self._marked = {}
        self._riding, self._gathered = self._gathered, []
        self._busy = True
        self._began = self._loop.time()
        self._write(changes)

    def _write(self, changes: Changes) -> None:
        if not self._ended:
            self._writer.write(changes, lambda error: self._written(changes, error))

    def _written(self, changes: Changes, error: BaseException | None) -> None:
        if self._ended:
            return
        if isinstance(error, JournalFullError):
            self._wait_for_room(changes, error)
            return
        if error is not None:
            self._fail(error)
            return
        seconds = self._loop.time() - self._began
        self.commits += 1
        self.entries += len(changes)
        self.commit_seconds += seconds
        self.worst_seconds = max(self.worst_seconds, seconds)
        if self.trouble:
            logger.warning("%s: there is room again, everything goes on", self.where)
            self.trouble = ""
        self._busy = False
        riding, self._riding = self._riding, []
        for reader, data, _ in riding:
            reader.release(data)
        if self._marked or self._gathered:
            self._begin()
        else:
            self._wake()

    def _wait_for_room(self, changes: Changes, error: JournalFullError) -> None:
        if not self.trouble:
            self.trouble = str(error)
            logger.error("%s; nothing is stored or told until there is room", error)
            asides = [held for held in (*self._riding, *self._gathered) if held[2]]
            self._riding = [held for held in self._riding if not held[2]]
            self._gathered = [held for held in self._gathered if not held[2]]
            for reader, data, _ in asides:
                reader.release(data)
        self._loop.call_later(AGAIN_SECONDS, self._write, changes)

    # -- the end ----------------------------------------------------------------------------

    def _lost(self, error: JournalError) -> None:
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        if not self._ended:
            self.drop()
            if not isinstance(error, JournalLostError):  # where servers take over that is usual
                logger.error("this server ends: %s", error)
            self._failed(error)

    def drop(self) -> None:
        """Tell nothing of what is held, and write nothing more."""
        self._ended = True
        self._marked, self._gathered, self._riding = {}, [], []
        self._wake()

    def _wake(self) -> None:
        """Nothing more is to come for who waits in `rest`."""
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    def durability(self) -> Durability:
        """Return what is told of it in the server's status."""
        mean = self.commit_seconds / max(1, self.commits)
        return Durability(
            self.where, self.commits, self.entries, mean, self.worst_seconds, self.trouble
        )

    def is_behind(self, seconds: float) -> bool:
        """Return whether what is under way has not become durable for longer than that."""
        return self._busy and self._loop.time() - self._began > seconds

    @property
    def is_resting(self) -> bool:
        """Whether everything is durable and told."""
        return not (self._marked or self._gathered or self._busy)

    async def rest(self, seconds: float) -> bool:
        """Wait until everything is durable and told; return whether that is so in time.

        Args:
            seconds: how long; what ends the group_commit ends the wait at once.
        """
        until = self._loop.time() + seconds
        while not (self.is_resting or self._ended) and (left := until - self._loop.time()) > 0:
            self._rest = self._loop.create_future()
            await asyncio.wait([self._rest], timeout=left)
        return self.is_resting

    def close(self) -> None:
        """End the writer; what is not durable by now was told to nobody."""
        self.drop()
        self._writer.stop()
