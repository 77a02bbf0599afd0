"""A simulated world with a server: nodes, network, faults, and what must have settled after.

`run(plan)` makes one, lets it happen, and raises `Violation` for whatever must not be.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rallypoint.agent.policy import decisions as agent_policy
from rallypoint.agent.policy import events as agent_events
from rallypoint.core.advance import Step
from rallypoint.core.events import Assignment
from rallypoint.core.state import PLACES, Closed, Sealed, State
from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.coordinator import Order
from rallypoint.server import runs
from rallypoint.testing.simulator.checks import Checker, Truth, Violation, what_of
from rallypoint.testing.simulator.disk import Disk
from rallypoint.testing.simulator.faults import Faults
from rallypoint.testing.simulator.hosted import HostedNode
from rallypoint.testing.simulator.network import End, Network
from rallypoint.testing.simulator.node import Agent
from rallypoint.testing.simulator.plan import Plan
from rallypoint.testing.simulator.saving import Saves
from rallypoint.testing.simulator.server import SimulatedServer
from rallypoint.testing.simulator.session import NodeSession
from rallypoint.testing.simulator.stores import StoreClient, check_histories
from rallypoint.testing.simulator.virtual_clock import Clockwork, Process

LOOK_SECONDS = 1.0
SHORTEST_AFTER_SECONDS = 2.0
LINES_KEPT = 4000


class Result:
    """What a simulation cost and saw."""

    def __init__(self, steps: int, decisions: int, rounds: int, seconds: float) -> None:
        self.steps, self.decisions, self.rounds, self.seconds = steps, decisions, rounds, seconds


class World:
    """Everything of one simulation.

    Args:
        plan: what happens.
        trace: keep what happened as lines for people.
        disk: the server's.
    """

    hosted_by: Any = runs  # the module whose `advance` the checker looks over

    def __init__(self, plan: Plan, trace: bool = False, disk: Disk | None = None) -> None:
        self.plan = plan
        self.run_id = "simulated"
        self.lines: list[str] | None = [] if trace else None
        self.clockwork = Clockwork(plan.seed)
        self.network = Network(self.clockwork, plan.latency)
        self.truth = Truth()
        self.server = SimulatedServer(self, disk or Disk())
        self.checker = Checker(self)
        self.agents: list[Agent] = []  # by machine: the newest agent there
        self.stores: list[StoreClient] = []
        self.faults = Faults(self)
        self.saves = Saves(self)
        self._ports = 20_000

    # -- for its parts -------------------------------------------------------------------------

    def note(self, who: str, text: str) -> None:
        """Write a line of the transcript."""
        if self.lines is not None and len(self.lines) < LINES_KEPT:
            self.lines.append(f"{self.clockwork.now:9.3f}  {who:<9}  {text}")

    def next_port(self) -> int:
        """Return a port that nobody has proposed yet."""
        self._ports += 1
        return self._ports

    def told(self, session: NodeSession, message: wire.Told) -> None:
        """A node was told something."""
        end = session.end
        if end is not None and session.join is not None:
            life = self.server.lives[end.peer.process.name]
            self.checker.told(life, session.join.node.id, message)

    def stops(self, agent: Agent, event: agent_events.Event, reason: str) -> None:
        """A node ends workers that were well."""
        self.checker.stops(agent, event, reason)

    def starts(self, agent: Agent, seat: Assignment) -> None:
        """A node starts its workers."""

    def heard(self, end: End) -> None:
        """Bytes have come somewhere; what a node's session says is a sign of its life."""
        node, server = getattr(end.owner, "node", None), self.server.process
        if node is not None and server is not None and end.process is server:
            self.truth.hear(node, self.clockwork.now, server.paused_seconds())

    def inherit_blocks(self, server: str) -> None:
        """A server that is started again is behind the same network faults."""
        self.faults.server_started(server)

    # -- running -------------------------------------------------------------------------------

    def new_agent(self, host: int, number: int = 0) -> Agent:
        """Start an agent on a machine."""
        agent = self.make_agent(host, number)
        if host < len(self.agents):
            self.agents[host] = agent
        else:
            self.agents.append(agent)
        agent.begin()
        return agent

    def make_agent(self, host: int, number: int) -> Agent:
        """Make an agent of this world's kind."""
        return HostedNode(self, host, number)

    def start(self) -> None:
        """Start the server, the nodes and the store clients."""
        self.server.start()
        for host in range(self.plan.nodes):
            self.new_agent(host)
        for number in range(self.plan.stores):
            client = StoreClient(self, number)
            self.stores.append(client)
            client.begin()
        self.faults.plan(self.plan.faults)

    def run(self) -> Result:
        """Let it happen; Violation if something is wrong."""
        with self.watched():
            self.start()
            self.clockwork.run_until(self.faults.end)
            self.faults.stop()
            for client in self.stores:
                client.rest()
            self._settle()
        check_histories(self.stores)
        seconds = self.clockwork.now
        rounds = len(self.truth.rounds)
        return Result(self.clockwork.steps, self.checker.steps, rounds, seconds)

    def _settle(self) -> None:
        end = self.clockwork.now + self.plan.bound_seconds
        if self.plan.work_seconds:
            end += self.plan.work_seconds + self.plan.join_seconds
        first = self.clockwork.now + SHORTEST_AFTER_SECONDS + self.plan.settings.lease_seconds
        self.clockwork.run_until(min(first, end))
        while self.unsettled(final=False):
            if self.clockwork.now >= end:
                break
            self.clockwork.run_until(min(end, self.clockwork.now + LOOK_SECONDS))
        why = self.unsettled(final=True)
        if why:
            raise Violation("liveness", f"{self.clockwork.now:.1f} s: {why}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let the host call the checker's `advance`, and note what reaches the server."""
        module = self.hosted_by
        before = module.advance
        module.advance = self.checker.advance
        self.network.on_arrival = self.heard
        dice = random.getstate()
        random.seed(self.plan.seed)  # the jitter of what is simulated
        try:
            yield
        finally:
            module.advance = before
            random.setstate(dice)

    # -- liveness --------------------------------------------------------------------------------

    def live(self) -> list[Agent]:
        """Return the agents that take part."""
        return [a for a in self.agents if a.process.alive and a.exit is None]

    def unsettled(self, final: bool) -> str:
        """Return what is still to come, "" if everything has settled.

        A run has settled when a round is at work with everyone who is there, when it is
        closed and everyone has gone, or when it states that it waits for more nodes.
        """
        state, live = self.state(), self.live()
        if any(client.waits for client in self.stores):
            return "a store client still waits for an answer"
        if state is None:
            return "the server is down"
        stated = [a for a in self.agents if a.exit is not None and a.exit.code and not a.exit.text]
        if stated:
            return f"{stated[0].name} has gone without a word"
        if isinstance(state.phase, Closed):
            return f"closed, but {live[0].name} is still there" if live else ""
        if self.plan.work_seconds and live and not final:
            return "they are at work"
        if self.plan.shared and not live:
            return ""  # nobody is left who could judge
        ids = {agent.node_id for agent in live}
        members = [node for place in PLACES for node in getattr(state, place)]
        if dead := [node for node in members if node not in ids]:
            return f"{dead[0]} is gone, and still a member"
        for agent in live:
            if why := self._agent_unsettled(agent, state):
                return f"{agent.node_id} {why}"
        return ""

    def _agent_unsettled(self, agent: Agent, state: State) -> str:
        phase = state.phase
        if isinstance(phase, Sealed):
            number = (state.incarnation, phase.record.number)
            seat = agent.working
            may_wait = state.spares | (state.waiting if self.plan.admit == "never" else {})
            if agent.node_id in may_wait and isinstance(agent.state.phase, agent_policy.Joining):
                return ""
            if agent.node_id not in state.participants:
                return f"is not in round {number}, and no spare: {agent.state.phase}"
            if seat is None or (seat.incarnation, seat.round) != number:
                return f"does not work in round {number}: {agent.state.phase}"
            return ""
        least = state.settings.min_nodes if state.settings else 1
        if len(state.candidates) < least and not state.participants:
            joins = isinstance(agent.state.phase, agent_policy.Joining)
            return "" if joins and agent.node_id in state.candidates else "has not joined"
        return f"is in {type(phase).__name__} {phase.round}, and nothing moves it"

    def state(self) -> State | None:
        """Return the run's state."""
        return self.server.state

    def order(self, event: Order) -> None:
        """Somebody who takes no part has something done to the run."""
        self.truth.orders.add(what_of(event))
        name = f"user{len(self.truth.orders)}"
        user = NodeSession(self, Process(self.clockwork, name, 0.0), 9.0, lambda _view: None)
        user.connect()
        done: Callable[[bool], None] = lambda _done: user.stop()  # noqa: E731
        user.ask(lambda i: wire.Ask(i, event), 60.0, done)


def run(plan: Plan, trace: bool = False) -> Result:
    """Run a plan in the world that it is for."""
    return make_world(plan, trace).run()


def make_world(plan: Plan, trace: bool = False) -> World:
    """Return the world of a plan, not started yet."""
    if plan.shared:
        from rallypoint.testing.simulator.shared import SharedWorld

        return SharedWorld(plan, trace)
    return World(plan, trace)


__all__ = ["LOOK_SECONDS", "Result", "Step", "World", "make_world", "p", "run"]
