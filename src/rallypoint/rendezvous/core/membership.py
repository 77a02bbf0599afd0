"""What nodes do to a run: join, leave, get lost, finish, fail. PURE.

Each function applies one event to the draft; whether the round can be sealed afterwards is
asked in one place, `rounds.settle`.
"""

import msgspec

from rallypoint.rendezvous.core.draft import Draft
from rallypoint.rendezvous.core.events import (
    Beat,
    Cause,
    Disconnected,
    Fail,
    Finish,
    Join,
    Leave,
    Lost,
    Parked,
    Reconnected,
    Refusal,
    Refused,
    RoundSealed,
    WaitingChanged,
)
from rallypoint.rendezvous.core.explain import closed_sentence
from rallypoint.rendezvous.core.rounds import (
    close_run,
    end_waiting,
    fill_waiting,
    open_round,
    park,
    standing_as,
)
from rallypoint.rendezvous.core.state import (
    FAILURES_LIMIT,
    Closed,
    Gathering,
    Member,
    Node,
    NodeId,
    Sealed,
    Standing,
)

# -- joining ------------------------------------------------------------------------------


def join(d: Draft, e: Join) -> None:
    """A node asks for the next round (J1, J6, N1, N2, L2, C1, E1, I1)."""
    node = e.node
    if why := d.fenced.get(node.id):  # L2: before anything else
        d.refuse(node.id, Refusal.FENCED, why)
        return
    if isinstance(d.phase, Closed):
        if not e.new_incarnation:
            _refuse_closed(d, node.id, d.phase)  # C1
            return
        _reopen(d, d.phase)
    if d.place_of(node.id) is not None:
        _join_again(d, e)
    elif _welcome(d, e):
        _join_anew(d, e)


def _refuse_closed(d: Draft, node: NodeId, phase: Closed) -> None:
    why = closed_sentence(d.run_id, phase) + "; new_incarnation opens it afresh"
    failures = () if phase.finished else d.failures
    refused = Refused(Refusal.CLOSED, why, d.incarnation, d.round, failures, phase.finished)
    d.note = f"refused {node[:8]}: {why}"
    d.send((node,), refused)


def _reopen(d: Draft, phase: Closed) -> None:
    d.incarnation += 1
    d.phase = Gathering(round=phase.round + 1)
    d.settings, d.opened_by, d.opening = None, "", ""
    d.restarts, d.failures = 0, ()


def _join_again(d: Draft, e: Join) -> None:
    node, phase = e.node, d.phase
    _mark(d, node.id, connected=True)
    if node.id in d.candidates:  # J1: idempotent
        return
    if node.id in d.finished:
        d.refuse(node.id, Refusal.STALE, "this node has finished its work in this round")
    elif node.id in d.participants:
        if not isinstance(phase, Sealed):
            _rejoin(d, node)
        elif e.after >= phase.record.number:  # N2
            open_round(d, f"{node.label} asked for a new round: {e.why or 'it joined again'}")
            _rejoin(d, node)
        else:  # E1: the answer to an earlier join was lost
            d.send((node.id,), RoundSealed(phase.record))
            if d.waiting:
                d.send((node.id,), WaitingChanged(d.incarnation, d.round, len(d.waiting)))
    else:
        why = "waits for the next round"
        d.send((node.id,), Parked(d.incarnation, d.round, node.id in d.spares, why))


def _rejoin(d: Draft, node: Node) -> None:
    member = d.take(node.id)
    kept = member.node  # a new port is welcome; slot and hint were checked when it came
    node = msgspec.structs.replace(node, slot=kept.slot, node_rank=kept.node_rank)
    fresh = msgspec.structs.replace(member, node=node, connected=True)
    d.put(d.candidates, standing_as(fresh, Standing.MEMBER, member.rank))
    d.note = d.note or f"{node.label} joined again"


def _welcome(d: Draft, e: Join) -> bool:
    """Check what a newcomer asks for; refuse it by name, or open the run with it."""
    node, wanted = e.node, e.settings
    afresh = e.new_incarnation and e.incarnation < d.incarnation  # what it knew has ended
    if not afresh and (e.after or e.incarnation not in (0, d.incarnation)):  # E1, L2
        known = f"incarnation {e.incarnation}, round {e.after}"
        why = f"it speaks of {known}, in which it is not known here any more"
        d.refuse(node.id, Refusal.FENCED, why)
        return False
    if d.settings is None or d.is_empty():
        d.settings, d.opened_by = wanted, node.label
        if wanted.max_restarts is not None:  # a lower budget closes nothing by itself (L3)
            d.restarts = min(d.restarts, wanted.max_restarts)
    bounds = (d.settings.min_nodes, d.settings.max_nodes)
    if bounds != (wanted.min_nodes, wanted.max_nodes):  # J6
        why = (
            f"min_nodes={wanted.min_nodes}, max_nodes={wanted.max_nodes} were asked for, but "
            f"the run was opened with min_nodes={bounds[0]}, max_nodes={bounds[1]} by "
            f"{d.opened_by}; give all nodes the same"
        )
        d.refuse(node.id, Refusal.SETTINGS, why)
        return False
    return True


