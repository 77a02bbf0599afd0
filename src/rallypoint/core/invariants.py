"""What must hold in every state and over every step. PURE.

`check_state` and `check_step` return the broken invariants as sentences; tests and the
simulator run them after each step.
"""

from collections.abc import Iterable

from rallypoint.core.events import RoundSealed, Send
from rallypoint.core.exclusion import covers
from rallypoint.core.explain import goal_of
from rallypoint.core.state import (
    FENCED_LIMIT,
    PLACES,
    Closed,
    Gathering,
    LastCall,
    RunState,
    Sealed,
    round_number,
)


def check_state(state: RunState) -> list[str]:
    """Return what is wrong with one state (empty: nothing)."""
    broken: list[str] = []
    live = [node for place in PLACES for node in getattr(state, place)]
    if len(live) != len(set(live)):
        broken.append("a node is in more than one place")
    if held := set(live) & set(state.fenced):
        broken.append(f"fenced nodes hold a place: {sorted(held)}")
    for place in PLACES:
        for node, member in getattr(state, place).items():
            if member.node.id != node:
                broken.append(f"{place}[{node}] holds node {member.node.id}")
    broken += _check_places(state) + _check_kept_out(state)
    if gone := set(state.notices) - (set(live) - set(state.finished)):
        broken.append(f"notices of nodes that have gone: {sorted(gone)}")
    if isinstance(state.phase, Sealed):
        broken += _check_sealed(state, state.phase)
    return broken


def _check_places(state: RunState) -> list[str]:
    phase = state.phase
    broken = []
    if isinstance(phase, (Gathering, LastCall)) and (state.waiting or state.spares):
        broken.append("nodes wait or are spare while a round gathers")
    if isinstance(phase, Sealed) and state.candidates:
        broken.append("there are candidates in a sealed round")
    if isinstance(phase, LastCall) and state.participants:
        broken.append("a last call runs while former participants are missing")
    if isinstance(phase, Closed):
        broken += [f"closed, but {p} is not empty" for p in PLACES if getattr(state, p)]
    return broken


def _check_kept_out(state: RunState) -> list[str]:
    """H1: who is excluded has no place, but may have finished before it was."""
    active = [m for p in PLACES if p != "finished" for m in getattr(state, p).values()]
    return [
        f"{member.node.id} is excluded and has a place: {exclusion.sentence}"
        for exclusion in state.exclusions
        for member in active
        if covers(exclusion, member.node)
    ]


def _check_sealed(state: RunState, phase: Sealed) -> list[str]:
    record, settings = phase.record, state.settings
    broken = []
    if [seat.rank for seat in record.seats] != list(range(len(record.seats))):
        broken.append(f"ranks are not 0..n-1: {[seat.rank for seat in record.seats]}")
    ids = [seat.node.id for seat in record.seats]
    if len(set(ids)) != len(ids):
        broken.append("a node has two seats")
    if settings is None or not settings.min_nodes <= len(ids) <= goal_of(settings):
        broken.append(f"{len(ids)} seats are outside the bounds of {settings}")
    if not set(state.participants) <= set(ids) - phase.done:
        broken.append("a participant has no seat, or has finished")
    if len(state.participants) + len(phase.done) != len(ids):
        broken.append("a seat is neither at work nor done")
    offsets = [seat.worker_offset for seat in record.seats]
    sizes = [seat.node.local_world_size for seat in record.seats]
    if offsets != [sum(sizes[:i]) for i in range(len(sizes))] or sum(sizes) != record.world_size:
        broken.append("worker ranks do not follow the nodes' ranks")
    return broken


def check_step(before: RunState, after: RunState, messages: Iterable[Send]) -> list[str]:
    """Return what is wrong with the step from one state to the next (empty: nothing)."""
    broken = []
    old, new = round_number(before.phase), round_number(after.phase)
    if new < old:
        broken.append(f"the round number fell from {old} to {new}")
    if after.incarnation < before.incarnation:
        broken.append("the incarnation fell")
    same = after.incarnation == before.incarnation
    if isinstance(before.phase, Closed) and same and before.phase != after.phase:
        broken.append("a closed run changed")
    if isinstance(before.phase, Sealed) and isinstance(after.phase, Sealed) and old == new:
        if before.phase.record != after.phase.record:
            broken.append(f"sealed round {old} changed")
        if not before.phase.done <= after.phase.done:
            broken.append("a finished node is not finished any more")
    told = {s.message.record for s in messages if isinstance(s.message, RoundSealed)}
    for record in told:
        if not isinstance(after.phase, Sealed) or record != after.phase.record:
            here, there = (record.incarnation, record.number), (after.incarnation, new)
            if here < there or (here == there and isinstance(after.phase, Closed)):
                continue  # sealed, and over again, within one batch
            broken.append(f"nodes were told of round {record.number}, which does not stand")
    lost = set(before.fenced) - set(after.fenced)
    if lost and len(after.fenced) < FENCED_LIMIT:
        broken.append(f"fenced nodes were forgotten: {sorted(lost)}")
    return broken
