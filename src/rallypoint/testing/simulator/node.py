"""A simulated node: it drives the agent's policy with the events of the virtual clock.

As in `agent.loop`, there is one inbox and one decision at a time, and a request blocks the inbox
until it is answered. Workers are timers. `hosted` and `serverless` say how a node reaches its
coordinator.
"""

from abc import ABC, abstractmethod
from collections import deque
from functools import partial

from rallypoint.agent.policy import decisions, events
from rallypoint.agent.policy.membership_change import MembershipRules
from rallypoint.agent.policy.view_events import ViewTracker
from rallypoint.core.events import Assignment, RoundOpened
from rallypoint.core.state import Failure, Newcomers, Node
from rallypoint.rendezvous.view import View
from rallypoint.testing.simulator.context import Simulation
from rallypoint.testing.simulator.virtual_clock import Handle, Process

CLOSE_SECONDS = 30.0
LEAVE_SECONDS = 5.0
LONGEST_SAVE_SECONDS = 2.0
OVERLOOKED_SECONDS = 2.0  # in which an agent must have acted on the end of its round


class AgentWorld(Simulation, ABC):
    """What an agent notifies of what it does."""

    @abstractmethod
    def ask_to_save(self, agent: "Agent", ask: events.AskToSave) -> None:
        """An agent asks its workers to save."""

    @abstractmethod
    def starts(self, agent: "Agent", seat: Assignment) -> None:
        """An agent starts its workers."""

    @abstractmethod
    def stops(self, agent: "Agent", event: events.Event, reason: str) -> None:
        """An agent stops healthy workers."""

    @abstractmethod
    def overlooked(self, agent: "Agent", opened: RoundOpened) -> None:
        """An agent has had time enough to act on the end of its round."""


