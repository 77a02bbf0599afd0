"""What must hold in a simulated world, checked after each step of the core and each message.

The simulator knows the truth: which node left, whose worker failed, when a node's bytes last
reached the server. Every event that a host passes to the core, and every reason for which a
node stops its workers, must have its cause there.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from rallypoint.agent.policy import decisions
from rallypoint.agent.policy import events as agent_events
from rallypoint.core.advance import Step, advance, timer_seconds, timers
from rallypoint.core.events import (
    Admit,
    Assignment,
    Cause,
    Close,
    Event,
    Exclude,
    ExclusionOver,
    Fail,
    Finish,
    Join,
    LastCallOver,
    Leave,
    Lost,
    Notify,
    RejoinOver,
    ReplacementWaitOver,
    RoundOpened,
    SteadyOver,
    Timer,
)
from rallypoint.core.explain import describe
from rallypoint.core.invariants import check_state, check_step
from rallypoint.core.state import (
    PLACES,
    Closed,
    NodeId,
    RunState,
    Sealed,
    round_number,
)
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.view import NodeMessage, Seated
from rallypoint.testing.simulator.context import ServerLives, Simulation, Violation
from rallypoint.testing.simulator.node import Agent
from rallypoint.testing.simulator.server import SimulatedServer

TIMERS = (LastCallOver, RejoinOver, ReplacementWaitOver, SteadyOver, ExclusionOver)
HELD_UP_SECONDS = 1.0  # each pause may go unnoticed by the server for so long
ROUNDING_SECONDS = 0.01
LEEWAY_SECONDS = 0.5


class Checker(ABC):
    """Checks the steps, messages and decisions of one world.

    Args:
        simulation: what is checked.
        server: of the world, or the store in its place.
    """

    def __init__(self, simulation: Simulation, server: ServerLives) -> None:
        self.simulation = simulation
        self.server = server
        self.truth = simulation.truth
        self.steps = 0

    @abstractmethod
    def advance(self, state: RunState, *events: Event) -> Step:
        """Take the place of the core's `advance`, and check the step."""

    def _sealing(self, before: RunState, step: Step) -> None:
        """G1: the new round includes every live node of the round before that has not left."""
        after = step.state
        if not isinstance(after.phase, Sealed):
            return
        life, record = self.server.life, after.phase.record
        key = (life, after.incarnation, record.number)
        first = self.truth.rounds.setdefault(key, record)
        if first != record:
            raise Violation("two worlds", f"round {record.number} was sealed twice: {first}")
        former = self.truth.rounds.get((life, after.incarnation, record.number - 1))
        seated = {seat.node.id for seat in record.seats}
        put_out = {node for out in after.exclusions for node in out.nodes}
        for seat in former.seats if former is not None else ():
            node = seat.node.id
            gone = node in after.fenced or node in self.truth.left or node in self.truth.fenced
            gone = gone or node in put_out
            if node not in seated and node not in after.finished and not gone:
                raise Violation(
                    "G1", f"round {record.number} was sealed without {node}, which is alive"
                )

    # -- messages to nodes, and what nodes do -----------------------------------------------

    def told(self, life: int, node: NodeId, message: NodeMessage) -> None:
        """A message reached a node."""
        if isinstance(message, Seated):
            self.seated(life, node, message.seat)

    def seated(self, life: int, node: NodeId, seat: Assignment) -> None:
        """A node has a seat: a round's members must receive equal facts and distinct ranks."""
        key = (life, seat.incarnation, seat.round)
        common = (
            seat.size, seat.world_size, seat.master_addr, seat.master_port, seat.restarts,
            seat.reason,
        )  # fmt: skip
        first = self.truth.common.setdefault(key, common)
        if first != common:
            raise Violation("agreement", f"round {key}: nodes received {first} and {common}")
        holders = self.truth.seats.setdefault(key, {})
        holder = holders.setdefault(seat.rank, node)
        if holder != node:
            raise Violation("agreement", f"rank {seat.rank} of {key}: {holder} and {node}")
        if any(n == node and rank != seat.rank for rank, n in holders.items()):
            raise Violation("agreement", f"{node} has two ranks in {key}")
        if not 0 <= seat.rank < seat.size:
            raise Violation("agreement", f"rank {seat.rank} of {seat.size}")

    def stops(self, agent: Agent, event: agent_events.Event, reason: str) -> None:
        """A node stops healthy workers: it must give a reason, and the reason must be true."""
        truth = self.truth
        match event:
            case agent_events.RoundOpened(incarnation=i, round=n, why=why):
                fine = bool(why) and ((i, n, why) in truth.openings or self._reopened(i, n))
            case agent_events.Fenced():
                fine = agent.node_id in truth.fenced or self.server.life > 0
            case agent_events.RunClosed(incarnation=i, why=why):
                fine = (i, why) in truth.closings
            case agent_events.Signal():
                fine = True
            case agent_events.WorkerExited(round=n, exit_code=code):
                fine = code != 0 and (agent.node_id, n) in truth.failed
            case agent_events.ChangeTimerElapsed():
                fine = True
            case agent_events.WorkersSaved(round=n):
                fine = self._saved(agent, n)
            case _:
                fine = False
        if not fine or not reason:
            raise Violation("killed", f"{agent.node_id} stopped its workers because of {event!r}")

    def overlooked(self, agent: Agent, opened: RoundOpened) -> None:
        """A node that learnt some time ago that its round is over must not work in it."""
        phase = agent.state.phase
        if not isinstance(phase, decisions.Working) or agent.view().opened != opened:
            return
        seat = phase.assignment
        if (seat.incarnation, seat.round) < (opened.incarnation, opened.round):
            raise Violation("overlooked", f"{agent.node_id} still works in round {seat.round}")

    def _saved(self, agent: Agent, number: int) -> bool:
        phase = agent.state.phase  # as it was before the event
        if not isinstance(phase, decisions.Working):
            return False
        return (phase.assignment.incarnation, number) in self.truth.saved

    def _reopened(self, incarnation: int, number: int) -> bool:
        return any(o[:2] == (incarnation, number) for o in self.truth.openings)


