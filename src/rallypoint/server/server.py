"""The server: listens, keeps the runs and their stores, sweeps, and ends when it should."""

import asyncio
import functools
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import psutil

from rallypoint.core.state import RunState
from rallypoint.net import protocol as p
from rallypoint.net.listener import BACKLOG
from rallypoint.net.tls import stamp
from rallypoint.net.token_sources import FileToken, current
from rallypoint.net.tokens import Keyring
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.reports.history import Noted
from rallypoint.rendezvous.reports.report import report_of
from rallypoint.rendezvous.reports.status import ServerStatus
from rallypoint.server.connection import Connection
from rallypoint.server.fault import FaultLog
from rallypoint.server.limits import STALLED, ConnectionLimits, ReceiveBudget
from rallypoint.server.options import Options, exposure, needs_peer_credentials
from rallypoint.server.peer_credentials import find_peer_credentials
from rallypoint.server.runs import RunHost
from rallypoint.server.status import Counters, newest_runs, run_line
from rallypoint.server.store_host import StoreHost
from rallypoint.server.tls import ServerTLS, TLSLayer
from rallypoint.version import __version__

if TYPE_CHECKING:
    from rallypoint.server.journal.persistence import Persistence

logger = logging.getLogger("rallypoint.server")

SWEEP_SECONDS = 0.5
RUNS_SHOWN = 500
ENDED_RUNS_KEPT = 10_000
STORE_SECONDS = 5.0  # for the last changes to be stored
SHUTDOWN_SECONDS = 0.3  # for clients to read the goodbye; idle ones do not read


