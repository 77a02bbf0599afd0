"""A simulated world without a server: real serverless coordinators over one simulated store.

One call of a coordinator reads, decides and writes, so other nodes must act inside that call:
each access to the store and each pause between two attempts runs the rest of the world for a
moment. Nodes thus act on data that another node has already overwritten, as in reality, in one
thread.

In production a node's thread and its agent take turns by a lock. Here the one waits until the
other's call has returned, so that no real lock is ever contended.
"""

from collections.abc import Callable

from rallypoint.agent.policy.view_events import join_failed
from rallypoint.core.advance import Step, timers
from rallypoint.core.events import Assignment
from rallypoint.core.state import Failure, RunState, decode_state
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    RallypointError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous.api import RendezvousTimeout
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.serverless import cas_loop
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend, Token
from rallypoint.rendezvous.serverless.coordinator import ServerlessCoordinator
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.rendezvous.view import View, needs_new_id
from rallypoint.store.memory import MemoryStore
from rallypoint.testing.simulator.checks import ServerlessChecker, what_of
from rallypoint.testing.simulator.context import Simulation, Violation
from rallypoint.testing.simulator.node import Agent
from rallypoint.testing.simulator.plan import Plan
from rallypoint.testing.simulator.virtual_clock import Handle, Process
from rallypoint.testing.simulator.world import World

ACCESS_SECONDS = 0.004
SLICE_SECONDS = 0.02


class Killed(BaseException):
    """The waiting process has died: its call never returns."""


class Cell:
    """One state behind compare-and-set.

    Args:
        simulation: its time and network.
        process: the store itself; it is unreachable while it is paused.
        stored: called with each written state.
    """

    def __init__(
        self, simulation: Simulation, process: Process, stored: Callable[[bytes], None]
    ) -> None:
        self.simulation = simulation
        self.process = process
        self.data: bytes | None = None
        self.version = 0
        self._stored = stored

    def compare_and_set(self, data: bytes, token: Token | None) -> bool:
        """Write the data if the token is current; return whether it was."""
        if (token or 0) != self.version:
            return False
        self.data, self.version = data, self.version + 1
        self._stored(data)
        return True


class NodeBackend(RendezvousBackend):
    """One node's access to the cell.

    Args:
        cell: the shared state.
        process: the node's.
    """

    def __init__(self, cell: Cell, process: Process) -> None:
        self._cell = cell
        self._process = process

    @property
    def name(self) -> str:
        return "simulated"

    def get_state(self) -> tuple[bytes, Token] | None:
        self._reach()
        found = None if self._cell.data is None else (self._cell.data, self._cell.version)
        self._answer()
        return found

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        self._reach()
        done = self._cell.compare_and_set(state, token)
        data, version = self._cell.data, self._cell.version
        self._answer()
        return None if data is None else (data, version, done)

    def _reach(self) -> None:
        self.wait(self._cell.simulation.clock.random.random() * ACCESS_SECONDS)
        if self._is_cut("up"):
            raise RendezvousConnectionError("the store is out of reach")

    def _answer(self) -> None:
        self.wait(self._cell.simulation.clock.random.random() * ACCESS_SECONDS)
        if self._is_cut("down"):
            raise RendezvousConnectionError("the store did not answer")

    def _is_cut(self, way: str) -> bool:
        store, me = self._cell.process, self._process.name
        pair = (me, store.name) if way == "up" else (store.name, me)
        return self._cell.simulation.network.is_blocked(*pair) or store.paused

    def wait(self, seconds: float) -> None:
        """Let the rest of the world run while this node waits."""
        process = self._process
        self._others_for(seconds * process.slowness)
        while process.paused and process.alive:  # a fault stopped it during the wait
            self._others_for(SLICE_SECONDS)
        if not process.alive:
            raise Killed

    def _others_for(self, seconds: float) -> None:
        """Let others run; hold this node's callbacks, even if its own pause ends."""
        self._process.pause()
        self._others_until(self._cell.simulation.clock.now + seconds)
        self._process.resume()

    def _others_until(self, end: float) -> None:
        try:
            self._cell.simulation.clock.run_until(end)
        except RallypointError as error:  # of another node: not an answer to this one
            raise Violation(type(error).__name__, f"unhandled: {error!r}") from error