class HostedChecker(Checker):
    """Checks what a server does; a step counts once it is durable.

    Args:
        simulation: what is checked.
        server: of the world.
    """

    server: SimulatedServer

    def __init__(self, simulation: Simulation, server: SimulatedServer) -> None:
        super().__init__(simulation, server)

    def advance(self, state: RunState, *events: Event) -> Step:
        """Be `advance` for a server's host; what follows from it counts once it is durable."""
        step = advance_now(state, *events)
        self.steps += 1
        check_core(state, step)
        server = self.server
        host = server.owner(state)
        for event in events:
            self._cause(event, state)
        if host is None or host is server.host:  # not a replaced server
            for event in events:
                if isinstance(event, Lost):
                    self._loss(event, state)
            if any(isinstance(event, TIMERS) for event in events):
                self._late_timers(state, events)
            self.begins(step.timers)
        if host is not None:
            host.steps.append((state, step, events))
        if self.simulation.lines is not None:
            self.simulation.note("server", f"{', '.join(map(event_line, events))}: {step.reason}")
        return step

    def happened(self, before: RunState, step: Step, events: tuple[Event, ...]) -> None:
        """A step has become durable: nodes may be notified of it."""
        self._closing(before, step.state, events)
        self._sealing(before, step)
        check_budget(before, step.state, events)
        self._remember(step)

    def _cause(self, event: Event, state: RunState) -> None:
        truth = self.truth
        match event:
            case Join(node=node):
                fine = node.id in truth.joined
            case Leave(node=node):
                fine = node in truth.left
            case Finish(node=node, round=number):
                fine = (node, number) in truth.done
            case Fail(node=node, round=number):
                fine = (node, number) in truth.failed
            case Close() | Exclude() | Admit() | Notify():
                fine = what_of(event) in truth.orders
            case _:
                fine = True
        if not fine:
            raise Violation("invented", f"nothing caused {event}")

    def _loss(self, lost: Lost, state: RunState) -> None:
        server, settings = self.server, state.settings
        if server.host is None or server.process is None or settings is None:
            return
        leeway = ROUNDING_SECONDS + HELD_UP_SECONDS * server.held_up
        now, paused = self.simulation.clock.now, server.process.paused_seconds()
        if lost.cause is Cause.LEASE:
            heard = self.truth.heard(lost.node, now)
            silent = now - heard[0] - (paused - heard[1]) if heard else now
            if silent < settings.lease_seconds - leeway:
                text = f"{lost.node} was lost after {silent:.2f} s of silence"
                raise Violation("false loss", text)
        elif lost.cause is Cause.DISCONNECT:
            here = server.process.time()
            gone = here - server.host.lost_at.get(lost.node, here)
            bound = server.host.bound_at.get(lost.node, -1.0)
            back = bound > server.host.lost_at.get(lost.node, here) and bound < here
            if back:
                raise Violation("false loss", f"{lost.node} is connected and was lost")
            if gone < min(settings.disconnect_grace_seconds, settings.lease_seconds) - leeway:
                text = f"{lost.node} was lost {gone:.2f} s after its disconnect"
                raise Violation("false loss", text)

    def _late_timers(self, state: RunState, events: Iterable[Event]) -> None:
        for event in events:
            step = advance_now(state, event)
            if isinstance(event, TIMERS):
                if event not in timers(state) and step.state != state:
                    raise Violation("late timer", f"{event} has changed something")
                self._early(event, state)
            state = step.state

    def _early(self, timer: Timer, state: RunState) -> None:
        process = self.server.process
        began = self.truth.timers.get((self.server.starts, timer))
        if began is None or process is None:
            return
        ran = self.simulation.clock.now - began[0] - (process.paused_seconds() - began[1])
        wanted = timer_seconds(state, timer)
        server = self.server
        leeway = ROUNDING_SECONDS + HELD_UP_SECONDS * server.held_up + server.jumped_seconds
        if ran < wanted - leeway and state.settings is not None:
            raise Violation("early timer", f"{timer} ended after {ran:.2f} s of {wanted:g}")

    def _closing(self, before: RunState, after: RunState, events: tuple[Event, ...]) -> None:
        if not isinstance(after.phase, Closed) or isinstance(before.phase, Closed):
            return
        most = before.settings.max_restarts if before.settings else None
        spent = most is not None and before.restarts > most  # B1: decided once all nodes are back
        if not spent and not any(isinstance(event, Close | Fail | Finish) for event in events):
            raise Violation("L3", f"the run was closed by {events}")
        life = self.server.life
        number = after.phase.round
        record = self.truth.rounds.get((life, after.incarnation, number))
        if after.phase.finished and record is not None:
            for seat in record.seats:
                if (seat.node.id, number) not in self.truth.done:
                    raise Violation("F1", f"{seat.node.id} has not finished round {number}")

    def _remember(self, step: Step) -> None:
        state, truth = step.state, self.truth
        truth.fenced.update(state.fenced)
        truth.fenced.update(node for out in state.exclusions for node in out.nodes)
        for send in step.messages:
            if isinstance(send.message, RoundOpened):
                m = send.message
                truth.openings.add((m.incarnation, m.round, m.why))
        if isinstance(state.phase, Closed):
            truth.closings.add((state.incarnation, state.phase.why))

    def begins(self, running: Iterable[Timer]) -> None:
        """Timers run in the server; new ones begin now."""
        process = self.server.process
        for timer in running:
            key = (self.server.starts, timer)
            if process is not None and key not in self.truth.timers:
                self.truth.timers[key] = (self.simulation.clock.now, process.paused_seconds())


