"""A simulated node: the real agent policy, the handler's and the coordinator's steps.

It mirrors, event by event, `agent.agent`, `rendezvous.dynamic` and `rendezvous.hosted`: one
inbox, one decision at a time; a request blocks the inbox until it is answered. Workers are
timers. `Node` knows nothing of how it reaches the coordinator; `HostedNode` uses a session.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from rallypoint.agent import events, policy
from rallypoint.agent.agent import events_of
from rallypoint.rendezvous import dialogue, wire
from rallypoint.rendezvous.coordinator import View
from rallypoint.rendezvous.core.events import (
    Assignment,
    Fail,
    Finish,
    Leave,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
)
from rallypoint.rendezvous.core.state import Failure, Node
from rallypoint.store import protocol as p
from rallypoint.testing.simulator.clockwork import Handle, Process
from rallypoint.testing.simulator.session import NodeSession

if TYPE_CHECKING:
    from rallypoint.testing.simulator.world import World

CLOSE_SECONDS = 30.0
LEAVE_SECONDS = 5.0
OVERLOOKED_SECONDS = 2.0  # in which an agent must have acted on the end of its round


class Agent(ABC):
    """One agent process.

    Args:
        world: where it lives.
        host: index of its machine.
        number: how many agents this machine has had before.
    """

    def __init__(self, world: "World", host: int, number: int) -> None:
        self.world = world
        self.host = host
        self.name = f"n{host}" + "'" * number
        self.process = Process(world.clockwork, self.name, world.clockwork.random.random() * 1e6)
        self.state = policy.AgentState(
            node=self.name, local_world_size=1, stop_grace_seconds=world.plan.stop_seconds
        )
        self.exit: events.Exit | None = None
        self.left = False
        self.working: Assignment | None = None
        self.work_left = world.plan.work_seconds
        self.ids = 0
        self.node_id = ""
        self.asking = 0  # counts joins; what belongs to an older one does not count
        self.fenced_at_join: Refused | None = None
        self.seen = View()
        self._inbox: deque[events.Event | View] = deque()
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
        self.process.soon(self._act, policy.begin(self.state))

    # -- the loop of agent.agent -----------------------------------------------------------

    def put(self, event: "events.Event | View") -> None:
        """Put something into the inbox."""
        self._inbox.append(event)
        if isinstance(event, View) and event.opened is not None:
            self._look_again(event.opened)
        self._pump()

    def _look_again(self, opened: RoundOpened, rested: float = -1.0) -> None:
        """Check, once it has had time enough to run, that it has acted on what it was told."""
        now = self.process.paused_seconds()
        if rested == now:
            self.world.checker.overlooked(self, opened)
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
            told = events_of(item, self.seen)
            self.seen = item
            self._inbox.extendleft(reversed(told))
        elif isinstance(item, events.Sealed):
            self.seen = self.view()
            told = events_of(self.seen, View(fenced=self.fenced_at_join))
            self._inbox.extendleft(reversed(told))
            self._decide(item)
        else:
            self._decide(item)
        self._pump()

    def _decide(self, event: events.Event) -> None:
        was_working = isinstance(self.state.phase, policy.Working)
        decision = policy.decide(self.state, event)
        if was_working and any(isinstance(a, events.StopWorkers) for a in decision.actions):
            self.world.stops(self, event, decision.reason)
        self._act(decision)

    def _act(self, decision: policy.Decision) -> None:
        self.state = decision.state
        if decision.reason:
            self.world.note(self.name, decision.reason)
        self._actions.extend(decision.actions)
        self._go_on()

    def _go_on(self) -> None:
        while self._actions and not self._blocked:
            self._do(self._actions.popleft())
        if not self._blocked and self.exit is not None:
            self.gone()

    def _do(self, action: events.Action) -> None:
        match action:
            case events.Join(why=why):
                self.asking += 1
                self.fenced_at_join = self.view().fenced
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
            case events.StartAdmitTimer(round=number, seconds=seconds):
                self.process.call_later(seconds, self.put, events.AdmitDue(number))
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
        self._go_on()
        self._pump()

    # -- workers -----------------------------------------------------------------------------

    def _start_workers(self, seat: Assignment) -> None:
        self.working = seat
        self._worked_from = self.world.clockwork.now
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
        delay = self.world.clockwork.random.random() * grace
        self._stopping = self.process.call_later(delay, self._stopped)

    def _stopped(self) -> None:
        self._stopping = None
        self.work_left -= self.world.clockwork.now - self._worked_from
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


class HostedNode(Agent):
    """A node whose coordinator is the server (`rendezvous.hosted`)."""

    def __init__(self, world: "World", host: int, number: int) -> None:
        super().__init__(world, host, number)
        lease = world.plan.settings.lease_seconds
        self.session = NodeSession(world, self.process, lease, self._changed)
        self._seated = False  # the handler has a seat of its present id
        self._why = ""
        self._waits = False  # a join is under way

    def begin(self) -> None:
        """Start the agent; it connects first."""
        self.session.connect()
        super().begin()

    def view(self) -> View:
        """See the base."""
        return self.session.view

    def _changed(self, view: View) -> None:
        self.put(view)
        self._look()

    # -- joining: rendezvous.dynamic and rendezvous.hosted -------------------------------------

    def join(self, why: str) -> None:
        """See the base."""
        self._why, self._waits = why, True
        if self.session.view.fenced is not None:  # L2
            self.new_id()
            self._seated = False
        self._ask()
        limit = self.world.plan.join_seconds
        self.process.call_later(limit, self._timed_out, self.asking)

    def _ask(self) -> None:
        session, view = self.session, self.session.view
        asked, fresh = dialogue.request(
            view, session.join, self.describe(), self.world.plan.settings, self._why, False
        )
        session.join, session.refused = asked, None
        self.world.truth.joined.add(self.node_id)
        session.update(fresh)
        session.write(p.frame(wire.Ask(0, asked)))

    def _look(self) -> None:
        join, session = self.session.join, self.session
        if (
            self._waits
            and join is not None
            and dialogue.is_settled(join, session.view, session.refused)
        ):
            self.process.soon(self._settled, self.asking)

    def _settled(self, asking: int) -> None:
        session, view, join = self.session, self.session.view, self.session.join
        refused = session.refused or view.fenced
        if asking != self.asking or join is None or not self._waits:
            return
        if not dialogue.is_settled(join, view, session.refused):
            return
        if view.closed is not None:
            session.join = None
            self._answer(_join_failed_closed(view.closed))
        elif refused is not None:
            self._refused(refused)
        elif view.assignment is not None:
            self._seated = True
            self._answer(events.Sealed(view.assignment))

    def _refused(self, refused: Refused) -> None:
        session = self.session
        session.join = None
        if refused.refusal is Refusal.CLOSED:
            kind = events.JoinError.NOT_NEEDED if refused.finished else events.JoinError.CLOSED
            self._answer(events.JoinFailed(kind, refused.why))
        elif self._seated and session.view.fenced is not None:
            self.new_id()
            self._seated = False
            self._ask()
        else:
            self._answer(events.JoinFailed(events.JoinError.REFUSED, refused.why))

    def _answer(self, event: events.Event) -> None:
        self._waits = False
        self.put(event)

    def _timed_out(self, asking: int) -> None:
        if asking != self.asking or not self._waits:
            return
        self._waits = False
        text = f"no round was complete within {self.world.plan.join_seconds:g} s"
        failed = events.JoinFailed(events.JoinError.TIMEOUT, text)
        self._say_leave("its join timed out", 2.0, lambda _done: self.put(failed))

    # -- other requests ------------------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        """See the base."""
        join, seat = self.session.join, self.session.view.assignment
        if join is not None and seat is not None:
            event = Fail(join.node.id, seat.incarnation, seat.round, failure)
            self.block()
            self.session.ask(lambda i: wire.Ask(i, event), CLOSE_SECONDS, self.unblock)

    def finish(self) -> None:
        """See the base."""
        join, seat = self.session.join, self.session.view.assignment
        if join is not None and seat is not None:
            event = Finish(join.node.id, seat.incarnation, seat.round)
            self.world.truth.done.add((join.node.id, seat.round))
            self.block()
            self.session.ask(lambda i: wire.Ask(i, event), CLOSE_SECONDS, self.unblock)

    def leave(self, why: str) -> None:
        """See the base."""
        self.block()
        self._say_leave(why, LEAVE_SECONDS, self._left)

    def _left(self, done: bool) -> None:
        self.session.stop()
        self.unblock(done)

    def _say_leave(self, why: str, limit: float, then: Callable[[bool], object]) -> None:
        session = self.session
        join, session.join = session.join, None
        if join is None or session.view.closed is not None or session.view.fenced is not None:
            self.process.soon(then, False)
            return
        node = join.node.id
        self.world.truth.left.add(node)
        session.update(View(connected=session.view.connected))
        session.ask(lambda i: wire.Ask(i, Leave(node, why)), limit, then)

    def gone(self) -> None:
        """See the base."""
        self.process.kill()


def _join_failed_closed(closed: RunClosed) -> events.JoinFailed:
    kind = events.JoinError.NOT_NEEDED if closed.finished else events.JoinError.CLOSED
    failures = () if closed.finished else closed.failures
    return events.JoinFailed(kind, f"closed by {closed.by}: {closed.why}", failures)
