"""A server that outlives its process: what its parts are stored by, and read back from.

The `Keeper` has each run and each space of a server marked in the scribe when it changes
(scribe.py has the order that this makes), and puts a server back to where another one ended:

* The epoch is the journal's. It is larger than that of every server before.
* Runs go on from their stored state. Nobody is connected yet, and every lease begins anew: a
  node has a whole lease to come back, and is a member all that time. Timers begin anew.
* Spaces have their keys, and know the clients that they knew. A client that comes back sends
  its open calls again: those that had taken effect are answered from what was kept, so each
  takes effect once.
"""

import logging
from typing import TYPE_CHECKING

from rallypoint.errors import JournalError
from rallypoint.server.connection import Connection
from rallypoint.server.journal.contract import Journal, Opened
from rallypoint.server.journal.group_commit import Scribe, Writer, WriterThread
from rallypoint.server.journal.records import FORMAT, FORMAT_NAME, Rest, RunPart, SpacePart, Stored

if TYPE_CHECKING:
    from rallypoint.server.runs import RunHost
    from rallypoint.server.server import Server
    from rallypoint.server.store_host import Space

logger = logging.getLogger("rallypoint.server")

HELD_BYTES = 64 * 1024  # of a connection's answers, until it is read from no more


class DurableConnection(Connection):
    """A connection whose frames are held until what they tell is durable.

    What is held is not read yet, either: above `HELD_BYTES` no more is taken from the client,
    above `buffer_limit` it is cut off.
    """

    def __init__(self, server: "Server", scribe: Scribe) -> None:
        super().__init__(server)
        self.deaf = False  # the server ends: what comes now is answered by the next one
        self._scribe = scribe
        self._held = 0
        self._waits = False

    def data_received(self, data: bytes) -> None:
        if not self.deaf:
            super().data_received(data)

    def send(self, data: bytes) -> None:
        """Write one frame once it may be told."""
        self._hold(data, aside=False)

    def _hold(self, data: bytes, aside: bool) -> None:
        self._held += len(data)
        self._scribe.hold(self, data, aside)
        if self._held > self.server.options.buffer_limit:
            logger.warning("cutting off %s: %d bytes wait to be stored", self.peer, self._held)
            self.abort()
        elif self._held > HELD_BYTES and not self._waits and self._transport is not None:
            self._waits = True
            self._transport.pause_reading()

    def inform(self, data: bytes) -> None:
        """Send a frame about a run; when there is no room, it is written all the same.

        So a client comes in although its record cannot be stored (its changes are refused until
        there is room, its beats are taken), and who asks is told of the trouble.
        """
        if self._scribe.trouble:
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


class Keeper:
    """Keeps a server in a journal.

    Args:
        server: which has no run and no space yet.
        journal: opened.
        opened: what was found in it.
        writer: commits to it; None: a thread of its own.

    Raises JournalCorruptError when what is stored does not fit.
    """

    def __init__(
        self, server: "Server", journal: Journal, opened: Opened, writer: Writer | None = None
    ) -> None:
        stored = Stored(journal.where, opened.entries)
        loop = server.loop
        self.scribe = Scribe(loop, journal, writer or WriterThread(loop, journal), server.fence)
        self._rest = Rest()
        self._runs: dict[str, RunPart] = {}
        self._spaces: dict[str, SpacePart] = {}
        server.epoch, server.keeper = opened.epoch, self
        if stored.is_new:
            self._rest.add({FORMAT_NAME: FORMAT})
            self.scribe.mark(self._rest)
        for run_id, state in stored.runs.items():
            server.run(run_id).adopt(state)
        for run_id, found in stored.spaces.items():
            space = server.new_space(run_id)
            space.keys.resume(found.changes, found.changes)
            for key, (version, value, first) in found.keys.items():
                space.keys.put_back(key, version, value, first)
            for client_id, kept in found.clients.items():
                space.put_back(client_id, kept.since, kept.record, kept.results)
            self._spaces[run_id].read_back(found)

    def connection(self, server: "Server") -> Connection:
        """Return a new connection."""
        return DurableConnection(server, self.scribe)

    def keep_run(self, run_id: str, host: "RunHost") -> None:
        """Store a run from now on."""
        part = self._runs[run_id] = RunPart(host)
        host.mark = lambda: self.scribe.mark(part)

    def keep_space(self, run_id: str, space: "Space") -> None:
        """Store a space from now on."""
        space.notes = self._spaces[run_id] = SpacePart(run_id, space, self.scribe)

    def forget_run(self, run_id: str) -> None:
        """A run is let go of."""
        self._forget(self._runs.pop(run_id))

    def forget_space(self, run_id: str) -> None:
        """A space is let go of."""
        self._forget(self._spaces.pop(run_id))

    def _forget(self, part: RunPart | SpacePart) -> None:
        self.scribe.unmark(part)
        self._rest.add(part.gone())
        self.scribe.mark(self._rest)

    async def finish(self, connections: list[Connection], seconds: float) -> JournalError | None:
        """Take in nothing more, and wait until what was done is stored and told.

        Returns what is wrong when that is not so in time.
        """
        for connection in connections:
            if isinstance(connection, DurableConnection):
                connection.deaf = True
        if await self.scribe.rest(seconds):
            return None
        why = self.scribe.trouble or f"{self.scribe.where} did not take them in {seconds:g} s"
        return JournalError(f"the last changes are not stored, and were told to nobody: {why}")

    def close(self) -> None:
        """Write nothing more, and let go of the journal."""
        self.scribe.close()
