"""The history of a run: its rounds, and since when its nodes are where they are. PURE.

The state holds no time, and nothing older than the previous round. The host of a run (the server,
or `status --watch` without one) adds each step to a `History`, with the time on its own monotonic
clock. Reports contain durations only, so that no two clocks are compared.

The cost of a step depends on what has changed, not on the number of nodes. Memory is bounded:
`ROUNDS_KEPT` rounds, and the names of `SEATS_KEPT` participants.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rallypoint.core.events import (
    Cause,
    Disconnected,
    Event,
    Exclude,
    Fail,
    Finish,
    Join,
    Leave,
    Lost,
    Reconnected,
    RejoinOver,
)
from rallypoint.core.state import (
    PLACES,
    Closed,
    NodeId,
    Round,
    RunState,
    Sealed,
    find,
    round_number,
)
from rallypoint.rendezvous.coordinator import NoticeLine, RoundLine

ROUNDS_KEPT = 64
SEATS_KEPT = 4096
LOST_SHOWN = 8
FEW = 256  # nodes: below that many, entries of nodes that left stay
CAUSES = {
    Cause.LEASE: "lease",
    Cause.DISCONNECT: "disconnect",
    Cause.DIED: "process",
}


@dataclass
class Entry:
    """One round; times are on the host's clock."""

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
    left: set[str] = field(default_factory=set)

    def line(self, now: float) -> RoundLine:
        """Return the row of a report made at a time."""
        return RoundLine(
            incarnation=self.incarnation,
            number=self.number,
            opened_seconds=now - self.opened_at,
            opened_because=self.opened_because,
            sealed_seconds=ago(now, self.sealed_at),
            sealed_because=self.sealed_because,
            ended_seconds=ago(now, self.ended_at),
            ended_because=self.ended_because,
            size=self.size,
            lost=tuple(self.lost),
            left=tuple(label for label in self.lost if label in self.left),
            nodes=tuple(seat.node.label for seat in self.record.seats) if self.record else (),
        )


@dataclass(frozen=True)
class Loss:
    """A lost node: how it was lost, and how long after its last heartbeat."""

    label: str
    cause: str
    seconds: float


@dataclass(frozen=True)
class Noted:
    """What happened in a step, for counters: a round sealed, nodes lost."""

    sealed: Entry | None = None
    losses: tuple[Loss, ...] = ()