class Agent(ABC):
    """One agent process.

    Args:
        world: where it lives.
        host: index of its machine.
        number: how many agents this machine has had before.
    """

    def __init__(self, world: AgentWorld, host: int, number: int) -> None:
        self.world = world
        self.host = host
        self.name = f"n{host}" + "'" * number
        self.process = Process(world.clock, self.name, world.clock.random.random() * 1e6)
        plan = world.plan
        self.state = decisions.AgentState(
            node=self.name,
            local_world_size=1,
            stop_grace_seconds=plan.stop_seconds,
            rules=MembershipRules(Newcomers(plan.admit), grace_seconds=plan.save_seconds),
        )
        self.exit: events.Exit | None = None
        self.left = False
        self.working: Assignment | None = None
        self.work_left = world.plan.work_seconds
        self.ids = 0
        self.node_id = ""
        self.asking = 0  # counts joins; what belongs to an older one does not count
        self._views = ViewTracker()
        self._inbox: deque[events.Event | View | Assignment] = deque()
        self._pumping = False
        self._blocked = False
        self._worked_from = 0.0
        self._actions: deque[events.Action] = deque()
        self._stopping: Handle | None = None
        self.new_id()

    def new_id(self) -> None:
        """Be another node from now on (L2)."""
        self.ids += 1
        self.node_id = f"{self.name}.{self.ids}"

    def describe(self) -> Node:
        """Return what it says of itself at a join."""
        return Node(
            id=self.node_id,
            address=f"10.0.0.{self.host + 1}",
            port=self.world.next_port(),
            pid=100 + self.host,
            slot=f"slot{self.host}" if self.world.plan.slots else None,
        )

    def begin(self) -> None:
        """Start the agent."""
        self.process.soon(self._act, decisions.begin(self.state))

    # -- the loop ---------------------------------------------------------------------------

    def put(self, event: events.Event | View | Assignment) -> None:
        """Put something into the inbox."""
        self._inbox.append(event)
        if isinstance(event, View) and event.opened is not None:
            self._look_again(event.opened)
        self._pump()

    def _look_again(self, opened: RoundOpened, rested: float = -1.0) -> None:
        """Check, once it has had time enough to run, that it has acted on what it was told."""
        now = self.process.paused_seconds()
        if rested == now:
            self.world.overlooked(self, opened)
            return
        patience = OVERLOOKED_SECONDS * self.process.slowness
        self.process.call_later(patience, self._look_again, opened, now)

    def _pump(self) -> None:
        if not self._pumping and not self._blocked and self._inbox and self.exit is None:
            self._pumping = True
            self.process.soon(self._next)

    def _next(self) -> None:
        self._pumping = False
        if self._blocked or not self._inbox or self.exit is not None:
            return
        item = self._inbox.popleft()
        if isinstance(item, View):
            self._inbox.extendleft(reversed(self._views.changed(item, self.node_id)))
        elif isinstance(item, Assignment):
            found = self._views.sealed(item, self.view(), self.node_id)
            self._inbox.extendleft(reversed(found))
        else:
            self._decide(item)
        self._pump()

    def _decide(self, event: events.Event) -> None:
        was_working = isinstance(self.state.phase, decisions.Working)
        decision = decisions.decide(self.state, event)
        if was_working and any(isinstance(a, events.StopWorkers) for a in decision.actions):
            self.world.stops(self, event, decision.reason)
        self._act(decision)

    def _act(self, decision: decisions.Decision) -> None:
        self.state = decision.state
        if decision.reason:
            self.world.note(self.name, decision.reason)
        self._actions.extend(decision.actions)
        self._continue()

    def _continue(self) -> None:
        while self._actions and not self._blocked:
            self._do(self._actions.popleft())
        if not self._blocked and self.exit is not None:
            self.gone()

    def _do(self, action: events.Action) -> None:
        match action:
            case events.Join(why=why):
                self.asking += 1
                self._views.joins(self.view())
                self.join(why)
            case events.StartWorkers(assignment=seat):
                self._start_workers(seat)
            case events.StopWorkers(grace_seconds=grace):
                self._stop_workers(grace)
            case events.ReportFailure(failure=failure):
                self.fail(failure)
            case events.Finish():
                self.finish()
            case events.Leave(why=why):
                self._leave(why)
            case events.AskToSave():
                self.world.ask_to_save(self, action)
            case events.StartChangeTimer(round=number, seconds=seconds, timer=timer):
                self.process.call_later(seconds, self.put, events.ChangeTimerElapsed(number, timer))
            case events.StartBackoffTimer(round=number, seconds=seconds):
                self.process.call_later(seconds, self.put, events.BackoffElapsed(number))
            case events.Exit():
                self._exit(action)

    def _exit(self, end: events.Exit) -> None:
        self.exit = end
        self.working = None
        self.world.note(self.name, f"exits with code {end.code}: {end.text or 'done'}")
        self._leave("its agent ends")

    def _leave(self, why: str) -> None:
        if not self.left:
            self.left = True
            self.leave(why)

    def block(self) -> None:
        """A call has begun that the loop waits for."""
        self._blocked = True

    def unblock(self, _done: bool = True) -> None:
        """It is over."""
        self._blocked = False
        self._continue()
        self._pump()

    # -- workers -----------------------------------------------------------------------------

    def _start_workers(self, seat: Assignment) -> None:
        self.working = seat
        self._worked_from = self.world.clock.now
        self.world.starts(self, seat)
        if self.world.plan.work_seconds:
            self.process.call_later(max(0.01, self.work_left), self.worker_ends, seat, 0)

    def worker_ends(self, seat: Assignment, code: int) -> None:
        """A worker ends by itself."""
        if self.working == seat:
            self.working = None
            if code == 0:
                self.world.truth.done.add((self.node_id, seat.round))
            else:
                self.world.truth.failed.add((self.node_id, seat.round))
            self.put(events.WorkerExited(seat.round, 0, code))

    def _stop_workers(self, grace: float) -> None:
        if self._stopping is not None:
            self._stopping.cancel()  # given again, it only shortens the grace
        delay = self.world.clock.random.random() * grace
        self._stopping = self.process.call_later(delay, self._stopped)

    def _stopped(self) -> None:
        self._stopping = None
        self.work_left -= self.world.clock.now - self._worked_from
        self.working = None
        self.put(events.WorkersStopped())

    def signal(self) -> None:
        """Somebody asks this agent to go."""
        self.put(events.Signal("SIGTERM", 15))

    # -- how it reaches the coordinator --------------------------------------------------------

    @abstractmethod
    def view(self) -> View:
        """Return what it was told so far."""

    @abstractmethod
    def join(self, why: str) -> None:
        """Ask for a round; the answer is put into the inbox."""

    @abstractmethod
    def fail(self, failure: Failure) -> None:
        """Say that a worker failed."""

    @abstractmethod
    def finish(self) -> None:
        """Say that the work is done."""

    @abstractmethod
    def leave(self, why: str) -> None:
        """Go; blocks."""

    @abstractmethod
    def gone(self) -> None:
        """The process ends."""


class Saves:
    """The saves of a world's workers.

    Some time after the first agent of a round has asked, all ranks have saved if all of them still
    work, else none has. Agents that watch are notified.

    Args:
        simulation: where they work.
        agents: the newest agent of each machine.
    """

    def __init__(self, simulation: Simulation, agents: list[Agent]) -> None:
        self._simulation = simulation
        self._agents = agents
        self._under_way: set[tuple[int, int]] = set()
        self._watchers: dict[tuple[int, int], list[Agent]] = {}

    def ask(self, agent: Agent, ask: events.AskToSave) -> None:
        """An agent asks its workers to save."""
        key = (ask.incarnation, ask.round)
        if ask.watch:
            self._watchers.setdefault(key, []).append(agent)
        if key not in self._under_way:
            self._under_way.add(key)
            clock = self._simulation.clock
            delay = clock.random.random() * LONGEST_SAVE_SECONDS
            clock.add(clock.world, delay, False, partial(self._save, key))

    def _save(self, key: tuple[int, int]) -> None:
        self._under_way.discard(key)
        seats = [
            agent.working
            for agent in self._agents
            if agent.process.alive and agent.working is not None
        ]
        at_work = [seat for seat in seats if (seat.incarnation, seat.round) == key]
        if not at_work or len(at_work) < at_work[0].size:
            return
        self._simulation.truth.saved.add(key)
        self._simulation.note("SAVED", f"all {len(at_work)} ranks of round {key[1]}")
        for agent in self._watchers.pop(key, []):
            if agent.process.alive:
                agent.process.soon(agent.put, events.WorkersSaved(key[1], 1))
