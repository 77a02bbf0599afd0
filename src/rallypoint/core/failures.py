"""Workers that fail: the failure budget (rule B1), and quarantine (rule H1). PURE.

A failure opens a round at the expense of the budget. Whether the budget is spent, and whether a
node is to be excluded, is judged once nobody is missing: workers also fail because a node was
lost, and that may be known only a lease later (`departures.remove` then takes the charge back).

Quarantine has no clock: what counts is how many of the last `QUARANTINE_ROUNDS` rounds a node has
ended. Only the failure that ended a round counts; later ones are its consequences.
"""

import msgspec

from rallypoint.core import exclusion
from rallypoint.core.events import Exclude, Fail, SteadyOver
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.rounds import is_spent, last_failure, nobody_is_missing, open_round
from rallypoint.core.state import (
    FAILURES_LIMIT,
    QUARANTINE_ROUNDS,
    Aspect,
    Gathering,
    Node,
    Sealed,
    Strike,
)

BY = "quarantine"


def fail(run: MutableState, e: Fail) -> None:
    """A participant's worker failed: a new round opens, at the budget's expense (B1, N2)."""
    phase = run.phase
    if e.incarnation != run.incarnation or e.node not in run.participants:
        return
    failure = msgspec.structs.replace(e.failure, round=e.round)
    if isinstance(phase, Sealed) and phase.record.number == e.round:
        # The first failure of the current streak of failing rounds stays.
        run.failures = (*(run.failures[:1] if run.failing else ()), failure)
        run.restarts += 1
        _strike(run, run.participants[e.node].node, e.round)
        open_round(run, f"a worker failed: {failure.label}", charged=True)
    elif isinstance(phase, Gathering) and e.round == phase.round - 1:
        if all(known.round != e.round for known in run.failures):
            run.failures = ()  # those are of an older round, and of a streak that is over
        if failure not in run.failures:  # a consequence, most likely
            run.failures = (*run.failures, failure)[:FAILURES_LIMIT]


def steady_over(run: MutableState, e: SteadyOver) -> None:
    """A round has worked for `steady_after`: the next failure counts as the first again (B1)."""
    phase = run.phase
    current = isinstance(phase, Sealed) and phase.record.number == e.round
    if current and e.incarnation == run.incarnation and run.failing:
        run.note = f"round {e.round} works steadily"
        run.failing = 0


def _strike(run: MutableState, node: Node, number: int) -> None:
    """A node's worker has ended a round."""
    recent = [s for s in run.strikes if s.round > number - QUARANTINE_ROUNDS]
    run.strikes = (*recent, Strike(*_known_by(run, node), number))


def quarantine_if_due(run: MutableState) -> bool:
    """Exclude the node that has ended the round before, if it has ended too many (H1).

    Returns:
        Whether a node was excluded.
    """
    phase, settings = run.phase, run.settings
    if settings is None or not settings.quarantine_failures or not run.strikes:
        return False
    if not isinstance(phase, Gathering) or not phase.charged or is_spent(run, settings):
        return False
    last = run.strikes[-1]
    count = sum((s.aspect, s.name) == (last.aspect, last.name) for s in run.strikes)
    if last.round != phase.round - 1 or count < settings.quarantine_failures:
        return False
    if not nobody_is_missing(run):
        return False
    failure = last_failure(run)
    why = (
        f"its workers have ended {count} of the last {QUARANTINE_ROUNDS} rounds "
        f"(quarantine_failures={settings.quarantine_failures}), the last one by {failure.label}"
    )
    run.strikes = tuple(s for s in run.strikes if (s.aspect, s.name) != (last.aspect, last.name))
    seconds = settings.quarantine_time_seconds
    exclusion.exclude(run, Exclude(last.aspect, last.name, why, BY, seconds, failure.at))
    return True


def _known_by(run: MutableState, node: Node) -> tuple[Aspect, str]:
    """Return by what a node is known when its process is another one."""
    if node.slot is not None:
        return Aspect.SLOT, node.slot
    alone = sum(member.node.address == node.address for member in run.active()) == 1
    return (Aspect.ADDRESS, node.address) if alone else (Aspect.NODE, node.id)