class ServerlessChecker(Checker):
    """Checks the states that nodes compute and store, and what nodes then do."""

    def __init__(self, simulation: Simulation, server: ServerLives) -> None:
        super().__init__(simulation, server)
        self._signs: dict[NodeId, tuple[int, float]] = {}

    def advance(self, state: RunState, *events: Event) -> Step:
        """Take the place of `advance`; a step counts once its write has won."""
        step = advance_now(state, *events)
        self.steps += 1
        check_core(state, step)
        return step

    def stored(self, before: RunState, step: Step) -> None:
        """A state was written."""
        after = step.state
        check_core(before, step)
        self._losses(before, after)
        self._sealing(before, step)
        self.truth.fenced.update(after.fenced)
        self.truth.fenced.update(node for out in after.exclusions for node in out.nodes)
        self.truth.fenced.update(
            node for place in PLACES for node in getattr(before, place) if not _is_in(after, node)
        )
        if not isinstance(after.phase, Closed):
            self.truth.openings.add((after.incarnation, round_number(after.phase), after.opening))
        else:
            self.truth.closings.add((after.incarnation, after.phase.why))
        for place in PLACES:
            for node, member in getattr(after, place).items():
                if self._signs.get(node, (-1, 0.0))[0] != member.beats:
                    self._signs[node] = (member.beats, self.simulation.clock.now)
        self.simulation.note("store", describe(after))

    def _losses(self, before: RunState, after: RunState) -> None:
        settings, now = after.settings, self.simulation.clock.now
        for node, why in after.fenced.items():
            if node in before.fenced or Cause.LEASE.value not in why or settings is None:
                continue
            silent = now - self._signs.get(node, (0, 0.0))[1]
            jumped = sum(f.seconds for f in self.simulation.plan.faults if "jump" in f.kind.value)
            if silent < settings.lease_seconds - LEEWAY_SECONDS - jumped:
                raise Violation("false loss", f"{node} was lost after {silent:.2f} s of silence")


