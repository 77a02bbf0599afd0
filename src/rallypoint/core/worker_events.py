"""What participants say of their work: it is done, or a worker failed. PURE."""

import msgspec

from rallypoint.core import notices, quarantine
from rallypoint.core.events import Fail, Finish, Refusal
from rallypoint.core.mutable_state import Draft
from rallypoint.core.rounds import close_run, end_waiting, open_round
from rallypoint.core.state import (
    FAILURES_LIMIT,
    Closed,
    Gathering,
    Sealed,
    Verdict,
)


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
        notices.forget(d, e.node)
        d.put(d.finished, member)
        d.phase = Sealed(phase.record, phase.done | {e.node})
        if d.participants:
            end_waiting(d)
            d.note = f"{member.node.label} has finished"
        else:
            count = len(phase.record.seats)
            who = "the only node" if count == 1 else f"all {count} nodes"
            why = f"{who} of round {e.round} finished"
            close_run(d, member.node.label, e.at, why, Verdict.FINISHED)
    elif not isinstance(phase, Sealed) and e.round == d.round - 1:
        member = d.take(e.node)  # it was done before it heard that the round is over
        notices.forget(d, e.node)
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
        d.failures = (*(d.failures[:1] if d.failing else ()), failure)  # the first of its row stays
        d.restarts += 1
        quarantine.strike(d, d.participants[e.node].node, e.round)
        open_round(d, f"a worker failed: {failure.label}", charged=True)
    elif isinstance(phase, Gathering) and e.round == phase.round - 1:
        if all(known.round != e.round for known in d.failures):
            d.failures = ()  # those are of an older round, and of a row that is over
        if failure not in d.failures:  # a consequence, most likely
            d.failures = (*d.failures, failure)[:FAILURES_LIMIT]