def _join_anew(d: Draft, e: Join) -> None:
    node = e.node
    rank: int | None = None
    standing = Standing.NEW
    same_slot = None if node.slot is None else d.holder_of_slot(node.slot)
    same_rank = None if node.node_rank is None else d.holder_of_rank(node.node_rank)
    if same_rank is not None and same_rank is not same_slot and same_rank.connected:
        why = (
            f"node_rank={node.node_rank} is taken by {same_rank.node.label}, asked for by "
            f"{node.label}; give each node another one"
        )
        d.refuse(node.id, Refusal.NODE_RANK, why)  # R1
        return
    waited = 0
    for former in (same_rank, same_slot):
        if former is not None:  # I1: the same slot, or the rank of one whose connection is cut
            rank, standing = former.rank, former.standing
            waited += former.node.id in d.waiting
            lose(d, former.node.id, f"replaced by {node.label} in the same place", replaced=True)
    d.arrivals += 1
    member = Member(node=node, arrival=d.arrivals, rank=rank, standing=standing)
    if isinstance(d.phase, Sealed):
        park(d, member)  # waits where the one that it replaces has waited
        if waited > 1:
            fill_waiting(d)
    else:
        d.put(d.candidates, member)
        d.note = d.note or f"{node.label} joined"


# -- going --------------------------------------------------------------------------------


def leave(d: Draft, e: Leave) -> None:
    """A node goes in good order (L1, L3)."""
    place = d.place_of(e.node)
    if place is not None:
        label = place[e.node].node.label
        _remove(d, e.node, f"{label} left" + (f": {e.why}" if e.why else ""), lost=False)


def lost(d: Draft, e: Lost) -> None:
    """A node's lease lapsed or its grace is over; what was seen too late changes nothing (L1)."""
    place = d.place_of(e.node)
    if place is None or place[e.node].beats != e.beats:
        return
    if e.cause is Cause.DISCONNECT and place[e.node].connected:
        return  # it came back in time
    lose(d, e.node, e.cause.value)


def lose(d: Draft, node: NodeId, why: str, replaced: bool = False) -> None:
    """Take a node out as lost, and fence it (L1, L2)."""
    place = d.place_of(node)
    if place is not None:
        label = place[node].node.label
        d.fence(node, f"{label}: {why}")
        _remove(d, node, f"{label} was lost: {why}", lost=True, replaced=replaced)


def _remove(d: Draft, node: NodeId, why: str, lost: bool, replaced: bool = False) -> None:
    phase = d.phase
    worked, waited = node in d.participants, node in d.waiting
    counted = worked or node in d.candidates
    member = d.take(node)
    d.note = why
    if isinstance(phase, Sealed):
        if worked:
            open_round(d, why, lost=(member.node.label,))
        elif waited and not replaced:
            fill_waiting(d)
    elif isinstance(phase, Gathering) and counted and member.standing is Standing.MEMBER:
        d.phase = msgspec.structs.replace(phase, lost=True, charged=phase.charged and not lost)
        d.restarts -= phase.charged and lost  # B1: the workers failed because a node was lost


# -- working ------------------------------------------------------------------------------


def finish(d: Draft, e: Finish) -> None:
    """A participant's work is done; the run closes when all have finished (F1)."""
    phase = d.phase
    if e.node in d.finished or isinstance(phase, Closed):
        return
    if e.incarnation != d.incarnation or e.node not in d.participants:
        d.refuse(e.node, Refusal.STALE, f"round {e.round} is not the one this node works in")
        return
    if isinstance(phase, Sealed) and phase.record.number == e.round:
        member = d.take(e.node)
        d.put(d.finished, member)
        d.phase = Sealed(phase.record, phase.done | {e.node})
        if d.participants:
            end_waiting(d)
            d.note = f"{member.node.label} has finished"
        else:
            why = f"all {len(phase.record.seats)} nodes of round {e.round} finished"
            close_run(d, member.node.label, e.at, why, finished=True)
    elif not isinstance(phase, Sealed) and e.round == d.round - 1:
        member = d.take(e.node)  # it was done before it heard that the round is over
        d.put(d.finished, member)
        d.note = f"{member.node.label} has finished and does not join again"
    else:
        d.refuse(e.node, Refusal.STALE, f"round {e.round} is over; this is round {d.round}")


def fail(d: Draft, e: Fail) -> None:
    """A participant's worker failed: a new round opens, at the budget's expense (B1, N2)."""
    phase = d.phase
    if e.incarnation != d.incarnation or e.node not in d.participants:
        return
    failure = msgspec.structs.replace(e.failure, round=e.round)
    if isinstance(phase, Sealed) and phase.record.number == e.round:
        d.failures = (failure,)
        d.restarts += 1
        open_round(d, f"a worker failed: {failure.label}", charged=True)
    elif isinstance(phase, Gathering) and e.round == phase.round - 1:
        if not d.failures or d.failures[0].round != e.round:
            d.failures = ()  # those are of an older round
        if failure not in d.failures:  # a consequence, most likely
            d.failures = (*d.failures, failure)[:FAILURES_LIMIT]


def beat(d: Draft, e: Beat) -> None:
    """Count a sign of life (shared host)."""
    place = d.place_of(e.node)
    if place is not None:
        member = place[e.node]
        place[e.node] = msgspec.structs.replace(member, beats=member.beats + 1)


def disconnected(d: Draft, e: Disconnected) -> None:
    """A connection was cut; its node may come back (L1)."""
    _mark(d, e.node, connected=False)


def reconnected(d: Draft, e: Reconnected) -> None:
    """The connection came back in time."""
    _mark(d, e.node, connected=True)


def _mark(d: Draft, node: NodeId, connected: bool) -> None:
    place = d.place_of(node)
    if place is not None and place[node].connected is not connected:
        place[node] = msgspec.structs.replace(place[node], connected=connected)