CALL_SECONDS = 30.0


def settings_of(plan: Plan) -> RendezvousSettings:
    """Return the settings of a plan in the form that users give."""
    s = plan.settings
    tiny = 1e-3  # users cannot ask for a last call of 0 s
    return RendezvousSettings(
        "simulated",
        s.min_nodes,
        s.max_nodes,
        RendezvousTimeout(plan.join_seconds, max(tiny, s.last_call_seconds), 30, s.lease_seconds),
        target_nodes=s.target_nodes,
        max_restarts=s.max_restarts,
        disconnect_grace=s.disconnect_grace_seconds,
        replacement_wait=s.replacement_wait_seconds,
        rejoin_timeout=s.rejoin_timeout_seconds,
        steady_after=s.steady_after_seconds,
        quarantine_failures=s.quarantine_failures,
        quarantine_time=s.quarantine_time_seconds,
        stop_grace=plan.stop_seconds,
    )


class ServerlessNode(Agent):
    """A node that runs the core itself."""

    def __init__(self, world: "ServerlessWorld", host: int, number: int) -> None:
        super().__init__(world, host, number)
        self._asked = settings_of(world.plan)
        backend = NodeBackend(world.cell, self.process)
        self.coordinator = ServerlessCoordinator(
            backend, world.store, self._asked,
            clock=self.process.time, threaded=False, pause=backend.wait,
        )  # fmt: skip
        self.coordinator.watch(self.put)
        self._deadline = Deadline(0.0, self.process.time)
        self._why = ""
        self._waits = False
        self._may_return = False  # as in `hosted`
        self._failures = 0
        self._woken = False
        self._next_tick: Handle | None = None

    def view(self) -> View:
        return self.coordinator.view()

    # -- the coordinator's thread ---------------------------------------------------------------

    def wake(self) -> None:
        """The store has changed."""
        if self.process.alive and not self._woken:
            self._woken = True
            self.process.soon(self.tick)

    def tick(self) -> None:
        """Run one step, and schedule the next."""
        self._woken = False
        if self._next_tick is not None:
            self._next_tick.cancel()
        try:
            pause = self.coordinator.step()
            self._failures = 0
        except (RendezvousConnectionError, RendezvousTimeoutError) as error:
            self._failures += 1
            self.coordinator._loop._disconnected(error)
            pause = min(2.0, 0.05 * 2.0**self._failures)
        except Killed:
            return
        if self.exit is None:
            self._next_tick = self.process.call_later(pause, self.tick)
            self._look()

    # -- joining: the handler's steps, and those of `ServerlessCoordinator.join` ---------------

    def join(self, why: str) -> None:
        self._why, self._waits = why, True
        self._deadline = Deadline(self.world.plan.join_seconds, self.process.time)
        if needs_new_id(self.view()):
            self.new_id()
        self._may_return = True
        self.process.call_later(self.world.plan.join_seconds, self._timed_out, self.asking)
        self._ask()

    def _ask(self) -> None:
        self.world.truth.joined.add(self.node_id)
        core = self._asked.core()
        node = self.describe()
        self._call(
            lambda: self.coordinator.ask_to_join(node, core, self._deadline, self._why, False)
        )
        self.wake()

    def _call(self, call: Callable[[], object]) -> None:
        self.block()
        try:
            call()
        except Killed:
            return
        except RallypointError as error:
            self._failed(error)
        finally:
            self._blocked = False
        self._pump()

    def _look(self) -> None:
        if not self._waits or self._blocked:
            return
        try:
            seat = self.coordinator.outcome()
        except RallypointError as error:
            self._failed(error)
            return
        if seat is not None:
            self._waits = False
            self.put(seat)
        elif self.view().opened is not None:
            self._ask()

    def _failed(self, error: RallypointError) -> None:
        if not self._waits:
            return
        if self._may_return and needs_new_id(self.view()):
            self.new_id()
            self._may_return = False
            self.process.soon(self._ask)
            return
        self._waits = False
        self.put(join_failed(error, self.view().closed))

    def _timed_out(self, asking: int) -> None:
        if asking == self.asking and self._waits and not self._blocked:
            node = self.describe()
            self.world.truth.left.add(self.node_id)

            def give_up() -> None:
                seat = self.coordinator._give_up(node, self._deadline)
                self._waits = False
                self.world.truth.left.discard(self.node_id)
                self.put(seat)

            self._call(give_up)

    # -- other requests --------------------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        limit = Deadline(CALL_SECONDS, self.process.time)
        self._request(lambda: self.coordinator.fail(failure, limit))

    def finish(self) -> None:
        limit = Deadline(CALL_SECONDS, self.process.time)
        seat = self.view().assignment
        if seat is not None:
            self.world.truth.done.add((self.node_id, seat.round))
        self._request(lambda: self.coordinator.finish(limit))

    def leave(self, why: str) -> None:
        self.world.truth.left.add(self.node_id)
        limit = Deadline(5.0, self.process.time)
        self._request(lambda: self.coordinator.leave(why, limit))

    def _request(self, call: Callable[[], object]) -> None:
        self.block()
        self.process.soon(self._do_request, call)

    def _do_request(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Killed:
            return
        except RallypointError as error:
            self.world.note(self.name, f"request failed: {error}")
        self.unblock()

    def gone(self) -> None:
        self.process.kill()


class StoreHost:
    """The store in the server's place: faults of the server become outages of the store."""

    def __init__(self, simulation: Simulation) -> None:
        self._clock = simulation.clock
        self.life = 0
        self.starts = 1
        self.held_up = 0
        self.jumped_seconds = 0.0
        self.process = Process(simulation.clock, "store", 0.0)

    def start(self) -> None:
        """Do nothing: the store always runs."""

    def kill(self, back_seconds: float, power: bool, lost: bool) -> None:
        """Make it unreachable for a while; it keeps acknowledged writes."""
        self.replace(back_seconds)

    def replace(self, seconds: float) -> None:
        """Make it unreachable for a while."""
        self.process.pause()
        clock = self._clock
        clock.add(clock.world, seconds, False, self.process.resume)

    def fill_disk(self, seconds: float) -> None:
        """Make it unreachable for a while."""
        self.replace(seconds)


class ServerlessWorld(World):
    """One simulation without a server."""

    host_module = cas_loop
    server: StoreHost
    checker: ServerlessChecker

    def __init__(self, plan: Plan, trace: bool = False) -> None:
        super().__init__(plan, trace)
        self.store = MemoryStore()
        self.server = StoreHost(self)
        self.cell = Cell(self, self.server.process, self._stored)
        self.checker = ServerlessChecker(self, self.server)
        self.seen = RunState(self.run_id)

    def make_agent(self, host: int, number: int) -> Agent:
        return ServerlessNode(self, host, number)

    def _stored(self, data: bytes) -> None:
        state, before = decode_state(data), self.seen
        self.seen = state
        self.checker.stored(before, Step(state, (), timers(state), ()))
        for agent in self.agents:
            if isinstance(agent, ServerlessNode):
                agent.wake()

    def starts(self, agent: Agent, seat: Assignment) -> None:
        """A node starts its workers: all nodes of a round must know the same facts of it."""
        self.checker.seated(0, agent.node_id, seat)

    def state(self) -> RunState | None:
        return self.seen

    def order(self, event: Order) -> None:
        self.truth.orders.add(what_of(event))
        process = Process(self.clock, f"user{len(self.truth.orders)}", 0.0)
        user = ServerlessCoordinator(
            NodeBackend(self.cell, process), self.store, settings_of(self.plan),
            clock=process.time, threaded=False, pause=NodeBackend(self.cell, process).wait,
        )  # fmt: skip

        def ask() -> None:
            try:
                user.order(event, Deadline(CALL_SECONDS, process.time))
            except (RendezvousConnectionError, RendezvousTimeoutError) as error:
                self.note(process.name, f"request failed: {error}")

        process.soon(ask)
