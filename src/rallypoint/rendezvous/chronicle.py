"""What a run has been through: its rounds, since when things are as they are. PURE.

The state holds no time, and nothing in it is older than the round before. Whoever runs the
core (the server, `status --watch` over a shared state) tells a chronicle of each step, with
the time on a monotonic clock of its own; what comes out are durations, never moments, so
that no two clocks are compared.

A step costs what has changed, not what there is: nothing here walks over all members. The
memory is bounded: `ROUNDS_KEPT` rounds, and the names of `SEATS_KEPT` participants.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from rallypoint.rendezvous.coordinator import Member, Report, RoundLine, RunningTimer
from rallypoint.rendezvous.core import explain
from rallypoint.rendezvous.core.events import (
    Cause,
    Disconnected,
    Event,
    Fail,
    Finish,
    Join,
    LastCallOver,
    Leave,
    Lost,
    Reconnected,
    RejoinOver,
    ReplacementWaitOver,
    Timer,
)
from rallypoint.rendezvous.core.state import (
    PLACES,
    Closed,
    NodeId,
    Round,
    Sealed,
    State,
    find,
    round_number,
)

ROUNDS_KEPT = 64
SEATS_KEPT = 4096
LOST_SHOWN = 8
SHUT_OUT_SHOWN = 16
MISSING_SHOWN = 16
CAUSES = {
    Cause.LEASE: "lease",
    Cause.DISCONNECT: "disconnect",
    Cause.DIED: "process",
}
_NAMES: dict[type, tuple[str, str]] = {
    LastCallOver: ("last call for more nodes", "last_call"),
    RejoinOver: ("members of the round before may join again", "rejoin_timeout"),
    ReplacementWaitOver: ("a replacement may come", "replacement_wait"),
}


@dataclass
class Entry:
    """One round while it is remembered; times on the clock of whoever notes."""

    incarnation: int
    number: int
    opened_at: float
    opened_because: str = ""
    sealed_at: float | None = None
    record: Round | None = None
    size: int = 0
    sealed_because: str = ""
    ended_at: float | None = None
    ended_because: str = ""
    lost: list[str] = field(default_factory=list)

    def line(self, now: float) -> RoundLine:
        """Return the round as it is told at a time."""
        return RoundLine(
            incarnation=self.incarnation,
            number=self.number,
            opened_seconds=now - self.opened_at,
            opened_because=self.opened_because,
            sealed_seconds=_ago(now, self.sealed_at),
            sealed_because=self.sealed_because,
            ended_seconds=_ago(now, self.ended_at),
            ended_because=self.ended_because,
            size=self.size,
            lost=tuple(self.lost),
            nodes=tuple(seat.node.label for seat in self.record.seats) if self.record else (),
        )


@dataclass(frozen=True)
class Loss:
    """A node that was lost: how, and how long after its last sign of life that was seen."""

    label: str
    cause: str
    seconds: float


@dataclass(frozen=True)
class Noted:
    """What a step brought about, for whoever counts: rounds sealed, nodes lost."""

    sealed: Entry | None = None
    losses: tuple[Loss, ...] = ()


class Chronicle:
    """What one run has been through, as its host saw it."""

    def __init__(self) -> None:
        self.rounds: deque[Entry] = deque(maxlen=ROUNDS_KEPT)
        self.phase_at: float | None = None
        self._since: dict[NodeId, float] = {}
        self._cut: dict[NodeId, float] = {}

    def note(
        self,
        before: State,
        events: Sequence[Event],
        after: State,
        now: float,
        heard: Callable[[NodeId], float | None] = lambda _: None,
    ) -> Noted:
        """Take in one step.

        Args:
            before, after: the states around it.
            events: what was applied.
            now: monotonic seconds.
            heard: when a node last gave a sign of life, on the same clock.
        """
        losses: list[Loss] = []
        lost: list[str] = []
        for event in events:
            self._event(before, event, after, now, heard, losses, lost)
        if after.settings is None:
            return Noted(None, tuple(losses))
        changed = type(before.phase) is not type(after.phase) or _key(before) != _key(after)
        if changed or self.phase_at is None:
            self.phase_at = now
        why = after.opening or _why_opened(before, events, after)
        sealed = self._rounds(after, now, lost, why)
        self._forget(after)
        return Noted(sealed, tuple(losses))

    def _event(
        self,
        before: State,
        event: Event,
        after: State,
        now: float,
        heard: Callable[[NodeId], float | None],
        losses: list[Loss],
        lost: list[str],
    ) -> None:
        match event:
            case Join(node=node):
                if node.id not in before.candidates:
                    self._since[node.id] = now
            case Finish(node=gone):
                self._since[gone] = now
            case Disconnected(node=gone):
                self._cut[gone] = now
            case Reconnected(node=gone):
                self._cut.pop(gone, None)
            case Leave(node=gone) | Lost(node=gone):
                member = find(before, gone)
                if member is None or find(after, gone) is not None:
                    return
                lost.append(member.node.label)
                if isinstance(event, Lost):
                    silent_at = self._cut.pop(gone, None) or heard(gone) or now
                    cause = CAUSES[event.cause]
                    losses.append(Loss(member.node.label, cause, now - silent_at))
            case RejoinOver():
                for gone, member in before.participants.items():
                    if find(after, gone) is None:
                        lost.append(member.node.label)
                        losses.append(Loss(member.node.label, "rejoin", now - self._opened(now)))
            case _:
                return

    def _opened(self, now: float) -> float:
        return self.rounds[-1].opened_at if self.rounds else now

    def _rounds(self, after: State, now: float, lost: list[str], why: str) -> Entry | None:
        entry = self.rounds[-1] if self.rounds else None
        if entry is None or (entry.incarnation, entry.number) != _key(after):
            if entry is not None and entry.ended_at is None:
                entry.ended_at, entry.ended_because = now, why
                entry.lost += lost[: LOST_SHOWN - len(entry.lost)]
            entry = Entry(*_key(after), opened_at=now, opened_because=why if self.rounds else "")
            self.rounds.append(entry)
        phase = after.phase
        if isinstance(phase, Closed) and entry.ended_at is None:
            entry.ended_at, entry.ended_because = now, f"{phase.by}: {phase.why}"
        if not isinstance(phase, Sealed) or entry.sealed_at is not None:
            return None
        entry.sealed_at, entry.record = now, phase.record
        entry.size, entry.sealed_because = len(phase.record.seats), phase.record.reason
        self._keep_few_names()
        return entry

    def _keep_few_names(self) -> None:
        kept = 0
        for entry in reversed(self.rounds):
            kept += entry.size
            if kept > SEATS_KEPT and entry is not self.rounds[-1]:
                entry.record = None

    def _forget(self, after: State) -> None:
        live = sum(len(getattr(after, place)) for place in PLACES)
        if len(self._since) > 2 * live + 256:
            self._since = {n: at for n, at in self._since.items() if find(after, n)}
        if len(self._cut) > live + 256:
            self._cut = {n: at for n, at in self._cut.items() if find(after, n)}

    # -- what is told -----------------------------------------------------------------------

    def place_seconds(self, node: NodeId, place: str, now: float) -> float | None:
        """Return how long a node has been in its place."""
        entry = self.rounds[-1] if self.rounds else None
        if entry is None:
            return None
        since = self._since.get(node, entry.opened_at)
        if place == "participant":
            at = entry.opened_at if entry.sealed_at is None else entry.sealed_at
        elif place == "finished":
            at = since
        else:
            at = max(since, entry.sealed_at or entry.opened_at)
        return now - at

    def cut_seconds(self, now: float) -> dict[NodeId, float]:
        """Return how long the nodes whose connection is cut have been so."""
        return {node: now - at for node, at in self._cut.items()}

    def lines(self, now: float) -> tuple[RoundLine, ...]:
        """Return the rounds that are remembered, oldest first."""
        return tuple(entry.line(now) for entry in self.rounds)


def report_of(
    state: State,
    server: str,
    chronicle: Chronicle | None = None,
    now: float = 0.0,
    heard: Callable[[NodeId], float | None] = lambda _: None,
    timers: Iterable[tuple[Timer, float | None]] = (),
) -> Report:
    """Return the report of a state.

    Args:
        state: of the run.
        server: where the answer comes from, for people.
        chronicle: what was seen of it over time, None: nothing is known of time.
        now: on the chronicle's clock.
        heard: when a node last gave a sign of life, on that clock.
        timers: those that run, with the seconds that are left.
    """
    seen = chronicle or Chronicle()
    members = tuple(
        Member(
            node,
            place,
            rank,
            connected,
            seen.place_seconds(node.id, place, now),
            _ago(now, heard(node.id)),
        )
        for node, place, rank, connected in explain.rows(state)
    )
    shown = [RunningTimer(*_NAMES[type(timer)], left) for timer, left in timers]
    return Report(
        run_id=state.run_id,
        phase=explain.phase_name(state),
        incarnation=state.incarnation,
        round=round_number(state.phase),
        reason=explain.describe(state),
        missing=explain.missing(state),
        members=members,
        settings=state.settings,
        restarts=state.restarts,
        server=server,
        since_seconds=_ago(now, seen.phase_at),
        opened_by=state.opened_by,
        timers=(*shown, *_graces(state, seen.cut_seconds(now))),
        rounds=seen.lines(now) or _present(state),
        failures=state.failures,
        shut_out=tuple(islice(reversed(state.fenced.items()), SHUT_OUT_SHOWN)),
    )


def _present(state: State) -> tuple[RoundLine, ...]:
    """Return the one round that a state itself tells of, without times."""
    phase = state.phase
    if state.settings is None or isinstance(phase, Closed):
        return ()
    record = phase.record if isinstance(phase, Sealed) else None
    line = RoundLine(
        incarnation=state.incarnation,
        number=round_number(phase),
        opened_seconds=None,
        opened_because=state.opening,
        sealed_because=record.reason if record else "",
        size=len(record.seats) if record else 0,
        nodes=tuple(seat.node.label for seat in record.seats) if record else (),
    )
    return (line,)


def brief_report(state: State, server: str) -> Report:
    """Return a report that costs the same whatever the number of nodes: for each that waits.

    Args:
        state: of the run.
        server: where the answer comes from, for people.
    """
    missing = explain.missing(state)
    if len(missing) > MISSING_SHOWN:
        missing = (*missing[:MISSING_SHOWN], f"{len(missing) - MISSING_SHOWN} more")
    return Report(
        run_id=state.run_id,
        phase=explain.phase_name(state),
        incarnation=state.incarnation,
        round=round_number(state.phase),
        reason=explain.describe(state),
        missing=missing,
        settings=state.settings,
        restarts=state.restarts,
        server=server,
    )


def _graces(state: State, cut: dict[NodeId, float]) -> list[RunningTimer]:
    settings, running = state.settings, []
    for node, seconds in cut.items():
        member = find(state, node)
        if settings is not None and member is not None and not member.connected:
            left = min(settings.grace_seconds, settings.lease_seconds) - seconds
            name = f"{member.node.label} may come back"
            running.append(RunningTimer(name, "disconnect_grace", max(0.0, left)))
    return running


def _why_opened(before: State, events: Sequence[Event], after: State) -> str:
    """Return why a round was opened that was sealed, too, within the same step.

    The state says it only while the round gathers; then the first event that could have
    opened it is what did.
    """
    if before.incarnation != after.incarnation:
        return "the run was opened afresh"
    for event in events:
        match event:
            case Join(node=node, why=why) if node.id in before.participants:
                label, text = node.label, "asked for a new round"
            case Leave(node=node, why=why) if member := before.participants.get(node):
                label, text = member.node.label, "left"
            case Lost(node=node, cause=why) if member := before.participants.get(node):
                label, text = member.node.label, "was lost"
            case Fail(failure=failure):
                return f"a worker failed: {failure.label}"
            case _:
                continue
        return f"{label} {text}" + (f": {why}" if why else "")
    return ""


def _key(state: State) -> tuple[int, int]:
    return state.incarnation, round_number(state.phase)


def _ago(now: float, at: float | None) -> float | None:
    return None if at is None else max(0.0, now - at)
