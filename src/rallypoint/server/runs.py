"""Hosts the core: one `RunHost` per run, which alone changes the run's state.

Events of one loop turn are applied together: `advance` once, store once, then send. A step
copies the places of all nodes, so above `AT_ONCE_NODES` nodes the events that come in crowds
wait a moment for more; one step for each would cost the square of their number. The host keeps
what the core must not know: connections, when each was last heard, and timers.

* One sweep over all connections detects silence, by this process's monotonic clock. A sweep
  that is late shows that this process itself was stopped or starved. Then all leases and timers
  are extended by that gap: a node is not dead because its judge was away. For one lease from
  then on a disconnected node may take a whole lease, not only the grace, to reconnect, since
  clients gave up on the silent server and reconnect with backoff.
* A lost connection starts the grace; a node that resumes within it goes on as before.
* A server that restarts from its journal adopts the runs (journal/persistence.py).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from rallypoint.core import explain
from rallypoint.core.advance import Step, advance, closed_by_fault, timer_seconds, timers
from rallypoint.core.events import (
    Cause,
    Close,
    Disconnected,
    Event,
    Join,
    Leave,
    Lost,
    Message,
    Reconnected,
    Refused,
    RejoinOver,
    RoundOpened,
    RoundSealed,
    RunClosed,
    Timer,
    assignment,
)
from rallypoint.core.state import (
    PLACES,
    Closed,
    Node,
    NodeId,
    RunState,
    Sealed,
    Settings,
    find,
)
from rallypoint.net import protocol as p
from rallypoint.rendezvous import timing, wire
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.reports.history import History, Noted
from rallypoint.rendezvous.reports.report import brief_report, report_of
from rallypoint.rendezvous.view import Seated, catch_up, run_closed
from rallypoint.server.fault import OnFault, guarded
from rallypoint.wallclock import now_text

logger = logging.getLogger("rallypoint.server")

IN_CROWDS = (Join, Disconnected, Reconnected)
AT_ONCE_NODES = 128  # up to this many, no event waits for others
LEAST_SECONDS = 1e-3  # the shortest wait: what the loop's timers resolve; many steps' cost
SECONDS_A_NODE = 1e-6  # of the wait; a step's copies cost a few hundredths of that
HELD_UP_SECONDS = 0.5  # a timer that is later than that shows that this process was stopped


class NodeConnection(Protocol):
    """A node's connection, as the host sees it."""

    node: NodeId | None
    heard_at: float

    def send(self, data: bytes) -> None:
        """Write one frame."""


def grace_seconds(settings: Settings, was_held_up: bool, return_seconds: float) -> float:
    """Return how long a disconnected node may take to reconnect before it counts as lost (L1).

    Args:
        settings: the run's.
        was_held_up: whether this process was stopped within the last lease.
        return_seconds: what is left of the time that nodes have after a restart of the server.
    """
    grace = settings.lease_seconds
    if not was_held_up:
        grace = min(settings.disconnect_grace_seconds, grace)
    return max(grace, return_seconds)


