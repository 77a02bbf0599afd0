"""Servers that take over: one process that stands by, leads, and stands by again.

    Leadership (a thread)        who leads, according to the database
    StandbyServer                tells clients, on the listening sockets
    Server + Persistence         serves on the same sockets while this process leads

A leading server is created from the journal for each term: nothing of an earlier term is left in
it. When the term is over it is fenced: all connections are closed without a goodbye, and clients
have been notified only of what is stored. The listening sockets stay open all the time, so
clients that connect in between wait for milliseconds and are not refused.
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
from rallypoint.engines.url import open_engine, with_timeout
from rallypoint.errors import (
    JournalCorruptError,
    JournalError,
    JournalLostError,
)
from rallypoint.net import protocol as p
from rallypoint.net.addresses import local_address
from rallypoint.net.endpoints import join_endpoint, parse_endpoints
from rallypoint.net.tokens import Rights
from rallypoint.rendezvous import defaults
from rallypoint.server.connection import Connection
from rallypoint.server.ha.leadership import RENEWALS, Leadership, LeaderStatus
from rallypoint.server.journal.contract import Opened
from rallypoint.server.journal.engine import ELECTION, EngineJournal
from rallypoint.server.journal.persistence import Persistence
from rallypoint.server.options import Options
from rallypoint.server.server import Server

logger = logging.getLogger("rallypoint.server")

START_SECONDS = 60.0  # for the database to be reached the first time
OPEN_SECONDS = 60.0  # to read what is stored
REQUEST_SECONDS = 1.0  # of one request to one host of the database, unless its URL names a timeout
Attend = Callable[[Server], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class FailoverConfig:
    """Where several servers keep their state, and how this one takes part.

    Args:
        url: of the database.
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
        """Return a client for the election: one silent host costs no term."""
        limit = self.lease / RENEWALS
        engine = open_engine(with_timeout(self.url, limit, most=limit))
        return Election(engine, ELECTION, self.lease, since_boot)


def since_boot() -> float:
    """Return seconds since boot, suspended time included: a lease runs on, too."""
    clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # not on macOS
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def advertised(sockets: list[socket.socket], url: str) -> str:
    """Return where clients find a server: what it is bound to, or this machine's address.

    Args:
        sockets: bound.
        url: of the database: of all addresses, the one on the way there is chosen.
    """
    host, port = sockets[0].getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - read, not bound
        engine = url.partition("://")[2].partition("?")[0].partition("/")[0].rpartition("@")[2]
        host = local_address(parse_endpoints(engine or None)[0][0])
    return join_endpoint(str(host), port)


class StandbyConnection(Connection):
    """A client's connection to a standby server."""

    def _enter(self, hello: p.Hello, rights: Rights) -> None:
        server = self.server
        if isinstance(server, StandbyServer):
            reason, leader = server.who_leads()
            self._close(reason, p.frame(p.Goodbye(p.GOODBYE_STANDBY, reason, leader)))


class StandbyServer(Server):
    """A standby: it does the handshake, names the leader, and knows no run.

    Both sides prove their token before that: nobody else learns where the leader is, or can
    send a client elsewhere.

    Args:
        options, sockets: see `Server`.
        where: the database, for people.
        leader_status: returns what is known of the leader.
    """

    def __init__(
        self,
        options: Options,
        sockets: list[socket.socket],
        where: str,
        leader_status: Callable[[], LeaderStatus],
    ) -> None:
        super().__init__(options, sockets)
        self._state = where
        self._leader_status = leader_status
        self.leads = False
        self.look()

    def new_connection(self) -> Connection:
        return StandbyConnection(self)

    def look(self) -> None:
        """Update `role` to what is known now."""
        self.role = self.who_leads()[0]

    def who_leads(self) -> tuple[str, str]:
        """Return who leads: in words, and as HOST:PORT ("" if that is not known)."""
        status = self._leader_status()
        if status.term is not None:
            return f"takes over, in epoch {status.term.epoch}; it is reading {self._state}", ""
        if status.leader is not None:
            where = status.leader.leader.where
            return f"stands by; {where} leads, in epoch {status.leader.epoch}", where
        trouble = f" ({status.trouble})" if status.trouble else ""
        return f"stands by; nobody is known to lead{trouble}", ""


