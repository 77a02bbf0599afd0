"""A simulated world: nodes, network, faults, and what must have settled after the faults.

`run` lets a plan happen and raises `Violation` for whatever must not be. There are two kinds of
world: with a server (`hosted`) and without one (`serverless`).
"""

import random
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rallypoint.agent.policy import decisions as agent_policy
from rallypoint.agent.policy import events as agent_events
from rallypoint.core.events import Assignment, RoundOpened
from rallypoint.core.state import PLACES, Closed, RunState, Sealed
from rallypoint.rendezvous.coordinator import Order
from rallypoint.testing.simulator.checks import Checker
from rallypoint.testing.simulator.context import ServerLives, Violation
from rallypoint.testing.simulator.faults import Faults
from rallypoint.testing.simulator.node import Agent, AgentWorld, Saves
from rallypoint.testing.simulator.plan import Plan
from rallypoint.testing.simulator.stores import StoreClient, check_histories

LOOK_SECONDS = 1.0
SHORTEST_AFTER_SECONDS = 2.0


class Result:
    """The figures of a simulation."""

    def __init__(self, steps: int, decisions: int, rounds: int, seconds: float) -> None:
        self.steps = steps
        self.decisions = decisions
        self.rounds = rounds
        self.seconds = seconds


class World(AgentWorld):
    """One simulation.

    Args:
        plan: what happens.
        trace: keep a transcript in `lines`.
    """

    host_module: Any  # whose `advance` the checker takes the place of
    server: ServerLives
    checker: Checker

    def __init__(self, plan: Plan, trace: bool = False) -> None:
        super().__init__(plan, trace)
        self.agents: list[Agent] = []  # by machine: the newest agent there
        self.stores: list[StoreClient] = []
        self.faults = Faults(self, self)
        self.saves = Saves(self, self.agents)

    # -- what a kind of world defines ------------------------------------------------------

    @abstractmethod
    def make_agent(self, host: int, number: int) -> Agent:
        """Make an agent of this world's kind."""

    def make_store_clients(self) -> Iterator[StoreClient]:
        """Make the clients of the run's store; without a server there are none."""
        yield from ()

    @abstractmethod
    def state(self) -> RunState | None:
        """Return the run's state, None while nobody has it."""

    @abstractmethod
    def order(self, event: Order) -> None:
        """Send an operator's order to the run."""

    def starts(self, agent: Agent, seat: Assignment) -> None:
        """Check nothing: with a server, `seated` has checked the seat."""

    def ask_to_save(self, agent: Agent, ask: agent_events.AskToSave) -> None:
        self.saves.ask(agent, ask)

    def overlooked(self, agent: Agent, opened: RoundOpened) -> None:
        self.checker.overlooked(agent, opened)

    def stops(self, agent: Agent, event: agent_events.Event, reason: str) -> None:
        self.checker.stops(agent, event, reason)

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

    def start(self) -> None:
        """Start the server, the nodes and the store clients."""
        self.server.start()
        for host in range(self.plan.nodes):
            self.new_agent(host)
        for client in self.make_store_clients():
            self.stores.append(client)
            client.begin()
        self.faults.plan(self.plan.faults)

    def run(self) -> Result:
        """Run the plan; raise Violation if something is wrong."""
        with self.watched():
            self.start()
            self.clock.run_until(self.faults.end)
            self.faults.stop()
            for client in self.stores:
                client.rest()
            self._settle()
        check_histories(self.stores)
        seconds = self.clock.now
        rounds = len(self.truth.rounds)
        return Result(self.clock.steps, self.checker.steps, rounds, seconds)

    def _settle(self) -> None:
        end = self.clock.now + self.plan.bound_seconds
        if self.plan.work_seconds:
            end += self.plan.work_seconds + self.plan.join_seconds
        first = self.clock.now + SHORTEST_AFTER_SECONDS + self.plan.settings.lease_seconds
        self.clock.run_until(min(first, end))
        while self.unsettled(final=False):
            if self.clock.now >= end:
                break
            self.clock.run_until(min(end, self.clock.now + LOOK_SECONDS))
        why = self.unsettled(final=True)
        if why:
            raise Violation("liveness", f"{self.clock.now:.1f} s: {why}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let the host call the checker's `advance`, and make its jitter repeatable."""
        module = self.host_module
        before = module.advance
        module.advance = self.checker.advance
        state = random.getstate()
        random.seed(self.plan.seed)
        try:
            yield
        finally:
            module.advance = before
            random.setstate(state)

    # -- liveness --------------------------------------------------------------------------------

    def live(self) -> list[Agent]:
        """Return the live agents."""
        return [a for a in self.agents if a.process.alive and a.exit is None]

    def unsettled(self, final: bool) -> str:
        """Return what has not settled, "" if everything has.

        A run has settled when all live nodes work in one round, when it is closed and all nodes
        have left, or when it states that it waits for more nodes.
        """
        state, live = self.state(), self.live()
        if any(client.waits for client in self.stores):
            return "a store client waits for an answer"
        if state is None:
            return "the server is down"
        stated = [a for a in self.agents if a.exit is not None and a.exit.code and not a.exit.text]
        if stated:
            return f"{stated[0].name} has exited without a message"
        if isinstance(state.phase, Closed):
            return f"closed, but {live[0].name} still runs" if live else ""
        if self.plan.work_seconds and live and not final:
            return "the workers are running"
        if self.plan.shared and not live:
            return ""  # no node is left to detect losses
        ids = {agent.node_id for agent in live}
        members = [node for place in PLACES for node in getattr(state, place)]
        if dead := [node for node in members if node not in ids]:
            return f"{dead[0]} is dead, and still a member"
        for agent in live:
            if why := self._agent_unsettled(agent, state):
                return f"{agent.node_id} {why}"
        return ""

    def _agent_unsettled(self, agent: Agent, state: RunState) -> str:
        phase = state.phase
        if isinstance(phase, Sealed):
            number = (state.incarnation, phase.record.number)
            seat = agent.working
            may_wait = state.spares | (state.waiting if self.plan.admit == "never" else {})
            if agent.node_id in may_wait and isinstance(agent.state.phase, agent_policy.Joining):
                return ""
            if agent.node_id not in state.participants:
                return f"is neither in round {number} nor a spare: {agent.state.phase}"
            if seat is None or (seat.incarnation, seat.round) != number:
                return f"does not work in round {number}: {agent.state.phase}"
            return ""
        least = state.settings.min_nodes if state.settings else 1
        if len(state.candidates) < least and not state.participants:
            joins = isinstance(agent.state.phase, agent_policy.Joining)
            return "" if joins and agent.node_id in state.candidates else "has not joined"
        return f"is in {type(phase).__name__} {phase.round}, and no event is due"
