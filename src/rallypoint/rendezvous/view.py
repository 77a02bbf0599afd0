"""What a node knows of its run: the view, and the messages that change it. PURE.

`fold` says what each message means to a node. `catch_up` says which messages a node has missed,
given a state and the seat that it last knew. A server sends those to a node that reconnects; the
serverless coordinator, which sees states and no messages, folds them itself.
"""

import msgspec

from rallypoint.core import exclusion, notices
from rallypoint.core.events import (
    Assignment,
    NoticeGiven,
    Parked,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
    SettingsHeld,
    WaitingChanged,
    assignment,
    shut_out_as,
)
from rallypoint.core.state import (
    Closed,
    NodeId,
    RunState,
    Sealed,
    Verdict,
    find,
    round_number,
)


class View(msgspec.Struct, frozen=True):
    """What a node knows of its run.

    Args:
        assignment: the node's seat in the round it works in, None when in none.
        waiting: how many nodes wait for the next round.
        opened: set once the node's round is over and it should join again.
        parked: set while the node waits or is a spare.
        closed: set once the run is closed.
        fenced: why the node is shut out, None if it is not. Its `refusal` says how: FENCED, it
            was lost and returns under another id; REPLACED, another node has its slot and it
            must not return; EXCLUDED (which the core does not call fenced), it may return once it
            is admitted.
        notices: notices that a node of its round, or it itself, will leave; the oldest first.
        connected: False while the coordinator cannot be reached.
        error: the failure of the coordinator, None without one.
    """

    assignment: Assignment | None = None
    waiting: int = 0
    opened: RoundOpened | None = None
    parked: Parked | None = None
    closed: RunClosed | None = None
    fenced: Refused | None = None
    connected: bool = True
    error: BaseException | None = None
    notices: tuple[NoticeGiven, ...] = ()