class Failover:
    """Serves while this process leads, stands by otherwise.

    Args:
        options: see `Server`.
        sockets: bound; the caller closes them.
        config: where the state is kept.
        attend: around each server, e.g. its web page.
    """

    def __init__(
        self,
        options: Options,
        sockets: list[socket.socket],
        config: FailoverConfig,
        attend: Attend,
    ) -> None:
        self._options = options
        self._sockets = sockets
        self._attend = attend
        self._loop = asyncio.get_running_loop()
        self._engine = config.engine()
        self._election = config.election()
        candidate = Leader(config.name, config.advertise)
        self._leadership = Leadership(self._election, candidate, config.lease, self._from_thread)
        self._status = LeaderStatus()
        self._changed = asyncio.Event()
        self._stopping = False
        self.server: Server | None = None  # that runs now
        self._served: tuple[Term, EngineJournal] | None = None
        self._leaving: list[asyncio.Future[None]] = []
        self._reached = False
        self._start = Deadline(START_SECONDS)

    def stop(self) -> None:
        """End: a leader stores what it has, and lets the next one lead at once."""
        self._stopping = True
        self._changed.set()
        if self._served is not None and isinstance(self.server, StandbyServer):
            self._served[1].close()  # it is being read in vain
        if self.server is not None:
            self.server.stop()

    def _from_thread(self, status: LeaderStatus) -> None:
        try:
            self._loop.call_soon_threadsafe(self._look, status)
        except RuntimeError:
            return  # the loop has closed: this process ends

    def _look(self, status: LeaderStatus) -> None:
        before, self._status = self._status, status
        self._changed.set()
        if isinstance(self.server, StandbyServer):
            self.server.look()  # before it names a leader to anybody
        if status.failure is not None:
            logger.error("the election has failed: %r", status.failure, exc_info=status.failure)
        elif status.leader is not None and status.leader != before.leader:
            logger.warning("%s leads in epoch %d", status.leader.leader.where, status.leader.epoch)
        elif status.trouble and status.trouble != before.trouble:
            logger.warning("nobody is known to lead: %s", status.trouble)
        if self._served is not None and self._served[0] != status.term:
            self._fence(status)

    def _fence(self, status: LeaderStatus) -> None:
        """This process does not lead any more: its server must send nothing."""
        if self._served is None:
            return
        term, journal = self._served
        journal.close()
        if journal.on_lost is not None:
            why = status.trouble or "another one leads"
            text = f"{journal.where}: epoch {term.epoch} of this server is over: {why}"
            journal.on_lost(JournalLostError(text))

    # -- the two roles --------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve until `stop`; raise an error that cannot be recovered from."""
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
        """Name the leader to clients until this process leads and has read what is stored."""
        server = StandbyServer(
            self._options, self._duplicates(), self._engine.where, lambda: self._status
        )
        async with self._running(server) as ended:
            while not self._stopping and not ended.done():
                self._check()
                if self._status.term is None:
                    await self._wait()
                elif (taken := await self._open(self._status.term)) is not None:
                    return taken
        return None

    async def _wait(self) -> None:
        """Wait for a change; with a limit until the database was reached once."""
        self._changed.clear()
        limit = None if self._reached else self._start.remaining()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), limit)

    def _check(self) -> None:
        status = self._status
        if status.failure is not None:
            raise status.failure
        if status.leader is not None:
            self._reached = True
        if not self._reached and (status.refused or self._start.expired()):
            waited = "" if status.refused else f" (tried for {self._start.elapsed():.0f} s)"
            raise JournalError(
                f"{status.trouble or f'{self._engine.where} does not answer'}{waited}"
            )

    async def _open(self, term: Term) -> tuple[Term, EngineJournal, Opened] | None:
        journal = EngineJournal(self._engine, self._election, term)
        self._served = term, journal
        try:
            opened = await asyncio.to_thread(journal.open, Deadline(OPEN_SECONDS))
        except JournalCorruptError:
            raise  # unusable by every server
        except JournalError as error:
            logger.error("cannot take over in epoch %d: %s", term.epoch, error)
            await self._resign(term)
            return None
        if self._status.term != term:
            self._served = None
            return None
        return term, journal, opened

    async def _lead(self, term: Term, journal: EngineJournal, opened: Opened) -> None:
        server = self.server = Server(self._options, self._duplicates())
        server.role = f"leads, in epoch {term.epoch}; its state is in {journal.where}"
        Persistence(server, journal, opened)
        try:
            async with self._running(server) as ended:
                if self._status.term != term:
                    self._fence(self._status)
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
            if self._status.term == term and not self._stopping:
                await self._resign(term)
            self._served = None

    async def _resign(self, term: Term) -> None:
        """Let another server lead, and wait until this one does not."""
        self._served = None
        self._leadership.resign(term)
        while self._status.term == term and self._status.failure is None:
            await self._wait()

    @asynccontextmanager
    async def _running(self, server: Server) -> AsyncIterator["asyncio.Future[None]"]:
        """Run a server within a block, with its page; yield a future of its end."""
        page, self.server = AsyncExitStack(), server
        await server.start()
        await page.enter_async_context(self._attend(server))
        ended = asyncio.ensure_future(server.serve())
        ended.add_done_callback(lambda _: self._changed.set())
        if self._stopping:  # since before `self.server` was set
            server.stop()
        try:
            yield ended
        finally:
            server.stop()
            await asyncio.wait([ended])
            # Visitors of the page may take a moment to leave; the next server need not wait.
            self._leaving.append(asyncio.ensure_future(page.aclose()))
        ended.result()

    def _duplicates(self) -> list[socket.socket]:
        """Return the listening sockets for one server, which closes them; ours stay open."""
        return [sock.dup() for sock in self._sockets]
