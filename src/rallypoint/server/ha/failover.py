"""Servers that take over: one process that stands by, leads, and stands by again.

    leadership (a thread)        who leads, by the engine
    StandbyServer                says so to clients, on the listening sockets
    Server + Persistence              serves, on the same sockets, once this process leads

A server that leads is made anew from what the journal holds, for each term: nothing of an
earlier term is left in it. When the term is over it is fenced: all connections are cut without
another word, and what is not stored was told to nobody. The listening sockets stay open all
the time, so a client that comes in between waits for milliseconds, and is not refused.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Engine
from rallypoint.engines.election import Election, Leader, Term
from rallypoint.engines.registry import open_engine
from rallypoint.engines.url import with_timeout
from rallypoint.errors import (
    JournalCorruptError,
    JournalError,
    JournalLostError,
)
from rallypoint.net.addresses import local_address
from rallypoint.net.endpoints import join_place, parse_places
from rallypoint.rendezvous import defaults
from rallypoint.server.ha.leadership import RENEWALS, Leadership, View
from rallypoint.server.ha.standby import StandbyServer
from rallypoint.server.journal.contract import Opened
from rallypoint.server.journal.engine import OFFICE, EngineJournal
from rallypoint.server.journal.persistence import Persistence
from rallypoint.server.options import Options
from rallypoint.server.server import Server

logger = logging.getLogger("rallypoint.server")

START_SECONDS = 60.0  # for the engine to be reached the first time
OPEN_SECONDS = 60.0  # to read what is stored
REQUEST_SECONDS = 1.0  # of one request to one host of the engine, where its URL names no timeout
Attend = Callable[[Server], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class State:
    """Where several servers keep what one of them leads.

    Args:
        url: of the engine.
        name: of this process, unique.
        advertise: where clients find it, HOST:PORT.
        lease: seconds after which a silent leader is replaced.
    """

    url: str
    name: str
    advertise: str
    lease: float = defaults.value("leader_lease")

    def engine(self) -> Engine:
        """Return a client for the journal."""
        return open_engine(with_timeout(self.url, REQUEST_SECONDS, most=60.0))

    def election(self) -> Election:
        """Return a client for the election: one host that does not answer costs no term."""
        limit = self.lease / RENEWALS
        engine = open_engine(with_timeout(self.url, limit, most=limit))
        return Election(engine, OFFICE, self.lease, since_boot)


def since_boot() -> float:
    """Return seconds that go on while the machine is suspended: as a lease does."""
    clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # not on macOS
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def advertised(sockets: list[socket.socket], url: str) -> str:
    """Return where clients find a server: what it is bound to, or this machine's address.

    Args:
        sockets: bound.
        url: of the engine, whose way to here tells the address of one that is bound to all.
    """
    host, port = sockets[0].getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - read, not bound
        engine = url.partition("://")[2].partition("?")[0].partition("/")[0].rpartition("@")[2]
        host = local_address(parse_places(engine)[0][0])
    return join_place(str(host), port)


class Failover:
    """Serves whenever this process leads, stands by otherwise.

    Args:
        options: see `Server`.
        sockets: bound; closed by whoever made them.
        state: where what is served is kept.
        attend: around each server, e.g. its page.
    """

    def __init__(
        self, options: Options, sockets: list[socket.socket], state: State, attend: Attend
    ) -> None:
        self._options, self._sockets, self._state = options, sockets, state
        self._attend = attend
        self._loop = asyncio.get_running_loop()
        self._engine = state.engine()
        self._election = state.election()
        candidate = Leader(state.name, state.advertise)
        self._leadership = Leadership(self._election, candidate, state.lease, self._from_thread)
        self._view = View()
        self._changed = asyncio.Event()
        self._stopping = False
        self.server: Server | None = None  # that runs now
        self._served: tuple[Term, EngineJournal] | None = None
        self._leaving: list[asyncio.Future[None]] = []
        self._reached, self._start = False, Deadline(START_SECONDS)

    def stop(self) -> None:
        """End: a leader stores what it has, and makes room for the next one at once."""
        self._stopping = True
        self._changed.set()
        if self._served is not None and isinstance(self.server, StandbyServer):
            self._served[1].close()  # it is being read, for nobody
        if self.server is not None:
            self.server.stop()

    def _from_thread(self, view: View) -> None:
        try:
            self._loop.call_soon_threadsafe(self._look, view)
        except RuntimeError:
            return  # the loop has closed: this process ends

    def _look(self, view: View) -> None:
        before, self._view = self._view, view
        self._changed.set()
        if isinstance(self.server, StandbyServer):
            self.server.look()  # before it sends anybody to who leads now
        if view.failure is not None:
            logger.error("the election has failed: %r", view.failure, exc_info=view.failure)
        elif view.leader is not None and view.leader != before.leader:
            logger.warning("%s leads in epoch %d", view.leader.leader.where, view.leader.epoch)
        elif view.trouble and view.trouble != before.trouble:
            logger.warning("nobody is known to lead: %s", view.trouble)
        if self._served is not None and self._served[0] != view.term:
            self._fence(view)

    def _fence(self, view: View) -> None:
        """This process leads no more: its server must speak to nobody."""
        if self._served is None:
            return
        term, journal = self._served
        journal.close()
        if journal.on_lost is not None:
            why = view.trouble or "another one leads"
            text = f"{journal.where}: epoch {term.epoch} of this server is over: {why}"
            journal.on_lost(JournalLostError(text))

    # -- the two roles --------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve until `stop`; raise what cannot be gone on with."""
        self._leadership.start()
        try:
            while not self._stopping:
                taken = await self._stand_by()
                if taken is not None and not self._stopping:
                    await self._lead(*taken)
        finally:
            await asyncio.to_thread(self._leadership.stop)
            self._engine.close()
            await asyncio.gather(*self._leaving)

    async def _stand_by(self) -> tuple[Term, EngineJournal, Opened] | None:
        """Tell who leads until this process does, and has read what is stored."""
        server = StandbyServer(self._options, self._duplicates(), self._engine.where, self._known)
        async with self._running(server) as ended:
            while not self._stopping and not ended.done():
                self._check()
                if self._view.term is None:
                    await self._wait()
                elif (taken := await self._open(self._view.term)) is not None:
                    return taken
        return None

    def _known(self) -> View:
        return self._view

    async def _wait(self) -> None:
        """Wait for anything to change; until the engine was reached once, with a limit."""
        self._changed.clear()
        limit = None if self._reached else self._start.remaining()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), limit)

    def _check(self) -> None:
        view = self._view
        if view.failure is not None:
            raise view.failure
        if view.leader is not None:
            self._reached = True
        if not self._reached and (view.refused or self._start.expired()):
            waited = "" if view.refused else f" (tried for {self._start.elapsed():.0f} s)"
            raise JournalError(f"{view.trouble or f'{self._engine.where} does not answer'}{waited}")

    async def _open(self, term: Term) -> tuple[Term, EngineJournal, Opened] | None:
        journal = EngineJournal(self._engine, self._election, term)
        self._served = term, journal
        try:
            opened = await asyncio.to_thread(journal.open, Deadline(OPEN_SECONDS))
        except JournalCorruptError:
            raise  # by no server can it be used
        except JournalError as error:
            logger.error("cannot take over in epoch %d: %s", term.epoch, error)
            await self._resign(term)
            return None
        if self._view.term != term:
            self._served = None
            return None
        return term, journal, opened

    async def _lead(self, term: Term, journal: EngineJournal, opened: Opened) -> None:
        server = self.server = Server(self._options, self._duplicates())
        server.role = f"leads, in epoch {term.epoch}; its state is in {journal.where}"
        Persistence(server, journal, opened)
        try:
            async with self._running(server) as ended:
                if self._view.term != term:
                    self._fence(self._view)
                logger.warning(
                    "this server leads in epoch %d: %d entries", term.epoch, len(opened.entries)
                )
                await ended
        except JournalLostError as error:
            logger.warning("this server stands by: %s", error)
        except JournalError as error:
            if self._stopping:
                raise
            logger.error("this server steps back: %s", error)
        finally:
            if self._view.term == term and not self._stopping:
                await self._resign(term)
            self._served = None

    async def _resign(self, term: Term) -> None:
        """Let another one lead, and wait until this process does not."""
        self._served = None
        self._leadership.resign(term)
        while self._view.term == term and self._view.failure is None:
            await self._wait()

    @asynccontextmanager
    async def _running(self, server: Server) -> AsyncIterator["asyncio.Future[None]"]:
        """Run a server within a block, with its page; its end can be awaited there."""
        page, self.server = AsyncExitStack(), server
        await server.start()
        await page.enter_async_context(self._attend(server))
        ended = asyncio.ensure_future(server.serve())
        ended.add_done_callback(lambda _: self._changed.set())
        if self._stopping:  # since before it was the one to be stopped
            server.stop()
        try:
            yield ended
        finally:
            server.stop()
            await asyncio.wait([ended])
            # Who looks at the page may take a moment to leave; the next server need not wait.
            self._leaving.append(asyncio.ensure_future(page.aclose()))
        ended.result()

    def _duplicates(self) -> list[socket.socket]:
        """Return the listening sockets for one server, which closes them; ours stay open."""
        return [sock.dup() for sock in self._sockets]
