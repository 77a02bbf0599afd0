"""Nodes whose workers fail again and again are kept out for a while (rule H1). PURE.

There is no clock here: what counts is how many of the last `QUARANTINE_ROUNDS` rounds a node has
ended. Only the failure that ended the round counts, what fails after it is a consequence. As the
budget (B1), it is judged once nobody is missing: if a node turns out to have been lost, nobody is
to blame.
"""

from rallypoint.core import exclusion
from rallypoint.core.annotations import Aspect, Strike
from rallypoint.core.events import Exclude
from rallypoint.core.mutable_state import Draft
from rallypoint.core.rounds import everybody_is_here, is_spent, last_failure
from rallypoint.core.state import QUARANTINE_ROUNDS, Gathering, Node

BY = "quarantine"


def strike(d: Draft, node: Node, number: int) -> None:
    """A node's worker has ended a round."""
    recent = [s for s in d.strikes if s.round > number - QUARANTINE_ROUNDS]
    d.strikes = (*recent, Strike(*_place(d, node), number))


def judge(d: Draft) -> bool:
    """Exclude the node that has ended the round before, if it has ended too many (H1).

    Returns:
        Whether a node was excluded.
    """
    phase, settings = d.phase, d.settings
    if settings is None or not settings.quarantine_failures or not d.strikes:
        return False
    if not isinstance(phase, Gathering) or not phase.charged or is_spent(d, settings):
        return False
    last = d.strikes[-1]
    count = sum((s.aspect, s.name) == (last.aspect, last.name) for s in d.strikes)
    if last.round != phase.round - 1 or count < settings.quarantine_failures:
        return False
    if not everybody_is_here(d):
        return False
    failure = last_failure(d)
    why = (
        f"its workers have ended {count} of the last {QUARANTINE_ROUNDS} rounds "
        f"(quarantine_failures={settings.quarantine_failures}), the last one by {failure.label}"
    )
    d.strikes = tuple(s for s in d.strikes if (s.aspect, s.name) != (last.aspect, last.name))
    seconds = settings.quarantine_seconds
    exclusion.exclude(d, Exclude(last.aspect, last.name, why, BY, seconds, failure.at))
    return True


def _place(d: Draft, node: Node) -> tuple[Aspect, str]:
    """Return by what a node is known when its process is another one."""
    if node.slot is not None:
        return Aspect.SLOT, node.slot
    alone = sum(member.node.address == node.address for member in d.active()) == 1
    return (Aspect.ADDRESS, node.address) if alone else (Aspect.NODE, node.id)
