"""The real server on a virtual clock, durable on a simulated disk.

The server, its connections, its runs, its stores and its persistence are the shipped ones; only
the event loop, sockets, clock and journal are simulated. Two servers can exist at once: one that
was stopped until another took over, and has continued.

A commit is written to the disk's cache and then synced, each after a delay; the group commit is
notified after the sync. A killed process leaves what it has written, a machine that loses power
what it has synced. A process can also die between the sync and the notification: then data is
stored that nobody was notified of. A journal leads until another one is opened; it notices that
when it commits and when it renews its lease, and its own clock tells it until when no other
journal can have been opened.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol, cast

from rallypoint.core.advance import Step, timers
from rallypoint.core.events import Event, Timer
from rallypoint.core.state import PLACES, NodeId, RunState
from rallypoint.deadline import Deadline
from rallypoint.errors import JournalFullError, JournalLostError
from rallypoint.server import runs
from rallypoint.server.fault import FaultLog
from rallypoint.server.journal.contract import Journal, Opened
from rallypoint.server.journal.group_commit import Changes, Done
from rallypoint.server.journal.persistence import Persistence
from rallypoint.server.options import Options
from rallypoint.server.server import Server
from rallypoint.testing.simulator.context import Simulation
from rallypoint.testing.simulator.virtual_clock import Process, finish

LEASE_SECONDS = 2.0  # of a journal; then another server may open one
Call = Callable[[], None]


class Disk:
    """Entries: those in the cache, and those that are synced.

    Args:
        sync_at_once: False keeps writes in the cache until `sync`.
    """

    def __init__(self, sync_at_once: bool = True) -> None:
        self.sync_at_once = sync_at_once
        self.epoch = 0
        self.full = False
        self._synced: dict[str, bytes] = {}
        self._cache: list[tuple[Changes, Call]] = []

    def write(self, changes: Changes, durable: Call = lambda: None) -> None:
        """Write entries to the cache; `durable` is called once they are synced."""
        self._cache.append((changes, durable))

    def sync(self) -> None:
        """Make the cached entries survive a power loss."""
        cache, self._cache = self._cache, []
        for changes, durable in cache:
            for name, value in changes.items():
                if value is None:
                    self._synced.pop(name, None)
                else:
                    self._synced[name] = value
            durable()

    def lose_power(self) -> None:
        """Drop the cached entries."""
        self._cache = []

    def wipe(self) -> None:
        """Drop all entries; epochs keep growing."""
        self._cache, self._synced = [], {}

    def read(self) -> dict[str, bytes]:
        """Return the entries after a process has ended; the cache survives it."""
        self.sync()
        return dict(self._synced)


class SimulatedJournal(Journal):
    """A journal on a simulated disk.

    Args:
        disk: where it keeps entries.
        process: its owner, whose clock measures the lease.
    """

    def __init__(self, disk: Disk, process: Process) -> None:
        self.where = "a simulated disk"
        self._disk, self._process = disk, process
        self._epoch = 0
        self._safe_until = float("-inf")

    def open(self, deadline: Deadline) -> Opened:
        self._disk.epoch = self._epoch = self._disk.epoch + 1
        self._renew()
        return Opened(self._epoch, self._disk.read())

    def _renew(self) -> None:
        if not self.leads:
            if self.on_lost is not None:
                self.on_lost(JournalLostError("another journal holds the lease"))
            return
        self._safe_until = self._process.time() + LEASE_SECONDS
        self._process.call_later(LEASE_SECONDS / 3, self._renew)

    @property
    def leads(self) -> bool:
        """Whether no other journal has been opened since."""
        return self._epoch == self._disk.epoch

    def may_answer(self) -> bool:
        return self._process.time() < self._safe_until

    def commit(self, changes: Changes, deadline: Deadline, durable: Call = lambda: None) -> None:
        """Here it writes, and the writer syncs."""
        if not self.leads:
            raise JournalLostError(f"epoch {self._epoch} is over: {self._disk.epoch} leads")
        if self._disk.full and changes:
            raise JournalFullError("the simulated disk is full")
        self._disk.write(changes, durable)

    def close(self) -> None:
        self._epoch = 0


class SimulatedWriter:
    """Commits after the delays of the plan's disk.

    Args:
        simulation: its plan says how fast the disk is.
        process: the server.
        journal: an open one.
        disk: of the journal.
        noted: returns the function to call once everything so far is durable.
    """

    def __init__(
        self,
        simulation: Simulation,
        process: Process,
        journal: SimulatedJournal,
        disk: Disk,
        noted: Callable[[], Call],
    ) -> None:
        self._simulation = simulation
        self._process = process
        self._journal = journal
        self._disk = disk
        self._noted = noted
        self._batch: tuple[Changes, Call] | None = None

    def write(self, changes: Changes, done: Done) -> None:
        if self._batch is None or self._batch[0] is not changes:  # else this is a retry
            self._batch = (changes, self._noted())
        self._delayed(self._write, *self._batch, done)

    def _delayed(self, call: Callable[..., None], *args: object) -> None:
        least, most = self._simulation.plan.disk_seconds
        clock = self._simulation.clock
        seconds = least + (most - least) * clock.random.random()
        clock.add(self._process, seconds, False, call, *args)

    def _write(self, changes: Changes, durable: Call, done: Done) -> None:
        try:
            self._journal.commit(changes, Deadline(0.0), durable)
        except (JournalFullError, JournalLostError) as error:
            done(error)
            return
        self._delayed(self._sync, done)

    def _sync(self, done: Done) -> None:
        if self._disk.sync_at_once:
            self._disk.sync()
        self._process.soon(done, None)

    def stop(self) -> None:
        self._journal.close()


__all__ = ["LEASE_SECONDS", "Disk", "SimulatedJournal", "SimulatedWriter"]


Taken = tuple[RunState, Step, tuple[Event, ...]]


class _Socket:
    """The part of a listening socket that the server uses."""

    def getsockname(self) -> tuple[str, int]:
        """Return its address."""
        return ("10.9.9.9", 29400)


class WatchedHost(runs.RunHost):
    """A run's host that records when each node connected and disconnected.

    `steps` are those that are not durable yet.
    """

    def __init__(self, run_id: str, loop: asyncio.AbstractEventLoop, where: str) -> None:
        super().__init__(run_id, loop, where)
        self.bound_at: dict[NodeId, float] = {}
        self.lost_at: dict[NodeId, float] = {}
        self.steps: list[Taken] = []

    def _bind(self, connection: runs.NodeConnection, node: NodeId) -> None:
        super()._bind(connection, node)
        self.bound_at[node] = self._loop.time()

    def disconnected(self, connection: runs.NodeConnection) -> None:
        if connection.node is not None and self.connections.get(connection.node) is connection:
            self.lost_at[connection.node] = self._loop.time()
        super().disconnected(connection)

    def adopt(self, state: RunState) -> None:
        super().adopt(state)
        for node in [node for place in PLACES for node in getattr(state, place)]:
            self.lost_at[node] = self._loop.time()


class StrictFaultLog(FaultLog):
    """A fault of our own is what the simulation looks for, so it ends the simulation."""

    def contain(self, what: str, error: Exception) -> str:
        raise error


class HostedServer(Server):
    """The shipped server, as a simulated process."""

    def __init__(
        self, options: Options, process: Process, host: Callable[..., runs.RunHost]
    ) -> None:
        self.make_run = host
        self._process = process
        super().__init__(options, [cast(Any, _Socket())])
        self.faults = StrictFaultLog()

    def fence(self, error: BaseException) -> None:
        """Its process ends."""
        super().fence(error)
        self._process.kill()


class Watcher(Protocol):
    """The object that is notified of what the server does."""

    def begins(self, running: Iterable[Timer]) -> None:
        """These timers run; those that are new begin now."""

    def happened(self, before: RunState, step: Step, events: tuple[Event, ...]) -> None:
        """A step has become durable: nodes may be notified of it."""


class SimulatedServer:
    """The server of a world: started, killed and started again.

    Args:
        simulation: where it lives.
        disk: where it keeps its state.
        on_start: called with the name of each new server process, before it starts.

    Attributes:
        watcher: set before the first start.
    """

    watcher: Watcher

    def __init__(self, simulation: Simulation, disk: Disk, on_start: Callable[[str], None]) -> None:
        self._simulation = simulation
        self._on_start = on_start
        self.disk = disk
        self._options = Options(resume_seconds=simulation.plan.resume_seconds, insecure=True)
        self.life = 0  # grows when it loses everything
        self.starts = 0
        self.held_up = 0  # how often it was paused, or its clock jumped
        self.jumped_seconds = 0.0
        self.lives: dict[str, int] = {}
        self.process: Process | None = None
        self.host: WatchedHost | None = None
        self._hosts: list[WatchedHost] = []  # including those of replaced servers

    def start(self) -> None:
        """Start it from its disk."""
        self.starts += 1
        if self.process is not None:
            self._simulation.network.power_on(self.process)
        offset = self._simulation.clock.random.random() * 1e6
        process = Process(self._simulation.clock, f"server{self.starts}", offset)
        self._on_start(process.name)
        self.lives[process.name] = self.life
        self.process = process
        loop = cast(Any, process)
        asyncio._set_running_loop(loop)
        try:
            server = HostedServer(self._options, process, self._make_host)
        finally:
            asyncio._set_running_loop(None)
        journal = SimulatedJournal(self.disk, process)
        opened = journal.open(Deadline(0.0))
        writer = SimulatedWriter(
            self._simulation, process, journal, self.disk, partial(self._noted, server)
        )
        Persistence(server, journal, opened, writer)
        self.watcher.begins(timers(server.run(self._simulation.run_id).state))
        finish(server.start())
        self._simulation.note("server", f"has started (life {self.life}, epoch {opened.epoch})")

    def _make_host(self, run_id: str, loop: asyncio.AbstractEventLoop, where: str) -> WatchedHost:
        self.host = host = WatchedHost(run_id, loop, "the server")
        self._hosts = [h for h in self._hosts if cast(Any, h._loop).alive] + [host]
        return host

    def owner(self, state: RunState) -> WatchedHost | None:
        """Return the host that holds this state."""
        return next((host for host in self._hosts if host.state is state), None)

    def _noted(self, server: Server) -> Callable[[], None]:
        """Return the function that reports the steps so far as durable."""
        host = cast(WatchedHost, server.run(self._simulation.run_id))
        steps, host.steps = host.steps, []
        return partial(self._happened, steps)

    def _happened(self, steps: list[Taken]) -> None:
        for before, step, events in steps:
            self.watcher.happened(before, step, events)

    def kill(self, back_seconds: float, power: bool, lost: bool) -> None:
        """Kill it; it starts again after `back_seconds`."""
        process = self.process
        if process is None or not process.alive:
            return
        if power:
            self.disk.lose_power()
            self._simulation.network.vanish(process)
        else:
            process.kill()
        if lost:
            self.disk.wipe()
            self.life += 1
        self.host = None
        self._start_later(back_seconds, process)

    def replace(self, seconds: float) -> None:
        """Stop it until its lease is over and another one has taken over; then continue it."""
        process = self.process
        if process is None or not process.alive:
            return
        process.pause()
        self._start_later(LEASE_SECONDS, process)
        clock = self._simulation.clock
        clock.add(clock.world, LEASE_SECONDS + seconds, False, process.resume)

    def fill_disk(self, seconds: float) -> None:
        """Fill its disk for a while."""
        self.disk.full = True
        clock = self._simulation.clock
        clock.add(clock.world, seconds, False, setattr, self.disk, "full", False)

    def _start_later(self, seconds: float, after: Process) -> None:
        clock = self._simulation.clock
        clock.add(clock.world, seconds, False, self._start_after, after)

    def _start_after(self, former: Process) -> None:
        if self.process is former:  # no other start came first
            self.start()

    @property
    def state(self) -> RunState | None:
        """The run's state, None while the server is down."""
        return None if self.host is None else self.host.state
