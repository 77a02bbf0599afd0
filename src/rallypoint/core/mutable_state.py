"""A run's state while events change it: copied once, changed, frozen. PURE.

A batch of a thousand joins thus costs one copy, not a thousand.
"""

from collections.abc import Iterable

from rallypoint.core.events import Message, Refusal, Refused, Send, shut_out_as
from rallypoint.core.state import (
    FENCED_LIMIT,
    PLACES,
    Exclusion,
    Failure,
    Member,
    NodeId,
    Notice,
    Phase,
    RunState,
    Settings,
    Strike,
    round_number,
)

Places = dict[NodeId, Member]


class MutableState:
    """A mutable copy of a `RunState`, with the messages and the note of the step."""

    def __init__(self, state: RunState) -> None:
        self.run_id = state.run_id
        self.settings: Settings | None = state.settings
        self.opened_by = state.opened_by
        self.incarnation = state.incarnation
        self.phase: Phase = state.phase
        self.candidates: Places = dict(state.candidates)
        self.participants: Places = dict(state.participants)
        self.waiting: Places = dict(state.waiting)
        self.spares: Places = dict(state.spares)
        self.finished: Places = dict(state.finished)
        self.fenced: dict[NodeId, str] = dict(state.fenced)
        self.arrivals = state.arrivals
        self.calls = state.calls
        self.restarts = state.restarts
        self.failures: tuple[Failure, ...] = state.failures
        self.opening = state.opening
        self.notices: dict[NodeId, Notice] = state.notices  # replaced, never changed in place
        self.failing = state.failing
        self.exclusions: tuple[Exclusion, ...] = state.exclusions
        self.exclusion_count = state.exclusion_count
        self.strikes: tuple[Strike, ...] = state.strikes
        self.replaced: set[NodeId] = set(state.replaced)
        self.messages: list[Send] = []
        self.note = ""
        self._slots: dict[str, NodeId] | None = None
        self._hints: dict[int, NodeId] | None = None

    def freeze(self) -> RunState:
        """Return the changed state; this object must not be used afterwards."""
        return RunState(
            run_id=self.run_id,
            settings=self.settings,
            opened_by=self.opened_by,
            incarnation=self.incarnation,
            phase=self.phase,
            candidates=self.candidates,
            participants=self.participants,
            waiting=self.waiting,
            spares=self.spares,
            finished=self.finished,
            fenced=self.fenced,
            arrivals=self.arrivals,
            calls=self.calls,
            restarts=self.restarts,
            failures=self.failures,
            opening=self.opening,
            notices=self.notices,
            failing=self.failing,
            exclusions=self.exclusions,
            exclusion_count=self.exclusion_count,
            strikes=self.strikes,
            replaced=frozenset(self.replaced),
        )

    @property
    def round(self) -> int:
        """Number of the round that the phase is about."""
        return round_number(self.phase)

    def send(self, to: Iterable[NodeId], message: Message) -> None:
        """Add a message, to be sent once the state is stored."""
        if receivers := tuple(to):
            self.messages.append(Send(receivers, message))

    def refuse(self, node: NodeId, refusal: Refusal, why: str) -> None:
        """Refuse the request of one node."""
        self.note = f"refused {node[:8]}: {why}"
        self.send((node,), Refused(refusal, why, self.incarnation, self.round))

    def fence(self, node: NodeId, why: str, replaced: bool = False) -> None:
        """Refuse a node's id from now on, and tell the node (rules L2, I1)."""
        self.fenced[node] = why
        if replaced:
            self.replaced.add(node)
        while len(self.fenced) > FENCED_LIMIT:
            oldest = next(iter(self.fenced))
            del self.fenced[oldest]
            self.replaced.discard(oldest)
        refusal = shut_out_as(node, self.replaced)
        self.send((node,), Refused(refusal, why, self.incarnation, self.round))

    def live(self) -> list[NodeId]:
        """Return the ids of all live nodes."""
        return [node for place in PLACES for node in getattr(self, place)]

    def is_empty(self) -> bool:
        """Return whether no node is live."""
        return not any(getattr(self, place) for place in PLACES)

    def place_of(self, node: NodeId) -> Places | None:
        """Return the mapping that holds a node, None if it is not live."""
        for place in (
            self.candidates,
            self.participants,
            self.waiting,
            self.spares,
            self.finished,
        ):
            if node in place:
                return place
        return None

    def put(self, place: Places, member: Member) -> None:
        """Add a member to one of the mappings."""
        node = member.node
        place[node.id] = member
        if place is self.finished:  # holds no slot and no rank any more
            return
        if self._slots is not None and node.slot is not None:
            self._slots[node.slot] = node.id
        if self._hints is not None and node.node_rank is not None:
            self._hints[node.node_rank] = node.id

    def take(self, node: NodeId) -> Member:
        """Remove a live node from its mapping (KeyError if there is none)."""
        member = (self.place_of(node) or {}).pop(node)
        hint, slot = member.node.node_rank, member.node.slot
        if self._slots is not None and slot is not None and self._slots.get(slot) == node:
            del self._slots[slot]
        if self._hints is not None and hint is not None and self._hints.get(hint) == node:
            del self._hints[hint]
        return member

    def holder_of_slot(self, slot: str) -> Member | None:
        """Return the active member in a slot; the index is made once a batch."""
        if self._slots is None:
            self._slots = {m.node.slot: m.node.id for m in self.active() if m.node.slot}
        return self._member(self._slots.get(slot))

    def holder_of_rank(self, hint: int) -> Member | None:
        """Return the active member that asked for a rank."""
        if self._hints is None:
            self._hints = {
                m.node.node_rank: m.node.id for m in self.active() if m.node.node_rank is not None
            }
        return self._member(self._hints.get(hint))

    def active(self) -> Iterable[Member]:
        """Yield all live nodes but the finished ones."""
        for place in (self.candidates, self.participants, self.waiting, self.spares):
            yield from place.values()

    def _member(self, node: NodeId | None) -> Member | None:
        place = None if node is None else self.place_of(node)
        return None if node is None or place is None else place[node]
