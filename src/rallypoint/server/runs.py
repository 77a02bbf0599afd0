"""Hosts the core: one `RunHost` a run, its single writer.

Events of one loop turn are applied together: `advance` once, store once, then send. The
host keeps what the core must not know: connections, when each was last heard, and timers.

* Silence is judged by one sweep over all sessions each second (or a tenth of the lease),
  on this process's monotonic clock. A sweep that comes late shows that this process itself
  was stopped or starved: all leases and timers are extended by that gap (an outage of the
  judge is nobody's death). For one lease from then on a cut connection has a lease, not a
  grace, to come back: clients gave up on a judge that said nothing, and come with backoff.
* A cut connection starts the grace; a session that resumes within it goes on as before.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from rallypoint.rendezvous import wire
from rallypoint.rendezvous.chronicle import Chronicle, Noted, brief_report, report_of
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.core import explain
from rallypoint.rendezvous.core.advance import Step, advance, timer_seconds
from rallypoint.rendezvous.core.events import (
    Cause,
    Close,
    Disconnected,
    Event,
    Join,
    Leave,
    Lost,
    Message,
    Reconnected,
    Refusal,
    Refused,
    RoundOpened,
    RoundSealed,
    RunClosed,
    Timer,
    WaitingChanged,
    assignment,
)
from rallypoint.rendezvous.core.state import (
    Closed,
    Gathering,
    LastCall,
    Node,
    NodeId,
    Sealed,
    State,
    find,
    round_number,
)
from rallypoint.rendezvous.told import run_closed
from rallypoint.store import protocol as p

logger = logging.getLogger("rallypoint.server")

HELD_UP_SECONDS = 0.5  # a timer that is later than that shows that this process was away


class Session(Protocol):
    """A node's connection, as the host sees it."""

    node: NodeId | None
    heard_at: float

    def send(self, data: bytes) -> None:
        """Write one frame."""