class Server:
    """One port, any number of runs.

    Args:
        options: see `Options`.
        sockets: bound sockets to listen on (see `net.listener.listen`).
    """

    make_run: Callable[[str, asyncio.AbstractEventLoop, str], RunHost] = RunHost

    def __init__(self, options: Options, sockets: list[socket.socket]) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.epoch = time.time_ns() // 1000  # grows with each start
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.lag_seconds = 0.0
        self.worst_lag_seconds = 0.0
        self.started_at = self.loop.time()
        self.counters = Counters()
        self.faults = FaultLog()
        self.watchers: set[Callable[[str], None]] = set()  # called with a run that has changed
        self.connections: set[Connection] = set()
        self.runs: dict[str, RunHost] = {}
        self.stores: dict[str, StoreHost] = {}
        self._sockets = sockets
        self._token_stamp = stamp(options.token.path) if hasattr(options.token, "path") else None
        self.connection_limits = ConnectionLimits[Connection](options, raise_file_limit())
        self.receive_budget = ReceiveBudget[Connection](options.arriving_limit)
        self.keyring = Keyring(current(options.token))  # the newest that were good
        self.tls = ServerTLS(options.tls) if options.tls.for_servers else None
        self._servers: list[asyncio.Server] = []
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None
        self._swept_at = self.loop.time()
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty_since = self.loop.time()
        self._had_clients = False
        self.on_empty: Callable[[], None] | None = None
        self.persistence: Persistence | None = None
        self.role = ""  # among several servers, for people
        self.leads = True
        self.where = endpoint_of(sockets[0])
        self.peer_credentials = (
            find_peer_credentials(self.loop, sockets[0])
            if needs_peer_credentials(options)
            else None
        )
        owner = None if self.peer_credentials is None else os.geteuid()
        self.access = exposure([str(s.getsockname()[0]) for s in sockets], options, owner)

    async def start(self) -> None:
        """Listen."""
        self.loop.set_exception_handler(self._failed)
        for sock in self._sockets:
            server = await self.loop.create_server(self._accept, sock=sock, backlog=BACKLOG)
            self._servers.append(server)
        self._swept_at = self._empty_since = self.loop.time()
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    def _accept(self) -> asyncio.Protocol:
        connection = self.new_connection()
        return connection if self.tls is None else TLSLayer(self.tls, connection)

    def new_connection(self) -> Connection:
        """Return the protocol for an accepted connection."""
        if self.persistence is None:
            return Connection(self)
        return self.persistence.connection(self)

    async def serve(self) -> None:
        """Serve until `stop`, or until empty if that is an option; raise what broke the server."""
        await self._ended.wait()
        await self._shut_down()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the server."""
        self._ended.set()

    async def _shut_down(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            server.close()
        for run in self.runs.values():
            run.stop()
        why = "the server is shutting down"
        if self.persistence is not None:
            why += f"; its runs are kept in {self.persistence.group_commit.where}, for the next one"
            unsaved = await self.persistence.finish(list(self.connections), STORE_SECONDS)
            self._failure = self._failure or unsaved
        goodbye = p.Goodbye(p.GOODBYE_SHUTDOWN, why)
        for connection in list(self.connections):
            connection.close(goodbye)
        deadline = self.loop.time() + SHUTDOWN_SECONDS
        while self.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.abort()
        if self.peer_credentials is not None:
            self.peer_credentials.close()
        await asyncio.sleep(0)  # the transports' own closing callbacks
        if self.persistence is not None:
            self.persistence.close()

    def fence(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        for connection in list(self.connections):
            connection.abort()
        self._ended.set()

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """End the server: the error is a bug, and its state cannot be relied on."""
        error = context.get("exception")
        if isinstance(error, OSError):  # of a client's socket: only its connection ends
            logger.info("connection error: %s", error)
            return
        if self._failure is None:
            failed = error if isinstance(error, BaseException) else RuntimeError(str(context))
            logger.error("this server has failed and ends: %r", failed, exc_info=failed)
            self._failure = failed
        self._ended.set()

    # -- for connections (`connection.OwningServer`) and persistence ------------------------------

    def opened(self, connection: Connection) -> None:
        others = len(self.connections)
        self.connections.add(connection)
        address, now = connection.address, connection.heard_at
        refusal = self.connection_limits.enter(connection, address, others, now)
        if refusal is not None:
            refusal.connection.close(refusal.goodbye)
        if self._ended.is_set():  # its client may reconnect, to another server
            connection.close(p.Goodbye(p.GOODBYE_SHUTDOWN, "the server is shutting down"))

    def proved(self, connection: Connection) -> None:
        self.connection_limits.proved(connection)
        self._had_clients = True

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.connection_limits.leave(connection, connection.address)
        if not self.connections:
            self._empty_since = self.loop.time()
            self.tell_if_empty()
            self._end_if_empty(self._empty_since)

    def tell_if_empty(self) -> None:
        """Call `on_empty` when no client is connected."""
        if not self.connections and self.on_empty is not None:
            self.on_empty()

    def run(self, run_id: str) -> RunHost:
        run = self.runs.get(run_id)
        if run is None:
            run = self.runs[run_id] = self.make_run(
                run_id, self.loop, f"the server at {self.where}"
            )
            run.observe = partial(self._observed, run_id)
            run.on_fault = partial(self._run_failed, run_id)
            if self.persistence is not None:
                self.persistence.keep_run(run_id, run)
        return run

    def _observed(self, run_id: str, noted: Noted) -> None:
        self.counters.note(noted)
        self._notify_watchers(run_id)

    def _notify_watchers(self, run_id: str) -> None:
        for watcher in self.watchers:
            watcher(run_id)

    def _run_failed(self, run_id: str, error: Exception) -> None:
        """Close a run whose rules have failed; its store stays."""
        self.run(run_id).fail(self.faults.contain(f"run {run_id!r}: closed", error))
        self._notify_watchers(run_id)

    def _store_failed(self, run_id: str, error: Exception) -> None:
        """Close a run whose store has failed; the store answers no call any more."""
        what = f"the store of run {run_id!r}: closed, and its run"
        why = self.faults.contain(what, error)
        store = self.stores.get(run_id)
        if store is not None:
            store.fail(why)
        self.run(run_id).fail(why)
        self._notify_watchers(run_id)

    def report(self, run_id: str, brief: bool = False) -> Report:
        run = self.runs.get(run_id)
        if run is None:
            return report_of(RunState(run_id), f"the server at {self.where}")
        return run.brief() if brief else run.report()

    def status(self) -> ServerStatus:
        now = self.loop.time()
        shown = newest_runs(self.runs.values(), RUNS_SHOWN)
        persistence = self.persistence
        return ServerStatus(
            endpoint=self.where,
            version=__version__,
            protocol=p.PROTOCOL_VERSION,
            pid=os.getpid(),
            uptime_seconds=now - self.started_at,
            wall_time=time.time(),
            connections=len(self.connections),
            requests=self.requests,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            faults=self.faults.count,
            lag_seconds=self.lag_seconds,
            worst_lag_seconds=self.worst_lag_seconds,
            memory_bytes=_process().memory_info().rss,
            store_bytes=sum(store.keys.stored_bytes for store in self.stores.values()),
            run_count=len(self.runs),
            runs=tuple(run_line(run, now) for run in shown),
            access=self.access,
            role=self.role,
            durable=None if persistence is None else persistence.group_commit.durability(),
        )

    def store(self, run_id: str) -> StoreHost | None:
        store = self.stores.get(run_id)
        if store is None and len(self.stores) < self.options.runs_limit:
            return self.new_store(run_id)
        return store

    def new_store(self, run_id: str) -> StoreHost:
        store = self.stores[run_id] = StoreHost(self.loop, self.options, self.epoch)
        store.on_fault = partial(self._store_failed, run_id)
        if self.persistence is not None:
            self.persistence.keep_store(run_id, store)
        return store

    def _drop_store(self, run_id: str) -> None:
        if self.stores.pop(run_id, None) is not None and self.persistence is not None:
            self.persistence.forget_store(run_id)

    # -- housekeeping ---------------------------------------------------------------------

    def _sweep(self) -> None:
        now = self.loop.time()
        late = now - self._swept_at - SWEEP_SECONDS
        gap = late if late > SWEEP_SECONDS else 0.0
        self.lag_seconds = max(0.0, late)
        self.worst_lag_seconds = max(self.worst_lag_seconds, late)
        self._swept_at = now
        if gap:
            logger.warning("this server was held up for %.1f s; leases are extended by that", gap)
        if self.persistence is not None and self.persistence.group_commit.is_behind(SWEEP_SECONDS):
            gap = late + SWEEP_SECONDS  # clients awaiting a commit are not idle
        for run in self.runs.values():
            run.sweep(now, gap)
        for name, store in list(self.stores.items()):
            store.forget(now - self.options.resume_seconds - gap)
            if store.is_unused and name not in self.runs:
                self._drop_store(name)
        for refusal in self.connection_limits.overdue(now, gap):
            refusal.connection.close(refusal.goodbye)
        if not gap:
            received = {each: each.buffered for each in self.receive_budget.receiving()}
            for connection in self.receive_budget.stalled(received, now):
                connection.close(STALLED)
        self._reload()
        self._forget_ended_runs()
        self._end_if_empty(now)
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    def _reload(self) -> None:
        """Read changed tokens and certificates.

        Only connections whose token was removed are closed; a client with another one returns.
        """
        if self.tls is not None:
            self.tls.reload()
        if not isinstance(self.options.token, FileToken):
            return
        changed = stamp(self.options.token.path)
        if changed != self._token_stamp:
            self._token_stamp = changed
            keyring = Keyring(current(self.options.token))
            if keyring and keyring.keys != self.keyring.keys:
                self.keyring = keyring
                logger.warning("the token file has changed: %d tokens", len(keyring.keys))
                for connection in list(self.connections):
                    connection.recheck_token()

    def _forget_ended_runs(self) -> None:
        excess = len(self.runs) - ENDED_RUNS_KEPT
        if excess > 0:
            for name in [name for name, run in self.runs.items() if run.is_idle()][:excess]:
                self.runs.pop(name).stop()
                if self.persistence is not None:
                    self.persistence.forget_run(name)
                self._drop_store(name)

    def _end_if_empty(self, now: float) -> None:
        options = self.options
        idle = (run.is_idle() for run in self.runs.values())
        if not options.until_empty or self.connections or not all(idle):
            return
        over = bool(self.runs) and all(run.is_closed for run in self.runs.values())
        wait = options.first_client_seconds
        if self._had_clients:  # nobody is expected in a run that is over
            wait = 0.0 if over else options.linger_seconds
        if now - self._empty_since >= wait:
            logger.info("the last client has gone; ending")
            self.stop()


@functools.cache
def _process() -> psutil.Process:
    return psutil.Process()


def raise_file_limit() -> int:
    """Allow as many open files as the system lets this process have; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS names a hard limit that it refuses
            logger.info("file limit stays at %d: %s", soft, error)
            hard = soft
    return hard if hard != resource.RLIM_INFINITY else sys.maxsize


def endpoint_of(sock: socket.socket) -> str:
    """Return HOST:PORT of a bound socket, with brackets around an IPv6 address."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
