"""Excluding nodes from a run, and admitting them again (rule H1). PURE.

An exclusion names nodes by id, host name or label, by address, or by slot. It removes live nodes
and refuses later ones. It is part of the state, outlives incarnations, and ends by an `Admit`, by
its timer, or never. An excluded node is not fenced: its id is valid again once it is admitted.
"""

from rallypoint.core.departures import remove
from rallypoint.core.events import Admit, Exclude, ExclusionOver, Refusal, Refused
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.state import (
    EXCLUSIONS_LIMIT,
    NO_REASON,
    Aspect,
    Exclusion,
    Member,
    Node,
    NodeId,
    RunState,
    round_number,
)


def selects(aspect: Aspect, name: str, node: Node) -> bool:
    """Return whether a name is that of a node."""
    if aspect is Aspect.ADDRESS:
        return node.address == name
    if aspect is Aspect.SLOT:
        return node.slot == name
    return name in (node.id, node.host, node.label)


def exclude(run: MutableState, e: Exclude) -> None:
    """Exclude nodes; live ones are removed and told why (H1)."""
    hit = [member for member in run.active() if selects(e.aspect, e.name, member.node)]
    standing = [x for x in run.exclusions if not _is_same(x, e)]
    former = [x for x in run.exclusions if _is_same(x, e)]
    nodes = [node for x in former for node in x.nodes] + [member.node.id for member in hit]
    slots = [slot for x in former for slot in x.slots]
    if e.aspect is Aspect.NODE:  # to people, a new process in the same slot is the same node
        slots += [member.node.slot for member in hit if member.node.slot is not None]
    run.exclusion_count += 1
    exclusion = Exclusion(
        run.exclusion_count,
        e.aspect,
        e.name,
        e.why or NO_REASON,
        e.by,
        e.at,
        e.seconds,
        tuple(dict.fromkeys(nodes)),
        tuple(dict.fromkeys(slots)),
    )
    run.exclusions = (*standing, exclusion)[-EXCLUSIONS_LIMIT:]
    run.note = exclusion.sentence
    for member in hit:
        _remove(run, member, exclusion)


def admit(run: MutableState, e: Admit) -> None:
    """End an exclusion; its nodes may join again (H1)."""
    for exclusion in run.exclusions:
        if _is_same(exclusion, e):
            _end(run, exclusion, f"{e.aspect} {e.name} is admitted again by {e.by}")


def over(run: MutableState, e: ExclusionOver) -> None:
    """The time of an exclusion is over (H1)."""
    for exclusion in run.exclusions:
        if exclusion.number == e.number:
            _end(run, exclusion, f"the exclusion of {exclusion.aspect} {exclusion.name} is over")


def bars(run: MutableState, node: Node) -> bool:
    """Return whether a node that asks to join is excluded, and refuse it (H1)."""
    found = next((x for x in run.exclusions if covers(x, node)), None)
    if found is None:
        return False
    place = run.place_of(node.id)
    if place is None or place is run.finished:
        run.refuse(node.id, Refusal.EXCLUDED, found.sentence)
    else:  # it has moved to an excluded address
        _remove(run, place[node.id], found)
    return True


def told(state: RunState, node: NodeId) -> Refused | None:
    """Return the message with which a node was excluded, None if it is not."""
    for exclusion in state.exclusions:
        if node in exclusion.nodes:
            number = round_number(state.phase)
            return Refused(Refusal.EXCLUDED, exclusion.sentence, state.incarnation, number)
    return None


def _is_same(exclusion: Exclusion, other: Exclude | Admit) -> bool:
    return (exclusion.aspect, exclusion.name) == (other.aspect, other.name)


def covers(exclusion: Exclusion, node: Node) -> bool:
    """Return whether an exclusion applies to a node."""
    meant = selects(exclusion.aspect, exclusion.name, node)
    return meant or node.id in exclusion.nodes or node.slot in exclusion.slots


def _remove(run: MutableState, member: Member, exclusion: Exclusion) -> None:
    node = member.node
    run.send((node.id,), Refused(Refusal.EXCLUDED, exclusion.sentence, run.incarnation, run.round))
    remove(
        run, node.id, f"{node.label} was excluded by {exclusion.by}: {exclusion.why}", lost=False
    )


def _end(run: MutableState, exclusion: Exclusion, note: str) -> None:
    run.exclusions = tuple(x for x in run.exclusions if x is not exclusion)
    run.note = note
