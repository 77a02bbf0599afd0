"""How nodes come into a run, and come again (see `going` and `working` for the rest). PURE.

Each function applies one event to the draft; whether the round can be sealed afterwards is
asked in one place, `rounds.settle`.
"""

import msgspec

from rallypoint.core import exclusion, explain, notices, ranks
from rallypoint.core.departures import lose, mark
from rallypoint.core.events import (
    Join,
    Parked,
    Refusal,
    Refused,
    RoundSealed,
    SettingsHeld,
    WaitingChanged,
    shut_out_as,
)
from rallypoint.core.explain import closed_sentence
from rallypoint.core.mutable_state import Draft
from rallypoint.core.rounds import (
    fill_waiting,
    open_round,
    park,
    standing_as,
)
from rallypoint.core.state import (
    Closed,
    Gathering,
    Member,
    Node,
    NodeId,
    Sealed,
    Standing,
)


def join(d: Draft, e: Join) -> None:
    """A node asks for the next round (J1, J6, N1, N2, L2, C1, E1, H1, I1)."""
    node = e.node
    if why := d.fenced.get(node.id):  # L2: before anything else
        d.refuse(node.id, shut_out_as(node.id, d.replaced), why)
        return
    phase = d.phase
    if isinstance(phase, Closed) and not e.new_incarnation:
        _refuse_closed(d, node.id, phase)  # C1
        return
    if exclusion.bars(d, node):  # H1: whoever is kept out opens nothing afresh either
        return
    if isinstance(phase, Closed):
        _reopen(d, phase)
    if d.place_of(node.id) is not None:
        _join_again(d, e)
    elif _welcome(d, e):
        _tell_settings(d, e)
        _join_anew(d, e)


def _refuse_closed(d: Draft, node: NodeId, phase: Closed) -> None:
    why = closed_sentence(d.run_id, phase) + "; new_incarnation (--new-incarnation) opens it afresh"
    failures = () if phase.finished else d.failures
    refused = Refused(Refusal.CLOSED, why, d.incarnation, d.round, failures, phase.verdict)
    d.note = f"refused {node[:8]}: {why}"
    d.send((node,), refused)


def _reopen(d: Draft, phase: Closed) -> None:
    d.incarnation += 1
    d.phase = Gathering(round=phase.round + 1)
    d.settings, d.opened_by, d.opening = None, "", ""
    d.restarts, d.failures, d.strikes = 0, (), ()


def _join_again(d: Draft, e: Join) -> None:
    node, phase = e.node, d.phase
    mark(d, node.id, connected=True)
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
            notices.tell_standing(d, [node.id])
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


def _tell_settings(d: Draft, e: Join) -> None:
    if d.settings is not None and (why := explain.differences(d.settings, e.settings)):
        d.send((e.node.id,), SettingsHeld(f"the run was opened by {d.opened_by} with {why}"))


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
    for former in ranks.by_id(m for m in (same_rank, same_slot) if m is not None).values():
        # I1: the same slot, or the rank of one whose connection is cut
        rank, standing = former.rank, former.standing
        waited += former.node.id in d.waiting
        lose(d, former.node, f"replaced by {node.label} in the same place", replaced=True)
    d.arrivals += 1
    member = Member(node=node, arrival=d.arrivals, rank=rank, standing=standing)
    if isinstance(d.phase, Sealed):
        park(d, member)  # waits where the one that it replaces has waited
        if waited > 1:
            fill_waiting(d)
    else:
        d.put(d.candidates, member)
        d.note = d.note or f"{node.label} joined"
