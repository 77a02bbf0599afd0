"""Notices: a node will leave, and all who work with it may save before it does. PURE.

A notice changes no round: the workers go on, save at the step that they agree on, and then the
node leaves in good order (L1). It stands until the node has gone or the round is over; whoever
joins the round or resumes is told of those that stand. Of two notices of a node the sooner holds.
"""

from collections.abc import Collection

from rallypoint.core.events import NoticeGiven, Notify
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.state import NodeId, Notice, RunState, round_number

UNSAID = "it was asked to"


def notify(run: MutableState, e: Notify) -> None:
    """A live node will leave (P1); a later word holds only if it leaves less time."""
    place = run.place_of(e.node)
    if place is None or place is run.finished:
        return
    label = place[e.node].node.label
    notice = Notice(e.node, label, e.why or UNSAID, e.by or label, e.seconds)
    known = run.notices.get(e.node)
    if known is not None and not _is_sooner(notice, known):
        run.note = f"not sooner than the notice that stands: {known.sentence}"
        return  # whose seconds run already
    run.notices = {**run.notices, e.node: notice}
    run.note = notice.sentence
    works = place is run.participants or place is run.candidates
    peers = [*run.participants, *run.candidates] if works else [e.node]
    run.send(peers, _given(notice, run.incarnation, run.round))


def _is_sooner(notice: Notice, known: Notice) -> bool:
    if notice.seconds is None:
        return False
    return known.seconds is None or notice.seconds < known.seconds


def tell_standing(run: MutableState, to: Collection[NodeId]) -> None:
    """Tell nodes that join a round of the notices that stand (P1)."""
    for notice in run.notices.values():
        if notice.node in run.participants:
            run.send(to, _given(notice, run.incarnation, run.round))


def forget(run: MutableState, node: NodeId) -> None:
    """A node has gone, and its notice with it."""
    if node in run.notices:
        run.notices = {other: notice for other, notice in run.notices.items() if other != node}


def standing(state: RunState, node: NodeId) -> tuple[NoticeGiven, ...]:
    """Return what a live node has been told of the notices that stand."""
    works = _works(state, node)
    return tuple(
        _given(notice, state.incarnation, round_number(state.phase))
        for notice in state.notices.values()
        if notice.node == node or (works and _works(state, notice.node))
    )


def _works(state: RunState, node: NodeId) -> bool:
    return node in state.participants or node in state.candidates


def _given(notice: Notice, incarnation: int, number: int) -> NoticeGiven:
    return NoticeGiven(
        incarnation,
        number,
        notice.node,
        notice.label,
        notice.why,
        notice.by,
        notice.seconds,
    )