class RunHost:
    """The state of one run, and the sessions of its nodes."""

    def __init__(self, run_id: str, loop: asyncio.AbstractEventLoop, where: str) -> None:
        self.state = State(run_id)
        self.sessions: dict[NodeId, Session] = {}
        self.writes = 0
        self.chronicle = Chronicle()
        self.observe: Callable[[Noted], None] | None = None  # told after each step
        self._loop = loop
        self._where = where
        self._events: list[Event] = []
        self._done: list[tuple[Session, wire.Ask]] = []
        self._timers: dict[Timer, tuple[asyncio.TimerHandle, float]] = {}
        self._graces: dict[NodeId, asyncio.TimerHandle] = {}
        self._forgiving_until = float("-inf")
        self._reason = ""

    # -- what sessions ask ----------------------------------------------------------------

    def ask(self, session: Session, ask: wire.Ask) -> None:
        """Take an event of a node; it is applied with all others of this loop turn."""
        event = ask.event
        if isinstance(event, Join):
            self._bind(session, event.node.id)
        elif isinstance(event, Leave):
            self.sessions.pop(event.node, None)
            session.node = None
        self._submit(event)
        if ask.id:
            self._done.append((session, ask))

    def _bind(self, session: Session, node: NodeId) -> None:
        if session.node is not None and session.node != node:
            self.sessions.pop(session.node, None)
            self._submit(Lost(session.node, Cause.DIED))
        session.node = node
        self.sessions[node] = session
        if self._stop_grace(node):
            self._submit(Reconnected(node))

    def resume(self, session: Session, resume: wire.Resume) -> None:
        """A node has reconnected: go on, or tell it what it has missed (L1, L2, E1)."""
        self.flush()
        member = find(self.state, resume.node)
        if member is not None and self.state.incarnation == resume.incarnation:
            self._bind(session, resume.node)
        phase = self.state.phase
        if session.node != resume.node or isinstance(phase, Closed):
            session.send(p.frame(wire.Push(self._shut_out(resume))))
        elif isinstance(phase, (Gathering, LastCall)) and resume.node in self.state.participants:
            why = self.state.opening
            opened = RoundOpened(resume.incarnation, phase.round, why)
            session.send(p.frame(wire.Push(opened)))
        elif isinstance(phase, Sealed) and resume.node in self.state.participants:
            count = len(self.state.waiting)
            told: wire.Told = WaitingChanged(resume.incarnation, resume.round, count)
            if phase.record.number != resume.round:
                told = _seat_of(phase, resume.node)
            session.send(p.frame(wire.Push(told)))

    def _shut_out(self, resume: wire.Resume) -> wire.Told:
        inc, closed = self.state.incarnation, run_closed(self.state)
        if closed is not None and resume.incarnation == inc:
            return closed
        why = self.state.fenced.get(resume.node) or (
            f"{self._where} does not know this node of incarnation {resume.incarnation}, round "
            f"{resume.round}: it was lost, or the server was started anew without its state"
        )
        return Refused(Refusal.FENCED, why, inc, round_number(self.state.phase))

    def disconnected(self, session: Session) -> None:
        """A connection is gone without a leave: its grace begins (L1)."""
        node = session.node
        if node is None or self.sessions.get(node) is not session:
            return
        del self.sessions[node]
        self.flush()
        if find(self.state, node) is None or self.state.settings is None:
            return
        self._submit(Disconnected(node))
        self._start_grace(node)

    def _start_grace(self, node: NodeId) -> None:
        settings = self.state.settings
        if settings is None:
            return
        grace = min(settings.grace_seconds, settings.lease_seconds)
        if self._loop.time() < self._forgiving_until:
            grace = settings.lease_seconds
        due = self._loop.time() + grace
        self._graces[node] = self._loop.call_later(grace, self._grace_over, node, due)

    def _grace_over(self, node: NodeId, due: float) -> None:
        if self._loop.time() - due > HELD_UP_SECONDS:
            self._start_grace(node)  # it could not have reached us meanwhile
            return
        self._graces.pop(node, None)
        self._submit(Lost(node, Cause.DISCONNECT))

    def _stop_grace(self, node: NodeId) -> bool:
        timer = self._graces.pop(node, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def sweep(self, now: float, gap: float) -> None:
        """Look for silent nodes; `gap`: seconds for which this process itself was away."""
        if self.state.settings is None:
            return
        lease = self.state.settings.lease_seconds
        if gap > 0:
            self._forgive(now, gap, lease)
        oldest = now - lease
        for node, session in self.sessions.items():
            if session.heard_at < oldest:
                self._submit(Lost(node, Cause.LEASE))

    def _forgive(self, now: float, gap: float, lease: float) -> None:
        self._forgiving_until = now + lease
        for session in self.sessions.values():
            session.heard_at = min(now, session.heard_at + gap)
        for node in list(self._graces):
            self._stop_grace(node)
            self._start_grace(node)
        for timer, (handle, due) in list(self._timers.items()):
            if due > now - gap:  # those too that ran out in the gap, but for this very sweep
                handle.cancel()
                self._start_timer(timer, due - now + gap)

    # -- the one writer -------------------------------------------------------------------

    def _submit(self, event: Event) -> None:
        if not self._events:
            self._loop.call_soon(self.flush)
        self._events.append(event)

    def flush(self) -> None:
        """Apply the events of this turn: advance, store, then tell."""
        if not self._events:
            return
        events, self._events = self._events, []
        done, self._done = self._done, []
        before, step = self.state, advance(self.state, *events)
        self.state = step.state  # in memory, this assignment is the store
        self.writes += 1
        self._log(step)
        self._set_timers(step)
        for send in step.messages:
            self._send(send.to, send.message)
        for session, ask in done:
            closed = run_closed(self.state)
            if closed is not None and isinstance(ask.event, Close):
                session.send(p.frame(wire.Push(closed)))  # by whom, if somebody was faster
            session.send(p.frame(wire.Done(ask.id)))
        now = self._loop.time()
        noted = self.chronicle.note(before, events, step.state, now, self._heard)
        if self.observe is not None:
            self.observe(noted)

    def _heard(self, node: NodeId) -> float | None:
        session = self.sessions.get(node)
        return None if session is None else session.heard_at

    def _log(self, step: Step) -> None:
        if step.reason != self._reason:
            self._reason = step.reason
            logger.info("run %s: %s", self.state.run_id, step.reason)

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
                session = self.sessions.get(node)
                if session is not None:
                    seat = assignment(message.record, seats[node])
                    session.send(p.frame(wire.Push(wire.Seated(seat))))
            return
        data = p.frame(wire.Push(message))
        for node in to:
            session = self.sessions.get(node)
            if session is not None:
                session.send(data)
                if isinstance(message, (RunClosed, Refused)) and find(self.state, node) is None:
                    del self.sessions[node]
                    session.node = None

    # -- questions ------------------------------------------------------------------------

    def report(self) -> Report:
        """Return what the run is doing."""
        self.flush()
        now = self._loop.time()
        timers = [(timer, max(0.0, due - now)) for timer, (_, due) in self._timers.items()]
        return report_of(self.state, self._where, self.chronicle, now, self._heard, timers)

    def brief(self) -> Report:
        """Return the report without members and rounds: what each node that waits asks for."""
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
        """Return whether no node is live, connected or awaited."""
        nobody = not self.sessions and not self._graces and not self._events
        return nobody and not any(explain.rows(self.state))

    def stop(self) -> None:
        """Stop all timers; the state stays as it is."""
        for handle in (*(timer for timer, _due in self._timers.values()), *self._graces.values()):
            handle.cancel()
        self._timers.clear()
        self._graces.clear()


def _seat_of(phase: Sealed, node: NodeId) -> wire.Seated:
    rank = next(s.rank for s in phase.record.seats if s.node.id == node)
    return wire.Seated(assignment(phase.record, rank))
