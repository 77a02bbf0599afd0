"""Group commit: no client learns of anything before it is durable.

A server with a journal changes its state in memory at once, like one without. What has changed
is *marked*. At the end of the loop's turn everything marked becomes one batch, which a writer
commits. Meanwhile the next batch gathers, so all who came in that time share one commit; at
most one is under way.

Frames to clients are *held* while anything is marked or being written. A frame made while
something is marked goes out with that batch. A frame made while a batch is being written and
nothing is marked goes out with the batch that is written. So whatever a frame tells,
including what another client has just written, is durable by then, and each connection's frames
keep their order. With nothing marked and nothing under way a frame is sent at once. Heartbeats and
the handshake tell nothing of a run and are not held.

Held frames count as unread (`buffer_limit`, see `Connection`).

When a commit fails:

* No room (JournalFullError): nothing was stored, and nobody was told. The same batch is tried
  again every `AGAIN_SECONDS`. Until then new changes of stores are refused (`trouble` says why)
  and everything else waits. Nothing is lost.
* Anything else: what is in memory may not be on disk. Held frames are dropped and the server
  ends. Its clients ask the next server, which knows what was stored.
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
COMMIT_SECONDS = 30.0  # for a database out of reach; a disk takes as long as it takes

Changes = Mapping[str, bytes | None]
Held = tuple["FrameReceiver", bytes, bool]
Done = Callable[[BaseException | None], None]


class ChangeSource(Protocol):
    """A part of the server whose changes are stored."""

    def unsaved(self) -> Changes:
        """Return the entries that have changed since the last call, None for deleted ones."""


class FrameReceiver(Protocol):
    """A connection whose frames can be held."""

    def release(self, data: bytes) -> None:
        """Write a frame that was held."""


class Writer(Protocol):
    """Carries out commits, one at a time."""

    def write(self, changes: Changes, done: Done) -> None:
        """Commit; later, in the loop, call `done` with None or the error."""

    def stop(self) -> None:
        """Close the journal once the commit under way is done."""


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
        """The wait for the commit under way ends after `COMMIT_SECONDS`."""
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
                break  # the loop has closed: nobody waits for it
        self._journal.close()


class GroupCommit:
    """Gathers changes, commits them, and sends the frames that had to wait for it.

    Args:
        loop: the server's.
        journal: opened; asked only whether this server still leads.
        writer: commits to it.
        failed: called once with the error that ends the server.
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
        self.commits = 0
        self.entries = 0
        self.commit_seconds = 0.0
        self.worst_seconds = 0.0
        self._loop = loop
        self._writer = writer
        self._failed = failed
        self._may_answer = journal.may_answer
        self._marked: dict[ChangeSource, None] = {}
        self._held_for_next: list[Held] = []
        self._held_for_current: list[Held] = []
        self._due = False
        self._busy = False
        self._ended = False
        self._began = 0.0
        self._rest: asyncio.Future[None] | None = None
        journal.on_lost = self._lost

    def mark(self, source: ChangeSource) -> None:
        """A source has changed; call it before sending anything that depends on the change."""
        self._marked[source] = None
        self._begin_soon()

    def unmark(self, source: ChangeSource) -> None:
        """Do not store the changes of a source."""
        self._marked.pop(source, None)

    def hold(self, receiver: FrameReceiver, data: bytes, aside: bool = False) -> None:
        """Send a frame once everything that it may tell is durable.

        Args:
            receiver: the connection.
            data: the frame.
            aside: send it also when the journal is full.
        """
        if self._ended:
            return
        if self._marked or self._held_for_next:
            self._held_for_next.append((receiver, data, aside))
        elif self._busy:
            self._held_for_current.append((receiver, data, aside))
        elif self._may_answer():
            receiver.release(data)
        else:
            self._held_for_next.append((receiver, data, aside))
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
        self._held_for_current, self._held_for_next = self._held_for_next, []
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
        held, self._held_for_current = self._held_for_current, []
        for receiver, data, _ in held:
            receiver.release(data)
        if self._marked or self._held_for_next:
            self._begin()
        else:
            self._wake()

    def _wait_for_room(self, changes: Changes, error: JournalFullError) -> None:
        if not self.trouble:
            self.trouble = str(error)
            logger.error("%s; nothing is stored or answered until there is room", error)
            held = (*self._held_for_current, *self._held_for_next)
            self._held_for_current = [each for each in self._held_for_current if not each[2]]
            self._held_for_next = [each for each in self._held_for_next if not each[2]]
            for receiver, data, aside in held:
                if aside:
                    receiver.release(data)
        self._loop.call_later(AGAIN_SECONDS, self._write, changes)

    # -- the end ----------------------------------------------------------------------------

    def _lost(self, error: JournalError) -> None:
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        if not self._ended:
            self.drop()
            if not isinstance(error, JournalLostError):  # expected with standby servers
                logger.error("this server ends: %s", error)
            self._failed(error)

    def drop(self) -> None:
        """Drop what is held, and write nothing more."""
        self._ended = True
        self._marked = {}
        self._held_for_next = []
        self._held_for_current = []
        self._wake()

    def _wake(self) -> None:
        """End the wait of `rest`."""
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    def durability(self) -> Durability:
        """Return the figures for the server's status."""
        mean = self.commit_seconds / max(1, self.commits)
        return Durability(
            self.where, self.commits, self.entries, mean, self.worst_seconds, self.trouble
        )

    def is_behind(self, seconds: float) -> bool:
        """Return whether the commit under way has taken longer than that."""
        return self._busy and self._loop.time() - self._began > seconds

    @property
    def is_resting(self) -> bool:
        """Whether everything is durable and sent."""
        return not (self._marked or self._held_for_next or self._busy)

    async def rest(self, seconds: float) -> bool:
        """Wait until everything is durable and sent; return whether that is so in time.

        Args:
            seconds: how long at most; an error ends the wait at once.
        """
        until = self._loop.time() + seconds
        while not (self.is_resting or self._ended) and (left := until - self._loop.time()) > 0:
            self._rest = self._loop.create_future()
            await asyncio.wait([self._rest], timeout=left)
        return self.is_resting

    def close(self) -> None:
        """End the writer; what is not durable by now was sent to nobody."""
        self.drop()
        self._writer.stop()
