"""Servers that take over, each in a thread of this process, on a database in memory."""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvloop

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Engine
from rallypoint.engines.election import Election
from rallypoint.net.listener import listen
from rallypoint.server.ha.failover import Failover, FailoverConfig
from rallypoint.server.journal.engine import ELECTION
from rallypoint.server.options import Options
from rallypoint.server.server import Server, endpoint_of
from rallypoint.testing.fakes import MemoryEngine

LEASE = 2.0
LIMIT = 20.0


@dataclasses.dataclass(frozen=True)
class MemoryState(FailoverConfig):
    """A state on an engine of this process."""

    shared: Engine = dataclasses.field(default_factory=MemoryEngine)

    def engine(self) -> Engine:
        return self.shared.clone()

    def election(self) -> Election:
        return Election(self.shared.clone(), ELECTION, self.lease, time.monotonic)


class InTurn:
    """One server of several.

    Args:
        engine: shared by all.
        name: of this one.
        lease: seconds.
        **options: of the server.
    """

    def __init__(self, engine: Engine, name: str, lease: float = LEASE, **options: Any) -> None:
        self.options = Options(**options)
        self.sockets = listen("127.0.0.1", 0, self.options.token, self.options.insecure)
        self.where = endpoint_of(self.sockets[0])
        self.state = MemoryState("memory://", name, self.where, lease, engine)
        self.servers: list[Server] = []
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(LIMIT)

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:  # told to the test by `ended`
            self.error = error
        finally:
            self._ready.set()
            for sock in self.sockets:
                sock.close()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.failover = Failover(self.options, self.sockets, self.state, self._attend)
        self._ready.set()
        await self.failover.serve()

    @contextlib.asynccontextmanager
    async def _attend(self, server: Server) -> AsyncIterator[None]:
        with self._changed:
            self.servers.append(server)
            self._changed.notify_all()
        yield

    def until(self, wanted: Callable[[Server], bool]) -> Server:
        """Wait until the server that runs is as wanted."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: bool(self.servers) and wanted(self.servers[-1]), LIMIT
            )
        assert done, [server.role for server in self.servers]
        return self.servers[-1]

    def leads(self) -> Server:
        """Wait until it leads."""
        return self.until(lambda server: server.persistence is not None)

    def stands_by(self) -> Server:
        """Wait until it stands by."""
        return self.until(lambda server: server.persistence is None)

    def oust(self) -> None:
        """Take the office away from whoever has it."""
        key, engine = f"leader/{ELECTION}", self.state.engine()
        seen = engine.read([key], Deadline(1))[key]
        assert engine.commit({key: seen}, {key: None}, Deadline(1)).done

    def stop(self) -> BaseException | None:
        """End it; return what it failed with."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.failover.stop)
        return self.ended()

    def ended(self) -> BaseException | None:
        """Wait for its end; return what it failed with."""
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        return self.error
