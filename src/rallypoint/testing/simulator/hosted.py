"""A simulated world with a server, and its nodes."""

from collections.abc import Callable, Iterator

from rallypoint.agent.policy.view_events import join_failed
from rallypoint.core.events import Assignment, Join
from rallypoint.core.state import Failure, RunState
from rallypoint.errors import RendezvousTimeoutError
from rallypoint.rendezvous.client.session import Outcome, Request, join_error
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.view import View, needs_new_id
from rallypoint.server import runs
from rallypoint.testing.simulator.checks import HostedChecker, what_of
from rallypoint.testing.simulator.client import NodeClient
from rallypoint.testing.simulator.network import End
from rallypoint.testing.simulator.node import CLOSE_SECONDS, LEAVE_SECONDS, Agent, AgentWorld
from rallypoint.testing.simulator.plan import Plan
from rallypoint.testing.simulator.server import Disk, SimulatedServer
from rallypoint.testing.simulator.stores import StoreClient
from rallypoint.testing.simulator.virtual_clock import Process
from rallypoint.testing.simulator.world import World

ORDER_SECONDS = 60.0


class HostedNode(Agent):
    """A node whose coordinator is the server.

    Args:
        world: where it lives.
        server: of the world.
        seated: called with each new seat.
        host: index of its machine.
        number: how many agents this machine has had before.
    """

    def __init__(
        self,
        world: AgentWorld,
        server: SimulatedServer,
        seated: Callable[[NodeClient, Assignment], None],
        host: int,
        number: int,
    ) -> None:
        super().__init__(world, host, number)
        self.client = NodeClient(world, server, self.process, self._changed, seated)
        self.session = self.client.session
        self._last_put = View()
        self._join: Join | None = None  # while it is under way
        self._may_return = False  # under another id, if the join shows that this node was lost
        self._why = ""

    def begin(self) -> None:
        """Start the agent; it connects first."""
        self.client.connect()
        super().begin()

    def view(self) -> View:
        return self.session.view

    def _changed(self, view: View) -> None:
        if view != self._last_put:
            self._last_put = view
            self.put(view)
        join = self._join
        if join is not None and self.session.outcome(join) is not None:
            self.process.soon(self._settled, join)

    def join(self, why: str) -> None:
        self._why = why
        if needs_new_id(self.view()):
            self.new_id()
        self._may_return = True
        self._ask()
        self.process.call_later(self.world.plan.join_seconds, self._timed_out, self.asking)

    def _ask(self) -> None:
        self.world.truth.joined.add(self.node_id)
        frames: list[bytes] = []

        def begin() -> None:
            settings = self.world.plan.settings
            self._join, frame = self.session.join(self.describe(), settings, self._why)
            frames.append(frame)

        self.client.update(begin)
        self.client.write(frames[0])

    def _settled(self, join: Join) -> None:
        outcome = self.session.outcome(join)
        if self._join is not join or outcome is None:
            return
        self._join = None
        if isinstance(outcome, Assignment):
            self.put(outcome)
            return
        self.session.end_join(join)
        if self._may_return and needs_new_id(self.view()):
            self._may_return = False
            self.new_id()
            self._ask()
            return
        self._failed(outcome)

    def _failed(self, outcome: Outcome) -> None:
        error = join_error(outcome, self.world.run_id, "the server")
        self.put(join_failed(error, self.view().closed))

    def _timed_out(self, asking: int) -> None:
        if asking != self.asking or self._join is None:
            return
        self._join = None
        text = f"no round was complete within {self.world.plan.join_seconds:g} s"
        failed = join_failed(RendezvousTimeoutError(text), None)
        self._say_leave("its join timed out", 2.0, lambda _done: self.put(failed))

    # -- other requests -----------------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        self._call(lambda: self.session.report_failure(failure))

    def finish(self) -> None:
        join, seat = self.session.joined, self.view().assignment
        if join is not None and seat is not None:
            self.world.truth.done.add((join.node.id, seat.round))
        self._call(lambda: self.session.finish(""))

    def _call(self, make: Callable[[], Request]) -> None:
        if self.session.joined is not None and self.view().assignment is not None:
            self.block()
            self.client.call(make(), CLOSE_SECONDS, self.unblock)

    def leave(self, why: str) -> None:
        self.block()
        self._say_leave(why, LEAVE_SECONDS, self._left)

    def _left(self, done: bool) -> None:
        self.client.stop()
        self.unblock(done)

    def _say_leave(self, why: str, limit: float, then: Callable[[bool], object]) -> None:
        join, requests = self.session.joined, list[Request | None]()
        self.client.update(lambda: requests.append(self.session.leave(why)))
        request = requests[0]
        if request is None or join is None:
            self.process.soon(then, False)
            return
        self.world.truth.left.add(join.node.id)
        self.client.call(request, limit, then)

    def gone(self) -> None:
        self.process.kill()


class HostedWorld(World):
    """One simulation with a server.

    Args:
        plan: what happens.
        trace: keep a transcript in `lines`.
        disk: the server's.
    """

    host_module = runs
    server: SimulatedServer
    checker: HostedChecker

    def __init__(self, plan: Plan, trace: bool = False, disk: Disk | None = None) -> None:
        super().__init__(plan, trace)
        self.server = SimulatedServer(self, disk or Disk(), self.faults.server_started)
        self.checker = self.server.watcher = HostedChecker(self, self.server)
        self.network.on_arrival = self._arrived

    def make_agent(self, host: int, number: int) -> Agent:
        return HostedNode(self, self.server, self._seated, host, number)

    def make_store_clients(self) -> Iterator[StoreClient]:
        for number in range(self.plan.stores):
            yield StoreClient(self, self.server, number)

    def _seated(self, client: NodeClient, seat: Assignment) -> None:
        join = client.session.joined
        if client.end is not None and join is not None:
            life = self.server.lives[client.end.peer.process.name]
            self.checker.seated(life, join.node.id, seat)

    def _arrived(self, end: End) -> None:
        """Bytes have arrived somewhere; those of a node's session are a heartbeat of it."""
        node, server = getattr(end.owner, "node", None), self.server.process
        if node is not None and server is not None and end.process is server:
            self.truth.hear(node, self.clock.now, server.paused_seconds())

    def state(self) -> RunState | None:
        return self.server.state

    def order(self, event: Order) -> None:
        self.truth.orders.add(what_of(event))
        process = Process(self.clock, f"user{len(self.truth.orders)}", 0.0)
        user = NodeClient(self, self.server, process, lambda _view: None, self._seated)
        user.connect()
        user.call(user.session.ask(event), ORDER_SECONDS, lambda _done: user.stop())