class Seated(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """The node's seat in a sealed round."""

    seat: Assignment


NodeMessage = (
    Seated
    | RoundOpened
    | Parked
    | WaitingChanged
    | NoticeGiven
    | SettingsHeld
    | RunClosed
    | Refused
)
RoundId = tuple[int, int]
"""Incarnation and number of a round; (0, 0): none."""

_change = msgspec.structs.replace


def known_round(view: View) -> RoundId:
    """Return the round of the node's seat."""
    seat = view.assignment
    return (seat.incarnation, seat.round) if seat else (0, 0)


def needs_new_id(view: View) -> bool:
    """Return whether a node must ask under another id, because it was lost (rule L2)."""
    return view.fenced is not None and view.fenced.refusal is Refusal.FENCED


def fold(view: View, message: NodeMessage) -> View:
    """Return the view after a message; once the run is closed, only a new join changes it."""
    if view.closed is not None:
        return view
    match message:
        case Seated(seat):
            return View(assignment=seat, connected=view.connected)
        case RoundOpened():
            return _round_opened(view, message)
        case Parked():
            return _change(view, assignment=None, opened=None, parked=message)
        case WaitingChanged(count=count):
            return _change(view, waiting=count)
        case NoticeGiven(node=node):
            others = tuple(notice for notice in view.notices if notice.node != node)
            return _change(view, notices=(*others, message))
        case RunClosed():
            return _change(view, closed=message, parked=None, waiting=0)
        case Refused(refusal=Refusal.FENCED | Refusal.REPLACED):
            return _change(view, fenced=view.fenced or message, parked=None, waiting=0, notices=())
        case Refused(refusal=Refusal.EXCLUDED):  # its id is valid again once it is admitted
            return View(fenced=message, connected=view.connected, error=view.error)
        case Refused(refusal=Refusal.CLOSED) as r:
            verdict = r.verdict or Verdict.CLOSED
            closed = RunClosed(r.incarnation, r.round, "", "", r.why, verdict, r.failures)
            return _change(view, closed=closed, parked=None, waiting=0)
    return view  # other refusals answer a join; SettingsHeld is logged


def _round_opened(view: View, message: RoundOpened) -> View:
    if view.parked is not None:  # S1: a parked node is a candidate now
        return _change(view, parked=None, waiting=0, notices=())
    known = view.opened
    if known and (known.incarnation, known.round) == (message.incarnation, message.round):
        return view  # repeated after a reconnect; the first one names the lost nodes
    return _change(view, opened=message, waiting=0, notices=())


def catch_up(
    state: RunState,
    node: NodeId,
    known: RoundId,
    *,
    parked: bool = False,
    lost: tuple[str, ...] = (),
    unknown: str = "this node is not a member of the run any more",
) -> list[NodeMessage]:
    """Return what a node must be told to know a state.

    Args:
        state: of the run.
        node: id of the node, which has joined and has not left by itself.
        known: the round of its last seat.
        parked: whether it knows that it is parked.
        lost: labels of the nodes whose loss ended its round, if that is known.
        unknown: the reason for a node that the state does not know.
    """
    if over := _closed(state, known):
        return [over]
    if node in state.fenced or find(state, node) is None:
        return [exclusion.told(state, node) or _shut_out(state, node, unknown)]
    messages: list[NodeMessage] = []
    number = round_number(state.phase)
    if node in state.candidates:
        if parked:
            messages.append(RoundOpened(state.incarnation, number, state.opening))
    elif node in state.participants:
        seat = seat_of(state, node)
        if seat is None:
            messages.append(RoundOpened(state.incarnation, number, state.opening, lost))
        else:
            if known != (state.incarnation, number):
                messages.append(Seated(seat))
            if known == (state.incarnation, number) or state.waiting:
                messages.append(WaitingChanged(state.incarnation, number, len(state.waiting)))
    elif node not in state.finished:  # F1: a finished node does not join again
        messages.append(_parked(state, node))
    return [*messages, *notices.standing(state, node)]


def observe(view: View, state: RunState, node: NodeId, before: RunState | None) -> View:
    """Return the view of a node that sees states instead of messages.

    Args:
        view: what it knew.
        state: what it sees.
        node: its id; it has joined and has not left by itself.
        before: the state that it saw last, None if this is its first.
    """
    incarnation, number = known_round(view)
    view = _change(view, connected=True)
    for message in catch_up(
        state,
        node,
        (incarnation if before is None else before.incarnation, number),
        parked=view.parked is not None,
        lost=() if before is None else _lost_labels(before, state),
    ):
        view = fold(view, message)
    return view


def seat_of(state: RunState, node: NodeId) -> Assignment | None:
    """Return a node's seat in the sealed round of a state, None if it has none."""
    if not isinstance(state.phase, Sealed) or node not in state.participants:
        return None
    record = state.phase.record
    ranks = (seat.rank for seat in record.seats if seat.node.id == node)
    return next((assignment(record, rank) for rank in ranks), None)


def run_closed(state: RunState) -> RunClosed | None:
    """Return the message with which the run closed, None while it is open."""
    phase = state.phase
    if not isinstance(phase, Closed):
        return None
    failures = () if phase.finished else state.failures
    return RunClosed(
        state.incarnation, phase.round, phase.by, phase.at, phase.why, phase.verdict, failures
    )


def _lost_labels(before: RunState, state: RunState) -> tuple[str, ...]:
    """Return the labels of participants of a sealed round that are no members any more."""
    if not isinstance(before.phase, Sealed):
        return ()
    members = before.participants.values()
    return tuple(m.node.label for m in members if find(state, m.node.id) is None)


def _closed(state: RunState, known: RoundId) -> RunClosed | None:
    incarnation, number = known
    if incarnation in (0, state.incarnation):
        return run_closed(state)
    if incarnation > state.incarnation:  # of a run that the server has lost
        return None
    return RunClosed(
        incarnation,
        number,
        by="an unknown caller",
        at="",
        why=f"it was closed and opened again as incarnation {state.incarnation}",
        verdict=Verdict.CLOSED,
    )


def _shut_out(state: RunState, node: NodeId, unknown: str) -> Refused:
    why = state.fenced.get(node, unknown)
    refusal = shut_out_as(node, state.replaced)
    return Refused(refusal, why, state.incarnation, round_number(state.phase))


def _parked(state: RunState, node: NodeId) -> Parked:
    spare = node in state.spares
    number, settings = round_number(state.phase), state.settings
    why = f"round {number} is running; the next one has room"
    if spare and settings is not None:
        why = f"round {number} needs no more nodes (max_nodes={settings.max_nodes})"
    return Parked(state.incarnation, number, spare, why)