class History:
    """The history of one run."""

    def __init__(self) -> None:
        self.rounds: deque[Entry] = deque(maxlen=ROUNDS_KEPT)
        self.phase_at: float | None = None
        self._named: deque[Entry] = deque()  # those of `rounds` with a record
        self._seats = 0  # of these
        self._since: dict[NodeId, float] = {}
        self._disconnected_at: dict[NodeId, float] = {}
        self._noticed: dict[NodeId, float] = {}

    def note(
        self,
        before: RunState,
        events: Sequence[Event],
        after: RunState,
        now: float,
        heard: Callable[[NodeId], float | None] = lambda _: None,
    ) -> Noted:
        """Add one step.

        Args:
            before, after: the states around it.
            events: what was applied.
            now: monotonic seconds.
            heard: when the last heartbeat of a node came, on the same clock.
        """
        self._noticed = {node: self._notice_at(node, before, after, now) for node in after.notices}
        losses: list[Loss] = []
        lost: list[str] = []
        for event in events:
            self._event(before, event, after, now, heard, losses, lost)
        lost += _excluded(before, after)
        if after.settings is None:
            return Noted(None, tuple(losses))
        changed = type(before.phase) is not type(after.phase) or _key(before) != _key(after)
        if changed or self.phase_at is None:
            self.phase_at = now
        if not self.rounds or (self.rounds[-1].incarnation, self.rounds[-1].number) != _key(after):
            self._open(before, events, after, now, lost)
        sealed = self._ended(after, now)
        self._forget(after)
        return Noted(sealed, tuple(losses))

    def _notice_at(self, node: NodeId, before: RunState, after: RunState, now: float) -> float:
        """Return when the time of a notice began; of two notices the sooner one holds (P1)."""
        at, known, notice = self._noticed.get(node, now), before.notices.get(node), after.notices
        seconds = notice[node].seconds
        if known is None or known == notice[node] or known.seconds is None or seconds is None:
            return at if known == notice[node] else now
        return min(now, at + known.seconds - seconds)

    def _event(
        self,
        before: RunState,
        event: Event,
        after: RunState,
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
                self._disconnected_at[gone] = now
            case Reconnected(node=gone):
                self._disconnected_at.pop(gone, None)
            case Leave(node=gone) | Lost(node=gone):
                member = find(before, gone)
                if member is None or find(after, gone) is not None:
                    return
                lost.append(member.node.label)
                if isinstance(event, Lost):
                    silent_at = self._disconnected_at.pop(gone, None) or heard(gone) or now
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

    def _open(
        self,
        before: RunState,
        events: Sequence[Event],
        after: RunState,
        now: float,
        lost: list[str],
    ) -> None:
        """A new round gathers, and the previous one has ended."""
        why = after.opening or _why_opened(before, events, after)
        entry = self.rounds[-1] if self.rounds else None
        if entry is not None and entry.ended_at is None:
            going = {e.node for e in events if isinstance(e, Leave)}
            entry.ended_at, entry.ended_because = now, why
            entry.lost += lost[: LOST_SHOWN - len(entry.lost)]
            entry.left = {m.node.label for n in going if (m := find(before, n)) is not None}
        entry = Entry(*_key(after), opened_at=now, opened_because=why if entry is not None else "")
        self.rounds.append(entry)

    def _ended(self, after: RunState, now: float) -> Entry | None:
        """Set that the round is sealed, or the run closed; return a round that was sealed now."""
        entry, phase = self.rounds[-1], after.phase
        if isinstance(phase, Closed) and entry.ended_at is None:
            entry.ended_at, entry.ended_because = now, f"{phase.by}: {phase.why}"
        if not isinstance(phase, Sealed) or entry.sealed_at is not None:
            return None
        entry.sealed_at, entry.record = now, phase.record
        entry.size, entry.sealed_because = len(phase.record.seats), phase.record.reason
        self._keep_names(entry)
        return entry

    def _keep_names(self, entry: Entry) -> None:
        """Keep the names of a round's participants, and drop the oldest ones."""
        named = self._named
        named.append(entry)
        self._seats += entry.size
        while len(named) > 1 and (self._seats > SEATS_KEPT or len(named) > ROUNDS_KEPT):
            oldest = named.popleft()
            oldest.record = None
            self._seats -= oldest.size

    def _forget(self, after: RunState) -> None:
        if len(self._since) <= FEW and len(self._disconnected_at) <= FEW:
            return
        live = sum(len(getattr(after, place)) for place in PLACES)
        if len(self._since) > 2 * live + FEW:
            self._since = {n: at for n, at in self._since.items() if find(after, n)}
        if len(self._disconnected_at) > live + FEW:
            self._disconnected_at = {
                n: at for n, at in self._disconnected_at.items() if find(after, n)
            }

    # -- for reports ------------------------------------------------------------------------

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

    def disconnected_seconds(self, now: float) -> dict[NodeId, float]:
        """Return how long the disconnected nodes have been disconnected."""
        return {node: now - at for node, at in self._disconnected_at.items()}

    def notices(self, state: RunState, now: float) -> tuple[NoticeLine, ...]:
        """Return which nodes will leave, and when."""
        return tuple(
            NoticeLine(n.node, n.label, n.why, n.by, n.seconds, self._left(n.node, n.seconds, now))
            for n in state.notices.values()
        )

    def _left(self, node: NodeId, seconds: float | None, now: float) -> float | None:
        at = self._noticed.get(node)
        return None if seconds is None or at is None else max(0.0, at + seconds - now)

    def lines(self, now: float) -> tuple[RoundLine, ...]:
        """Return the kept rounds, oldest first."""
        return tuple(entry.line(now) for entry in self.rounds)


def _why_opened(before: RunState, events: Sequence[Event], after: RunState) -> str:
    """Return why a round was opened that was also sealed within the same step.

    The state gives the reason only while the round gathers; here it is the first event that could
    have opened the round.
    """
    if before.incarnation != after.incarnation:
        return "the run was opened again"
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
            case Exclude(by=by, why=why) if gone := _excluded(before, after):
                label, text = gone[0], f"was excluded by {by}"
            case _:
                continue
        return f"{label} {text}" + (f": {why}" if why else "")
    return ""


def _excluded(before: RunState, after: RunState) -> list[str]:
    """Return the labels of live nodes that were excluded in a step."""
    if after.exclusions is before.exclusions:
        return []
    new = (out for out in after.exclusions if out not in before.exclusions)
    members = (find(before, node) for out in new for node in out.nodes if not find(after, node))
    return [member.node.label for member in members if member is not None]


def _key(state: RunState) -> tuple[int, int]:
    return state.incarnation, round_number(state.phase)


def ago(now: float, at: float | None) -> float | None:
    """Return the seconds since a time, None if there is none."""
    return None if at is None else max(0.0, now - at)
