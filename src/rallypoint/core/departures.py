"""How nodes leave a run: they finish, leave, are lost, are removed, or lose their connection. PURE.

A silent node is lost after `lease`, a disconnected one after `disconnect_grace` (rule L1). The
hosts measure both and send `Lost`: the server in `server/runs.py`, without a server each node in
`rendezvous/serverless/failure_detector.py`.
"""

import msgspec

from rallypoint.core import notices
from rallypoint.core.events import (
    Beat,
    Cause,
    Disconnected,
    Finish,
    Leave,
    Lost,
    Reconnected,
    Refusal,
    RejoinOver,
)
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.rounds import close_run, end_waiting, fill_waiting, open_round
from rallypoint.core.state import Closed, Gathering, Node, NodeId, Sealed, Standing, Verdict


def finish(run: MutableState, e: Finish) -> None:
    """A participant's work is done; the run closes when all have finished (F1)."""
    phase = run.phase
    if e.node in run.finished or isinstance(phase, Closed):
        return
    if e.incarnation != run.incarnation or e.node not in run.participants:
        why = f"round {e.round} is not the one this node works in"
    elif isinstance(phase, Sealed) and phase.record.number == e.round:
        label = _move_to_finished(run, e.node)
        run.phase = Sealed(phase.record, phase.done | {e.node})
        if run.participants:
            end_waiting(run)
            run.note = f"{label} has finished"
            return
        count = len(phase.record.seats)
        who = "the only node" if count == 1 else f"all {count} nodes"
        close_run(run, label, e.at, f"{who} of round {e.round} finished", Verdict.FINISHED)
        return
    elif not isinstance(phase, Sealed) and e.round == run.round - 1:
        # It finished before it was notified that the round is over.
        run.note = f"{_move_to_finished(run, e.node)} has finished and does not join again"
        return
    else:
        why = f"round {e.round} is over; this is round {run.round}"
    run.refuse(e.node, Refusal.STALE, why)


def _move_to_finished(run: MutableState, node: NodeId) -> str:
    member = run.take(node)
    notices.forget(run, node)
    run.put(run.finished, member)
    return member.node.label


def leave(run: MutableState, e: Leave) -> None:
    """A node leaves by itself (L1, L3)."""
    place = run.place_of(e.node)
    if place is not None:
        label = place[e.node].node.label
        remove(run, e.node, f"{label} left" + (f": {e.why}" if e.why else ""), lost=False)


def lost(run: MutableState, e: Lost) -> None:
    """A node's lease or disconnect grace is over; a node that was heard since stays (L1)."""
    place = run.place_of(e.node)
    if place is None or place[e.node].beats != e.beats:
        return
    if e.cause is Cause.DISCONNECT and place[e.node].connected:
        return  # it reconnected in time
    why = e.cause.value
    if e.cause is Cause.DISCONNECT and run.settings is not None:
        grace = run.settings.disconnect_grace_seconds
        why = (
            f"its connection closed and it did not reconnect within disconnect_grace ({grace:g} s)"
        )
    lose(run, place[e.node].node, why)


def lose(run: MutableState, node: Node, why: str, replaced: bool = False) -> None:
    """Remove a live node as lost, and fence its id (L1, L2, I1)."""
    run.fence(node.id, f"{node.label}: {why}", replaced)
    remove(run, node.id, f"{node.label} was lost: {why}", lost=True, replaced=replaced)


def remove(run: MutableState, node: NodeId, why: str, lost: bool, replaced: bool = False) -> None:
    """Remove a live node from its place; a participant's removal opens a new round.

    Args:
        run: to change.
        node: its id.
        why: the reason, as every node is told it.
        lost: whether the node did not leave by itself, so that failures of the same round count
            as consequences (B1).
        replaced: whether another node has taken its place already.
    """
    phase = run.phase
    worked, waited = node in run.participants, node in run.waiting
    counted = worked or node in run.candidates
    member = run.take(node)
    notices.forget(run, node)
    run.note = why
    if isinstance(phase, Sealed):
        if worked:
            open_round(run, why, lost=(member.node.label,))
        elif waited and not replaced:
            fill_waiting(run)
    elif isinstance(phase, Gathering) and counted and member.standing is Standing.MEMBER:
        forgiven = phase.charged and lost
        run.phase = msgspec.structs.replace(
            phase, lost=True, charged=phase.charged and not forgiven
        )
        if forgiven:  # B1: the workers failed because a node was lost
            run.restarts -= 1
            run.failing -= 1
            run.strikes = tuple(s for s in run.strikes if s.round != phase.round - 1)


def beat(run: MutableState, e: Beat) -> None:
    """Count a heartbeat (serverless)."""
    place = run.place_of(e.node)
    if place is not None:
        member = place[e.node]
        place[e.node] = msgspec.structs.replace(member, beats=member.beats + 1)


def disconnected(run: MutableState, e: Disconnected) -> None:
    """A connection is lost; its node may reconnect within the grace (L1)."""
    mark(run, e.node, connected=False)


def reconnected(run: MutableState, e: Reconnected) -> None:
    """A node has reconnected in time (L1)."""
    mark(run, e.node, connected=True)


def mark(run: MutableState, node: NodeId, connected: bool) -> None:
    """Set whether a live node is connected."""
    place = run.place_of(node)
    if place is not None and place[node].connected is not connected:
        place[node] = msgspec.structs.replace(place[node], connected=connected)


def rejoin_over(run: MutableState, e: RejoinOver) -> None:
    """Participants that did not join again within rejoin_timeout are lost (G1)."""
    gathering = isinstance(run.phase, Gathering) and run.round == e.round
    if gathering and e.incarnation == run.incarnation:
        for member in list(run.participants.values()):
            lose(run, member.node, f"did not join round {e.round} within rejoin_timeout")
