"""How nodes go from a run: they leave, are lost, are taken out, or are cut off. PURE."""

import msgspec

from rallypoint.core import notices
from rallypoint.core.events import Beat, Cause, Disconnected, Leave, Lost, Reconnected
from rallypoint.core.mutable_state import Draft
from rallypoint.core.rounds import fill_waiting, open_round
from rallypoint.core.state import Gathering, Node, NodeId, Sealed, Standing


def leave(d: Draft, e: Leave) -> None:
    """A node goes in good order (L1, L3)."""
    place = d.place_of(e.node)
    if place is not None:
        label = place[e.node].node.label
        remove(d, e.node, f"{label} left" + (f": {e.why}" if e.why else ""), lost=False)


def lost(d: Draft, e: Lost) -> None:
    """A node's lease lapsed or its grace is over; what was seen too late changes nothing (L1)."""
    place = d.place_of(e.node)
    if place is None or place[e.node].beats != e.beats:
        return
    if e.cause is Cause.DISCONNECT and place[e.node].connected:
        return  # it came back in time
    lose(d, place[e.node].node, e.cause.value)


def lose(d: Draft, node: Node, why: str, replaced: bool = False) -> None:
    """Take a live node out as lost, and fence it (L1, L2, I1)."""
    d.fence(node.id, f"{node.label}: {why}", replaced)
    remove(d, node.id, f"{node.label} was lost: {why}", lost=True, replaced=replaced)


def remove(d: Draft, node: NodeId, why: str, lost: bool, replaced: bool = False) -> None:
    """Take a live node out of wherever it is.

    Args:
        d: the run.
        node: its id.
        why: in words for everybody.
        lost: whether it went without a word, and takes failures of workers with it (B1).
        replaced: its place is filled already.
    """
    phase = d.phase
    worked, waited = node in d.participants, node in d.waiting
    counted = worked or node in d.candidates
    member = d.take(node)
    notices.forget(d, node)
    d.note = why
    if isinstance(phase, Sealed):
        if worked:
            open_round(d, why, lost=(member.node.label,))
        elif waited and not replaced:
            fill_waiting(d)
    elif isinstance(phase, Gathering) and counted and member.standing is Standing.MEMBER:
        forgiven = phase.charged and lost
        d.phase = msgspec.structs.replace(phase, lost=True, charged=phase.charged and not forgiven)
        if forgiven:  # B1: the workers failed because a node was lost
            d.restarts -= 1
            d.failing -= 1
            d.strikes = tuple(s for s in d.strikes if s.round != phase.round - 1)


def beat(d: Draft, e: Beat) -> None:
    """Count a sign of life (shared host)."""
    place = d.place_of(e.node)
    if place is not None:
        member = place[e.node]
        place[e.node] = msgspec.structs.replace(member, beats=member.beats + 1)


def disconnected(d: Draft, e: Disconnected) -> None:
    """A connection was cut; its node may come back (L1)."""
    mark(d, e.node, connected=False)


def reconnected(d: Draft, e: Reconnected) -> None:
    """The connection came back in time."""
    mark(d, e.node, connected=True)


def mark(d: Draft, node: NodeId, connected: bool) -> None:
    """Note whether a live node's connection stands."""
    place = d.place_of(node)
    if place is not None and place[node].connected is not connected:
        place[node] = msgspec.structs.replace(place[node], connected=connected)
