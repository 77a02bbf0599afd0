"""How rounds open, seal and end: each phase has one function that enters it. PURE."""

from rallypoint.core import notices, ranks
from rallypoint.core.events import (
    Parked,
    RoundOpened,
    RoundSealed,
    RunClosed,
    WaitingChanged,
)
from rallypoint.core.explain import goal_of, nodes
from rallypoint.core.mutable_state import Draft
from rallypoint.core.state import (
    Closed,
    Failure,
    Gathering,
    LastCall,
    Member,
    Sealed,
    Settings,
    Standing,
    Verdict,
)


def open_round(d: Draft, why: str, lost: tuple[str, ...] = (), *, charged: bool = False) -> None:
    """Enter Gathering(n+1) from Sealed(n); everybody is told why, and who was lost (L1, N2)."""
    former = len(d.participants) + len(lost)
    d.phase = Gathering(d.round + 1, lost=bool(lost), former=former, charged=charged)
    d.opening = why
    d.notices = {}  # P1: who will leave need not join again
    d.failing = d.failing + 1 if charged else 0
    d.note = f"round {d.round} opens: {why}"
    to = [*d.participants, *d.waiting, *d.spares]
    for place, standing in ((d.waiting, Standing.WAITING), (d.spares, Standing.NEW)):
        for member in list(place.values()):  # S1: they need not ask again
            del place[member.node.id]
            d.candidates[member.node.id] = standing_as(member, standing, None)
    d.send(to, RoundOpened(d.incarnation, d.round, why, lost))


def standing_as(member: Member, standing: Standing, rank: int | None) -> Member:
    """Return the member with another claim to a seat."""
    return Member(
        node=member.node,
        arrival=member.arrival,
        rank=rank,
        standing=standing,
        beats=member.beats,
        connected=member.connected,
    )


def settle(d: Draft) -> None:
    """Seal the round, or move between Gathering and LastCall, as the candidates allow."""
    phase, settings = d.phase, d.settings
    if settings is None or not isinstance(phase, (Gathering, LastCall)):
        return
    if is_spent(d, settings) and everybody_is_here(d):
        _close_spent(d, settings)
        return
    have = len(d.candidates)
    if have < settings.min_nodes or d.participants:  # J2: fell below min; G1, S2: seats are held
        if isinstance(phase, LastCall):
            d.phase = Gathering(round=phase.round)
        return
    goal = goal_of(settings)
    if have >= goal:
        came = "the only node wanted has come"
        seal(d, came if goal == 1 else f"{goal} of the {goal} nodes wanted have come")  # J3
    elif isinstance(phase, LastCall):
        if phase.over:
            seal(d, f"the last call is over with {have} of up to {goal} nodes")  # J4
    else:
        _settle_gathering(d, phase, settings)


def is_spent(d: Draft, settings: Settings) -> bool:
    """Return whether failures have passed the budget (B1)."""
    return settings.max_restarts is not None and d.restarts > settings.max_restarts


def everybody_is_here(d: Draft) -> bool:
    """Return whether nobody of the round before is missing (B1, H1).

    What failures mean is judged then, not when they are told: workers also fail because a node
    was lost, and that may be known only a lease later.
    """
    return not d.participants and _all_connected(d)


def _close_spent(d: Draft, settings: Settings) -> None:
    budget = d.restarts = settings.max_restarts or 0
    last, first = last_failure(d), d.failures[0]
    why = f"a worker failed and max_restarts={budget} is used up: {last.label}"
    if first is not last:
        why += (
            f"; the first of {d.failing} such rounds in a row, round {first.round}: {first.label}"
        )
    close_run(d, last.node, last.at, why, Verdict.BUDGET)


def last_failure(d: Draft) -> Failure:
    """Return the failure that has opened the present round (B1)."""
    return next(failure for failure in d.failures if failure.round == d.round - 1)


def _all_connected(d: Draft) -> bool:
    return all(member.connected for member in d.candidates.values())


def _settle_gathering(d: Draft, phase: Gathering, settings: Settings) -> None:
    returning = any(m.standing is Standing.MEMBER for m in d.candidates.values())
    if not returning:  # nobody knows the round before: as in a first round
        d.calls += 1
        d.phase = LastCall(phase.round, d.calls)  # J2
        return
    patient = phase.lost and not phase.patience_over and settings.replacement_seconds > 0
    if patient and len(d.candidates) < phase.former:
        return
    seal(d, f"all that are alive have come: {nodes(len(d.candidates))}")  # J5


