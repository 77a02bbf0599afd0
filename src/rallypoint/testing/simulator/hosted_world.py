"""A simulated world with a server."""

from collections.abc import Callable, Iterator

from rallypoint.core.state import State
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.coordinator import Order
from rallypoint.server import runs
from rallypoint.testing.simulator.checks import HostedChecker, what_of
from rallypoint.testing.simulator.disk import Disk
from rallypoint.testing.simulator.hosted import HostedNode
from rallypoint.testing.simulator.network import End
from rallypoint.testing.simulator.node import Agent
from rallypoint.testing.simulator.plan import Plan
from rallypoint.testing.simulator.server import SimulatedServer
from rallypoint.testing.simulator.session import NodeSession
from rallypoint.testing.simulator.stores import StoreClient
from rallypoint.testing.simulator.virtual_clock import Process
from rallypoint.testing.simulator.world import World


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
        self.checker = self.server.watcher = self.make_checker()
        self.network.on_arrival = self.heard

    def make_checker(self) -> HostedChecker:
        """Make the checker of this world."""
        return HostedChecker(self, self.server)

    def make_agent(self, host: int, number: int) -> Agent:
        return HostedNode(self, host, number)

    def make_store_clients(self) -> Iterator[StoreClient]:
        for number in range(self.plan.stores):
            yield StoreClient(self, number)

    def told(self, session: NodeSession, message: wire.Told) -> None:
        """A node was sent a message."""
        end = session.end
        if end is not None and session.join is not None:
            life = self.server.lives[end.peer.process.name]
            self.checker.told(life, session.join.node.id, message)

    def heard(self, end: End) -> None:
        """Bytes have arrived somewhere; those of a node's session are a heartbeat of it."""
        node, server = getattr(end.owner, "node", None), self.server.process
        if node is not None and server is not None and end.process is server:
            self.truth.hear(node, self.clockwork.now, server.paused_seconds())

    def state(self) -> State | None:
        return self.server.state

    def order(self, event: Order) -> None:
        self.truth.orders.add(what_of(event))
        name = f"user{len(self.truth.orders)}"
        user = NodeSession(self, Process(self.clockwork, name, 0.0), 9.0, lambda _view: None)
        user.connect()
        done: Callable[[bool], None] = lambda _done: user.stop()  # noqa: E731
        user.ask(lambda i: wire.Ask(i, event), 60.0, done)