def _is_in(state: RunState, node: NodeId) -> bool:
    return any(node in getattr(state, place) for place in PLACES)


def what_of(order: Order) -> tuple[str, str]:
    """Return the kind of an order, and its target."""
    whom = ""
    if isinstance(order, Notify):
        whom = order.node
    elif not isinstance(order, Close):
        whom = order.name
    return type(order).__name__, whom


def advance_now(state: RunState, *events: Event) -> Step:
    """Call the core; tests plant faults in it, so it is looked up at each call."""
    return advance(state, *events)


def check_budget(before: RunState, after: RunState, events: tuple[Event, ...]) -> None:
    """B1: failing workers consume the restart budget, and no round begins beyond it.

    The budget can grow again: failures that a lost node caused are not counted.
    """
    most = after.settings.max_restarts if after.settings else None
    if most is not None and isinstance(after.phase, Sealed) and after.restarts > most:
        raise Violation("B1", f"{after.restarts} restarts, at most {most}")
    if after.incarnation == before.incarnation:
        failed = sum(isinstance(event, Fail) for event in events)
        if after.restarts - before.restarts > failed:
            raise Violation("B1", f"restarts went from {before.restarts} to {after.restarts}")


def event_line(event: Event) -> str:
    """Return an event as a few words."""
    name = type(event).__name__
    if isinstance(event, Join):
        return f"{name} {event.node.id} after {event.after}"
    who = getattr(event, "node", None)
    return f"{name} {who}" if who else str(event)


def check_core(before: RunState, step: Step) -> None:
    """Check the invariants of the core over one step."""
    broken = check_state(step.state) + check_step(before, step.state, step.messages)
    if broken:
        raise Violation("invariant", "; ".join(broken))
    for place in PLACES:
        for node in getattr(step.state, place):
            if node in before.fenced:
                raise Violation("invariant", f"fenced {node} is back in {place}")
