"""Notices: a node will leave, and the others may save before it does (rule P1). PURE.

A notice changes no round: the workers go on, save at a step that they agree on, and then the node
leaves (L1). It holds until the node has left or the round is over. Nodes that join the round or
reconnect are told of it. Of two notices of a node the sooner one holds.
"""

from collections.abc import Collection

from rallypoint.core.events import NoticeGiven, Notify
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.state import NodeId, Notice, RunState, round_number

UNSAID = "it was asked to"


def notify(run: MutableState, e: Notify) -> None:
    """A live node will leave (P1); a second notice holds only if it leaves less time."""
    place = run.place_of(e.node)
    if place is None or place is run.finished:
        return
    label = place[e.node].node.label
    notice = Notice(e.node, label, e.why or UNSAID, e.by or label, e.seconds)
    known = run.notices.get(e.node)
    if known is not None and not _is_sooner(notice, known):
        run.note = f"not sooner than the notice that stands: {known.sentence}"
        return  # whose time runs already
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
    """Tell nodes that join a round of the notices in force (P1)."""
    for notice in run.notices.values():
        if notice.node in run.participants:
            run.send(to, _given(notice, run.incarnation, run.round))


def forget(run: MutableState, node: NodeId) -> None:
    """Remove the notice of a node that has left."""
    if node in run.notices:
        run.notices = {other: notice for other, notice in run.notices.items() if other != node}


def standing(state: RunState, node: NodeId) -> tuple[NoticeGiven, ...]:
    """Return the notices in force that a live node has been told."""
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
