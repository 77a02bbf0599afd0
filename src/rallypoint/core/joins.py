"""How nodes join a run, and join again. PURE.

Whether the round can be sealed afterwards is decided in one place, `rounds.settle`.
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
from rallypoint.core.mutable_state import MutableState
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


def join(run: MutableState, e: Join) -> None:
    """A node asks for the next round (J1, J6, N1, N2, L2, C1, E1, H1, I1)."""
    node = e.node
    if why := run.fenced.get(node.id):  # L2: before anything else
        run.refuse(node.id, shut_out_as(node.id, run.replaced), why)
        return
    phase = run.phase
    if isinstance(phase, Closed) and not e.new_incarnation:
        _refuse_closed(run, node.id, phase)  # C1
        return
    if exclusion.bars(run, node):  # H1: an excluded node cannot open a closed run again either
        return
    if isinstance(phase, Closed):
        _reopen(run, phase)
    if run.place_of(node.id) is not None:
        _join_known(run, e)
    elif _welcome(run, e):
        _tell_settings(run, e)
        _join_new(run, e)


def _refuse_closed(run: MutableState, node: NodeId, phase: Closed) -> None:
    why = (
        closed_sentence(run.run_id, phase)
        + "; use a new run id, or --new-incarnation (new_incarnation) to open it again"
    )
    failures = () if phase.finished else run.failures
    refused = Refused(Refusal.CLOSED, why, run.incarnation, run.round, failures, phase.verdict)
    run.note = f"refused {node[:8]}: {why}"
    run.send((node,), refused)


def _reopen(run: MutableState, phase: Closed) -> None:
    run.incarnation += 1
    run.phase = Gathering(round=phase.round + 1)
    run.settings, run.opened_by, run.opening = None, "", ""
    run.restarts, run.failures, run.strikes = 0, (), ()


def _join_known(run: MutableState, e: Join) -> None:
    node, phase = e.node, run.phase
    mark(run, node.id, connected=True)
    if node.id in run.candidates:  # J1: idempotent
        return
    if node.id in run.finished:
        run.refuse(node.id, Refusal.STALE, "this node has finished its work in this round")
    elif node.id in run.participants:
        if not isinstance(phase, Sealed):
            _rejoin(run, node)
        elif e.after >= phase.record.number:  # N2
            open_round(run, f"{node.label} asked for a new round: {e.why or 'it joined again'}")
            _rejoin(run, node)
        else:  # E1: the answer to an earlier join was lost
            run.send((node.id,), RoundSealed(phase.record))
            if run.waiting:
                run.send((node.id,), WaitingChanged(run.incarnation, run.round, len(run.waiting)))
            notices.tell_standing(run, [node.id])
    else:
        why = "waits for the next round"
        run.send((node.id,), Parked(run.incarnation, run.round, node.id in run.spares, why))


def _rejoin(run: MutableState, node: Node) -> None:
    member = run.take(node.id)
    kept = member.node  # the port may change; slot and hint were checked when it first joined
    node = msgspec.structs.replace(node, slot=kept.slot, node_rank=kept.node_rank)
    fresh = msgspec.structs.replace(member, node=node, connected=True)
    run.put(run.candidates, standing_as(fresh, Standing.MEMBER, member.rank))
    run.note = run.note or f"{node.label} joined again"


def _welcome(run: MutableState, e: Join) -> bool:
    """Return whether a new node may join; refuse it, or open the run with its settings."""
    node, wanted = e.node, e.settings
    reopens = e.new_incarnation and e.incarnation < run.incarnation  # the one it knew has ended
    if not reopens and (e.after or e.incarnation not in (0, run.incarnation)):  # E1, L2
        known = f"incarnation {e.incarnation}, round {e.after}"
        why = f"it names {known}, in which it is no member any more"
        run.refuse(node.id, Refusal.FENCED, why)
        return False
    if run.settings is None or run.is_empty():
        run.settings, run.opened_by = wanted, node.label
        if wanted.max_restarts is not None:  # a lower budget closes no run (L3)
            run.restarts = min(run.restarts, wanted.max_restarts)
    bounds = (run.settings.min_nodes, run.settings.max_nodes)
    if bounds != (wanted.min_nodes, wanted.max_nodes):  # J6
        why = (
            f"min_nodes={wanted.min_nodes}, max_nodes={wanted.max_nodes} were asked for, but "
            f"the run was opened with min_nodes={bounds[0]}, max_nodes={bounds[1]} by "
            f"{run.opened_by}; give all nodes the same"
        )
        run.refuse(node.id, Refusal.SETTINGS, why)
        return False
    return True


def _tell_settings(run: MutableState, e: Join) -> None:
    if run.settings is not None and (why := explain.differences(run.settings, e.settings)):
        run.send((e.node.id,), SettingsHeld(f"the run was opened by {run.opened_by} with {why}"))


def _join_new(run: MutableState, e: Join) -> None:
    node = e.node
    rank: int | None = None
    standing = Standing.NEW
    same_slot = None if node.slot is None else run.holder_of_slot(node.slot)
    same_rank = None if node.node_rank is None else run.holder_of_rank(node.node_rank)
    if same_rank is not None and same_rank is not same_slot and same_rank.connected:
        why = (
            f"node_rank={node.node_rank} is taken by {same_rank.node.label}, asked for by "
            f"{node.label}; give each node another one"
        )
        run.refuse(node.id, Refusal.NODE_RANK, why)  # R1
        return
    waited = 0
    for former in ranks.by_id(m for m in (same_rank, same_slot) if m is not None).values():
        # I1: the same slot, or the rank of a disconnected node
        rank, standing = former.rank, former.standing
        waited += former.node.id in run.waiting
        lose(run, former.node, f"replaced by {node.label} in the same place", replaced=True)
    run.arrivals += 1
    member = Member(node=node, arrival=run.arrivals, rank=rank, standing=standing)
    if isinstance(run.phase, Sealed):
        park(run, member)  # waits in place of the node that it replaces
        if waited > 1:
            fill_waiting(run)
    else:
        run.put(run.candidates, member)
        run.note = run.note or f"{node.label} joined"