def seal(d: Draft, reason: str) -> None:
    """Enter Sealed(n): hand out seats (S2) and ranks (R1), tell everyone.

    While a candidate's connection is cut nothing is sealed: within disconnect_grace it is
    back or lost, and a seat for a dead node would cost everyone a round.
    """
    if d.settings is None or not _all_connected(d):
        return
    claims = sorted(d.candidates.values(), key=ranks.seat_order)
    seated = ranks.assign_ranks(claims[: goal_of(d.settings)])
    number = d.round
    record = ranks.make_round(d.incarnation, number, seated, d.restarts, reason, d.failing)
    d.participants = ranks.by_id(seated)
    left_over = [m for m in d.candidates.values() if m.node.id not in d.participants]
    d.candidates = {}
    d.phase = Sealed(record)
    d.opening = ""
    d.send(d.participants, RoundSealed(record))
    notices.tell_standing(d, d.participants)
    for member in left_over:
        park(d, member)
    d.note = f"round {number} sealed with {nodes(len(seated))}: {reason}"


def park(d: Draft, member: Member) -> None:
    """Let a newcomer of a sealed round wait, or be a spare when there is no room (N1)."""
    phase = d.phase
    if not isinstance(phase, Sealed) or d.settings is None:
        return
    free = goal_of(d.settings) - len(phase.record.seats) - len(d.waiting)
    spare = free <= 0 or bool(phase.done)  # who has finished will not come again: no new round
    d.put(d.spares if spare else d.waiting, standing_as(member, Standing.NEW, None))
    why = _parked_reason(phase, d.settings, spare, len(d.waiting))
    d.note = f"{member.node.label} {'is a spare' if spare else 'waits'}: {why}"
    d.send((member.node.id,), Parked(d.incarnation, d.round, spare, why))
    if not spare:
        d.send(d.participants, WaitingChanged(d.incarnation, d.round, len(d.waiting)))


def _parked_reason(phase: Sealed, settings: Settings, spare: bool, waiting: int) -> str:
    record = phase.record
    if phase.done:
        return f"round {record.number} is ending: {len(phase.done)} nodes have finished"
    if spare and waiting:
        have = f"round {record.number} has {nodes(len(record.seats))} and {waiting} wait"
        return f"{have}: all the {goal_of(settings)} nodes wanted"
    if spare:
        return f"round {record.number} has all the {goal_of(settings)} nodes wanted"
    return (
        f"round {record.number} is at work with {nodes(len(record.seats))}; the next one has room"
    )


def fill_waiting(d: Draft) -> None:
    """Someone who waited has gone: the first spare waits in its place, everyone is told."""
    if d.spares:
        first = min(d.spares.values(), key=lambda member: member.arrival)
        del d.spares[first.node.id]
        gone = d.note
        park(d, first)
        d.note = f"{gone}; {d.note}"
    else:
        d.send(d.participants, WaitingChanged(d.incarnation, d.round, len(d.waiting)))


def end_waiting(d: Draft) -> None:
    """The round is ending: those who wait become spares, no new round is asked for (F1)."""
    if not d.waiting:
        return
    for member in list(d.waiting.values()):
        del d.waiting[member.node.id]
        park(d, member)
    d.send(d.participants, WaitingChanged(d.incarnation, d.round, 0))


def close_run(d: Draft, by: str, at: str, why: str, verdict: Verdict) -> None:
    """Enter Closed: tell every live node; spares and those who wait go home (F1, C1)."""
    if isinstance(d.phase, Closed):
        return
    number = d.round
    everyone = d.live()
    d.phase = Closed(number, by, at, why, verdict)
    d.notices, d.failing = {}, 0
    for place in (d.candidates, d.participants, d.waiting, d.spares, d.finished):
        place.clear()
    d.note = f"closed by {by}: {why}"
    failures = () if verdict is Verdict.FINISHED else d.failures
    d.send(everyone, RunClosed(d.incarnation, number, by, at, why, verdict, failures))