class RunHost:
    """The state of one run, and the connections of its nodes.

    Args:
        run_id: its name.
        loop: its timers and clock.
        where: the server, for people.
    """

    def __init__(self, run_id: str, loop: asyncio.AbstractEventLoop, where: str) -> None:
        self.state = RunState(run_id)
        self.connections: dict[NodeId, NodeConnection] = {}
        self.writes = 0
        self.history = History()
        self.observe: Callable[[Noted], None] | None = None  # called after each step
        self.on_fault: OnFault | None = None
        self.mark: Callable[[], None] = lambda: None  # called with a new state, before any send
        self._loop = loop
        self._where = where
        self._events: list[Event] = []
        self._flushing = False  # in this turn of the loop
        self._done: list[tuple[NodeConnection, wire.Ask]] = []
        self._timers: dict[Timer, tuple[asyncio.TimerHandle, float]] = {}
        self._graces: dict[NodeId, asyncio.TimerHandle] = {}
        self._forgiving_until = float("-inf")
        self._return_until = float("-inf")
        self._reason = ""

    @guarded
    def adopt(self, state: RunState) -> None:
        """Go on from a stored state: nobody is connected yet, and every lease starts again.

        Nodes have as long to reconnect as it may take them to see that the last server is gone.
        """
        self.state = state
        if state.settings is None:
            return
        away = timing.absence_seconds(state.settings.lease_seconds)
        self._return_until = self._loop.time() + away
        for timer in timers(state):  # a node must reconnect before it can join again
            later = away if isinstance(timer, RejoinOver) else 0.0
            self._start_timer(timer, timer_seconds(state, timer) + later)
        for node in [node for place in PLACES for node in getattr(state, place)]:
            self._submit(Disconnected(node))
            self._start_grace(node)

    # -- requests of nodes ------------------------------------------------------------------

    @guarded
    def ask(self, connection: NodeConnection, ask: wire.Ask) -> None:
        """Take an event of a node; it is applied with all others of this loop turn."""
        event = ask.event
        if isinstance(event, Join):
            self._bind(connection, event.node.id)
        elif isinstance(event, Leave):
            self.connections.pop(event.node, None)
            connection.node = None
        self._submit(event)
        if ask.id:
            self._done.append((connection, ask))

    def _bind(self, connection: NodeConnection, node: NodeId) -> None:
        if connection.node is not None and connection.node != node:
            self.connections.pop(connection.node, None)
            self._submit(Lost(connection.node, Cause.DIED))
        connection.node = node
        self.connections[node] = connection
        if self._stop_grace(node):
            self._submit(Reconnected(node))

    @guarded
    def resume(self, connection: NodeConnection, resume: wire.Resume) -> None:
        """A node has reconnected: go on, or tell it what it has missed (L1, L2, E1)."""
        if not all(isinstance(event, Reconnected) for event in self._events):
            self.flush()  # it must learn the newest state, which reconnects alone do not change
        member = find(self.state, resume.node)
        if member is not None and self.state.incarnation == resume.incarnation:
            self._bind(connection, resume.node)
        unknown = (
            f"{self._where} does not know this node of incarnation {resume.incarnation}, round "
            f"{resume.round}: it was lost, or the server was restarted without its state"
        )
        known = (resume.incarnation, resume.round)
        for message in catch_up(self.state, resume.node, known, unknown=unknown):
            connection.send(p.frame(wire.Push(message)))

    @guarded
    def disconnected(self, connection: NodeConnection) -> None:
        """A connection was lost without a leave: its grace begins (L1)."""
        node = connection.node
        if node is None or self.connections.get(node) is not connection:
            return
        del self.connections[node]
        if self.state.settings is None:
            self.flush()  # its join may be the first one
        self._submit(Disconnected(node))
        self._start_grace(node)

    def _start_grace(self, node: NodeId) -> None:
        settings = self.state.settings
        if settings is None:
            return
        now = self._loop.time()
        grace = grace_seconds(settings, now < self._forgiving_until, self._return_until - now)
        due = now + grace
        self._graces[node] = self._loop.call_later(grace, self._grace_over, node, due)

    @guarded
    def _grace_over(self, node: NodeId, due: float) -> None:
        if self._loop.time() - due > HELD_UP_SECONDS:
            self._start_grace(node)  # the node could not have reached us in that time
            return
        self._graces.pop(node, None)
        self._submit(Lost(node, Cause.DISCONNECT))

    def _stop_grace(self, node: NodeId) -> bool:
        timer = self._graces.pop(node, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    @guarded
    def sweep(self, now: float, gap: float) -> None:
        """Look for silent nodes; `gap`: seconds for which this process itself did not run."""
        if self.state.settings is None:
            return
        lease = self.state.settings.lease_seconds
        if gap > 0:
            self._forgive(now, gap, lease)
        oldest = now - lease
        for node, connection in self.connections.items():
            if connection.heard_at < oldest:
                self._submit(Lost(node, Cause.LEASE))

    def _forgive(self, now: float, gap: float, lease: float) -> None:
        self._forgiving_until = now + lease
        self._return_until += gap
        for connection in self.connections.values():
            connection.heard_at = min(now, connection.heard_at + gap)
        for node in list(self._graces):
            self._stop_grace(node)
            self._start_grace(node)
        for timer, (handle, due) in list(self._timers.items()):
            if due > now - gap:  # those that ran out within the gap included
                handle.cancel()
                self._start_timer(timer, due - now + gap)

    # -- the one writer -------------------------------------------------------------------

    def _submit(self, event: Event) -> None:
        self._events.append(event)
        nodes = len(self.connections)
        if nodes <= AT_ONCE_NODES or not isinstance(event, IN_CROWDS):
            if not self._flushing:
                self._flushing = True
                self._loop.call_soon(self.flush)
        elif len(self._events) == 1:
            self._loop.call_later(max(LEAST_SECONDS, SECONDS_A_NODE * nodes), self.flush)

    @guarded
    def flush(self) -> None:
        """Apply the events of this turn: advance, store, then send."""
        self._flushing = False
        if not self._events:
            return
        events, self._events = self._events, []
        before, step = self.state, advance(self.state, *events)
        self.state = step.state
        self.mark()  # what is sent from here on waits until it is stored (group_commit.py)
        self.writes += 1
        asked = {event.node.id for event in events if isinstance(event, Join)}
        for send in step.messages:
            to = send.to
            if isinstance(send.message, RoundOpened):  # N2: not to those who have just joined
                to = tuple(node for node in to if node not in asked)
            self._send(to, send.message)
        done, self._done = self._done, []
        for connection, ask in done:
            closed = run_closed(self.state)
            if closed is not None and isinstance(ask.event, Close):
                connection.send(p.frame(wire.Push(closed)))  # names who was faster, if somebody was
            connection.send(p.frame(wire.Done(ask.id)))
        self._log(step)
        self._set_timers(step)
        now = self._loop.time()
        noted = self.history.note(before, events, step.state, now, self._heard)
        if self.observe is not None:
            self.observe(noted)

    def fail(self, why: str) -> None:
        """Close the run without its rules: they, or its store, have failed."""
        self._events, before = [], self.state
        done, self._done = self._done, []
        self.stop()
        step = closed_by_fault(before, self._where, now_text(), why)
        self.state = step.state
        self.mark()
        for send in step.messages:
            self._send(send.to, send.message)
        for connection, ask in done:
            connection.send(p.frame(wire.Done(ask.id)))
        try:
            self.history.note(before, (), step.state, self._loop.time(), self._heard)
        except Exception:
            logger.exception("run %s: its history could not be written", self.state.run_id)

    def _heard(self, node: NodeId) -> float | None:
        connection = self.connections.get(node)
        return None if connection is None else connection.heard_at

    def _log(self, step: Step) -> None:
        if logger.isEnabledFor(logging.INFO) and (reason := step.reason) != self._reason:
            self._reason = reason
            logger.info("run %s: %s", self.state.run_id, reason)

    def _set_timers(self, step: Step) -> None:
        wanted = set(step.timers)
        for timer in [t for t in self._timers if t not in wanted]:
            self._timers.pop(timer)[0].cancel()
        for timer in step.timers:
            if timer not in self._timers:
                self._start_timer(timer, timer_seconds(self.state, timer))

    def _start_timer(self, timer: Timer, delay: float) -> None:
        due = self._loop.time() + delay
        handle = self._loop.call_later(delay, self._timer_over, timer, due, delay)
        self._timers[timer] = (handle, due)

    @guarded
    def _timer_over(self, timer: Timer, due: float, delay: float) -> None:
        late = self._loop.time() - due
        if late > HELD_UP_SECONDS:
            self._start_timer(timer, min(delay, late))
        else:
            self._submit(timer)

    def _send(self, to: tuple[NodeId, ...], message: Message) -> None:
        if isinstance(message, RoundSealed):
            seats = {seat.node.id: seat.rank for seat in message.record.seats}
            for node in to:
                connection = self.connections.get(node)
                if connection is not None:
                    seat = assignment(message.record, seats[node])
                    connection.send(p.frame(wire.Push(Seated(seat))))
            return
        data = p.frame(wire.Push(message))
        for node in to:
            connection = self.connections.get(node)
            if connection is not None:
                connection.send(data)
                if isinstance(message, (RunClosed, Refused)) and find(self.state, node) is None:
                    del self.connections[node]
                    connection.node = None

    # -- questions ------------------------------------------------------------------------

    def report(self) -> Report:
        """Return what the run is doing."""
        self.flush()
        now = self._loop.time()
        left = [(timer, max(0.0, due - now)) for timer, (_, due) in self._timers.items()]
        return report_of(self.state, self._where, self.history, now, self._heard, left)

    def brief(self) -> Report:
        """Return the report without members and rounds, for nodes that wait."""
        self.flush()
        return brief_report(self.state, self._where)

    def seats(self) -> tuple[Node, ...]:
        """Return the participants of the sealed round in rank order, () if none is sealed."""
        phase = self.state.phase
        return tuple(s.node for s in phase.record.seats) if isinstance(phase, Sealed) else ()

    @property
    def is_closed(self) -> bool:
        """Whether this incarnation has ended."""
        return isinstance(self.state.phase, Closed)

    def is_idle(self) -> bool:
        """Return whether no node is live, connected or expected back."""
        nobody = not self.connections and not self._graces and not self._events
        return nobody and not any(explain.rows(self.state))

    def stop(self) -> None:
        """Stop all timers; the state stays as it is."""
        for handle in (*(timer for timer, _due in self._timers.values()), *self._graces.values()):
            handle.cancel()
        self._timers.clear()
        self._graces.clear()
