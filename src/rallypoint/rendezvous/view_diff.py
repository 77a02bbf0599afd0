"""What one node sees in a state: the shared host's stand-in for messages. PURE.

A hosted node is sent messages. A node of the shared host only sees states, some of which
it misses, written by others; what it would have been told has to follow from the state it
knew before and the state it sees now. The same rules (L1, L2, F1, N1) as in the core's
messages, read from the other end.
"""

import msgspec

from rallypoint.core import exclusion, notices
from rallypoint.core.events import (
    Assignment,
    Parked,
    Refused,
    RoundOpened,
    RunClosed,
    assignment,
    shut_out_as,
)
from rallypoint.core.state import (
    Closed,
    NodeId,
    Sealed,
    State,
    Verdict,
    find,
    round_number,
)
from rallypoint.rendezvous.coordinator import View


def view_of(previous: View, state: State, node: NodeId, before: State | None = None) -> View:
    """Return what a member sees in a state.

    Args:
        previous: what it saw last.
        state: the state now.
        node: its id; it has joined and has not left by itself.
        before: the state it saw last, None if this is its first.
    """
    told = notices.standing(state, node)
    seen = msgspec.structs.replace(previous, connected=True, notices=told)
    if closed := _closed(seen, state, before):
        return msgspec.structs.replace(seen, closed=closed, opened=None, parked=None, waiting=0)
    if node in state.fenced or find(state, node) is None:
        if kept_out := exclusion.told(state, node):
            return View(fenced=kept_out, error=seen.error)
        fenced = seen.fenced or shut_out(state, node)
        return msgspec.structs.replace(seen, fenced=fenced, parked=None, waiting=0)
    if node in state.finished:  # rule F1: it will not join again, whatever happens
        return msgspec.structs.replace(seen, opened=None, parked=None, waiting=0)
    if node in state.candidates:
        return msgspec.structs.replace(seen, assignment=None, opened=None, parked=None, waiting=0)
    if node in state.participants:
        return _working(seen, state, node, before)
    return _parked(seen, state, node)


def seat_of(state: State, node: NodeId) -> Assignment | None:
    """Return a node's seat in the sealed round of a state, None if it has none."""
    if not isinstance(state.phase, Sealed) or node not in state.participants:
        return None
    record = state.phase.record
    ranks = (seat.rank for seat in record.seats if seat.node.id == node)
    return next((assignment(record, rank) for rank in ranks), None)


def run_closed(state: State) -> RunClosed | None:
    """Return what everyone was told when the run closed, None while it is open."""
    phase = state.phase
    if not isinstance(phase, Closed):
        return None
    failures = () if phase.finished else state.failures
    return RunClosed(
        state.incarnation,
        phase.round,
        phase.by,
        phase.at,
        phase.why,
        phase.verdict,
        failures,
    )


def shut_out(
    state: State, node: NodeId, unknown: str = "this node is not a member of the run any more"
) -> Refused:
    """Return what a node that is no member was told: why it was fenced, or that it is `unknown`."""
    refusal = shut_out_as(node, state.replaced)
    why = state.fenced.get(node, unknown)
    return Refused(refusal, why, state.incarnation, round_number(state.phase))


def _closed(seen: View, state: State, before: State | None) -> RunClosed | None:
    if seen.closed is not None or before is None or before.incarnation == state.incarnation:
        return seen.closed or run_closed(state)
    # The end of our incarnation was never seen: someone has opened the next one since.
    return RunClosed(
        incarnation=before.incarnation,
        round=round_number(before.phase),
        by="someone unknown",
        at="",
        why=f"it was closed and opened afresh as incarnation {state.incarnation}",
        verdict=Verdict.CLOSED,
    )


def _working(seen: View, state: State, node: NodeId, before: State | None) -> View:
    if seat := seat_of(state, node):
        return msgspec.structs.replace(
            seen, assignment=seat, opened=None, parked=None, waiting=len(state.waiting)
        )
    number = round_number(state.phase)
    opened = seen.opened
    if opened is None or (opened.incarnation, opened.round) != (state.incarnation, number):
        opened = RoundOpened(state.incarnation, number, state.opening, _lost(state, before))
    return msgspec.structs.replace(seen, opened=opened, parked=None, waiting=len(state.candidates))


def _lost(state: State, before: State | None) -> tuple[str, ...]:
    """Return the labels of those who worked with us and are gone."""
    if before is None or not isinstance(before.phase, Sealed):
        return ()
    members = before.participants.values()
    return tuple(m.node.label for m in members if find(state, m.node.id) is None)


def _parked(seen: View, state: State, node: NodeId) -> View:
    spare = node in state.spares
    number, settings = round_number(state.phase), state.settings
    why = f"round {number} is at work; the next one has room"
    if spare and settings is not None:
        why = f"round {number} needs no more nodes (max_nodes={settings.max_nodes})"
    parked = Parked(state.incarnation, number, spare, why)
    return msgspec.structs.replace(seen, assignment=None, opened=None, parked=parked, waiting=0)
