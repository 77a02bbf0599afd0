"""The real server on a simulated loop, with a disk that may lose what it has not synced.

`Server`, `Connection`, `RunHost` and `Space` are the shipped ones; only their event loop,
sockets and clock are simulated. What is stored is written to the `Disk` before anything is
told (the order that the core asks of its hosts), and read back when the server starts again.
"""

import asyncio
from typing import TYPE_CHECKING, Any, cast

from rallypoint.rendezvous.core.advance import advance, timers
from rallypoint.rendezvous.core.codec import decode, encode
from rallypoint.rendezvous.core.events import Disconnected
from rallypoint.rendezvous.core.state import PLACES, NodeId, State
from rallypoint.server import runs
from rallypoint.server.options import Options
from rallypoint.server.server import Server
from rallypoint.testing.simulator.clockwork import Process, finish

if TYPE_CHECKING:
    from rallypoint.testing.simulator.world import World


class Disk:
    """Remembers the newest state of the run: what was written, and what of it was synced.

    Args:
        sync_at_once: False keeps writes in the cache until `sync`; a fault to be found.
    """

    def __init__(self, sync_at_once: bool = True) -> None:
        self.sync_at_once = sync_at_once
        self._synced: bytes | None = None
        self._written: bytes | None = None

    def write(self, data: bytes) -> None:
        """Write a state."""
        self._written = data
        if self.sync_at_once:
            self.sync()

    def sync(self) -> None:
        """Let what was written survive a power loss."""
        self._synced = self._written

    def lose_power(self) -> None:
        """Forget what was not synced."""
        self._written = self._synced

    def wipe(self) -> None:
        """Forget everything."""
        self._written = self._synced = None

    def read(self) -> bytes | None:
        """Return the newest state that is left."""
        return self._written


class _Socket:
    """As much of a listening socket as the server looks at."""

    def getsockname(self) -> tuple[str, int]:
        """Return its address."""
        return ("10.9.9.9", 29400)


class WatchedHost(runs.RunHost):
    """A run's host that remembers since when each node has had its session."""

    bound_at: dict[NodeId, float]
    lost_at: dict[NodeId, float]

    def watch(self, process: Process) -> None:
        """Begin to remember."""
        self.process, self.bound_at, self.lost_at = process, {}, {}

    def _bind(self, session: runs.Session, node: NodeId) -> None:
        super()._bind(session, node)
        self.bound_at[node] = self.process.time()

    def disconnected(self, session: runs.Session) -> None:
        """See the base."""
        if session.node is not None and self.sessions.get(session.node) is session:
            self.lost_at[session.node] = self.process.time()
        super().disconnected(session)

    def adopt(self, state: State) -> None:
        """Go on from a stored state: every lease begins anew."""
        self.state = state
        if state.settings is None:
            return
        self._forgiving_until = self._loop.time() + state.settings.lease_seconds
        self._set_timers(advance(state))
        for node in [node for place in PLACES for node in getattr(state, place)]:
            self._submit(Disconnected(node))
            self._start_grace(node)
            self.lost_at[node] = self.process.time()


class SimulatedServer:
    """The server of a world: started, killed and started again.

    Args:
        world: where it lives.
        disk: what it keeps.
    """

    def __init__(self, world: "World", disk: Disk) -> None:
        self.world = world
        self.disk = disk
        self._options = Options(resume_seconds=world.plan.resume_seconds)
        self.life = 0  # grows when it forgets everything
        self.starts = 0
        self.held_up = 0  # how often it was paused, or its clock jumped
        self.jumped_seconds = 0.0
        self.lives: dict[str, int] = {}
        self.process: Process | None = None
        self.host: WatchedHost | None = None

    def start(self) -> None:
        """Start it from its disk."""
        self.starts += 1
        if self.process is not None:
            self.world.network.power_on(self.process)
        offset = self.world.clockwork.random.random() * 1e6
        process = Process(self.world.clockwork, f"server{self.starts}", offset)
        self.world.inherit_blocks(process.name)
        self.lives[process.name] = self.life
        loop = cast(Any, process)
        asyncio._set_running_loop(loop)
        try:
            server = Server(self._options, [cast(Any, _Socket())])
        finally:
            asyncio._set_running_loop(None)
        server.epoch = self.starts
        run_id = self.world.run_id
        host = WatchedHost(run_id, loop, "the server")
        host.watch(process)
        server.runs[run_id] = host
        self.process, self.host = process, host
        finish(server.start())
        stored = self.disk.read()
        if stored is not None:
            host.adopt(decode(stored))
            self.world.checker.begins(timers(host.state))
        self.world.note("server", f"has started (life {self.life})")

    def store(self, state: State) -> None:
        """Write a state; called before anybody is told of it."""
        self.disk.write(encode(state))

    def kill(self, back_seconds: float, power: bool, lost: bool) -> None:
        """End it; it starts again after a while."""
        if self.process is None or not self.process.alive:
            return
        if power:
            self.disk.lose_power()
            self.world.network.vanish(self.process)
        else:
            self.process.kill()
        if lost:
            self.disk.wipe()
            self.life += 1
        self.host = None
        clockwork = self.world.clockwork
        clockwork.add(clockwork.world, back_seconds, False, self.start)

    @property
    def state(self) -> State | None:
        """The run's state, None while the server is down."""
        return None if self.host is None else self.host.state
