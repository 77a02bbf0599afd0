"""How rounds open, seal and end; one function enters each phase. PURE."""

import msgspec

from rallypoint.core import notices, ranks
from rallypoint.core.events import (
    Close,
    LastCallOver,
    Parked,
    ReplacementWaitOver,
    RoundOpened,
    RoundSealed,
    RunClosed,
    WaitingChanged,
)
from rallypoint.core.explain import goal_of, goal_setting, have_finished, nodes
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.state import (
    NO_REASON,
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


def open_round(
    run: MutableState, why: str, lost: tuple[str, ...] = (), *, charged: bool = False
) -> None:
    """Enter Gathering(n+1) from Sealed(n); all nodes are told why, and who was lost (L1, N2)."""
    former = len(run.participants) + len(lost)
    run.phase = Gathering(run.round + 1, lost=bool(lost), former=former, charged=charged)
    run.opening = why
    run.notices = {}  # P1: a node that will leave need not join again
    run.failing = run.failing + 1 if charged else 0
    run.note = f"round {run.round} opens: {why}"
    to = [*run.participants, *run.waiting, *run.spares]
    for place, standing in ((run.waiting, Standing.WAITING), (run.spares, Standing.NEW)):
        for member in list(place.values()):  # S1: they need not join again
            del place[member.node.id]
            run.candidates[member.node.id] = standing_as(member, standing, None)
    run.send(to, RoundOpened(run.incarnation, run.round, why, lost))


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


def settle(run: MutableState) -> None:
    """Seal the round, or move between Gathering and LastCall, as the candidates allow."""
    phase, settings = run.phase, run.settings
    if settings is None or not isinstance(phase, (Gathering, LastCall)):
        return
    if is_spent(run, settings) and nobody_is_missing(run):
        _close_spent(run, settings)
        return
    have = len(run.candidates)
    if have < settings.min_nodes or run.participants:  # J2: fell below min; G1, S2: seats are held
        if isinstance(phase, LastCall):
            run.phase = Gathering(round=phase.round)
        return
    goal = goal_of(settings)
    if have >= goal:
        who = "the only node" if goal == 1 else f"all {goal} nodes"
        seal(run, f"{who} joined ({goal_setting(settings)})")  # J3
    elif isinstance(phase, LastCall):
        if phase.over:
            seal(run, f"the last call is over with {have} of up to {goal} nodes")  # J4
    else:
        _settle_gathering(run, phase, settings)


def is_spent(run: MutableState, settings: Settings) -> bool:
    """Return whether failures exceed the budget (B1)."""
    return settings.max_restarts is not None and run.restarts > settings.max_restarts


def nobody_is_missing(run: MutableState) -> bool:
    """Return whether no node of the previous round is missing (B1, H1).

    Failures are judged then, not when they are reported: workers also fail because a node was
    lost, and that may be known only a lease later.
    """
    return not run.participants and _all_connected(run)


def _close_spent(run: MutableState, settings: Settings) -> None:
    budget = run.restarts = settings.max_restarts or 0
    last, first = last_failure(run), run.failures[0]
    why = f"a worker failed and max_restarts={budget} is used up: {last.label}"
    if first is not last:
        text = f"; the first of {run.failing} consecutive failing rounds, round {first.round}: "
        why += text + first.label
    close_run(run, last.node, last.at, why, Verdict.BUDGET)


def last_failure(run: MutableState) -> Failure:
    """Return the failure that opened the round (B1)."""
    return next(failure for failure in run.failures if failure.round == run.round - 1)


def _all_connected(run: MutableState) -> bool:
    return all(member.connected for member in run.candidates.values())


def _settle_gathering(run: MutableState, phase: Gathering, settings: Settings) -> None:
    returning = any(m.standing is Standing.MEMBER for m in run.candidates.values())
    if not returning:  # none of the previous round: as in a first round
        run.calls += 1
        run.phase = LastCall(phase.round, run.calls)  # J2
        return
    patient = phase.lost and not phase.patience_over and settings.replacement_wait_seconds > 0
    if patient and len(run.candidates) < phase.former:
        return
    count = len(run.candidates)
    who = "the only live node has" if count == 1 else f"all {count} live nodes have"
    seal(run, f"{who} joined")  # J5


def seal(run: MutableState, reason: str) -> None:
    """Enter Sealed(n): hand out seats (S2) and ranks (R1), and tell all nodes.

    While a candidate is disconnected, the round does not seal: within disconnect_grace it
    reconnects or is lost, and a seat for a dead node would cost another round.
    """
    if run.settings is None or not _all_connected(run):
        return
    claims = sorted(run.candidates.values(), key=ranks.seat_order)
    seated = ranks.assign_ranks(claims[: goal_of(run.settings)])
    number = run.round
    record = ranks.make_round(run.incarnation, number, seated, run.restarts, reason, run.failing)
    run.participants = ranks.by_id(seated)
    left_over = [m for m in run.candidates.values() if m.node.id not in run.participants]
    run.candidates = {}
    run.phase = Sealed(record)
    run.opening = ""
    run.send(run.participants, RoundSealed(record))
    notices.tell_standing(run, run.participants)
    for member in left_over:
        park(run, member)
    run.note = f"round {number} sealed with {nodes(len(seated))}: {reason}"


def park(run: MutableState, member: Member) -> None:
    """Let a node wait for the next round, or be a spare when that has no room (N1)."""
    phase = run.phase
    if not isinstance(phase, Sealed) or run.settings is None:
        return
    free = goal_of(run.settings) - len(phase.record.seats) - len(run.waiting)
    spare = free <= 0 or bool(phase.done)  # finished nodes do not return: no new round
    run.put(run.spares if spare else run.waiting, standing_as(member, Standing.NEW, None))
    why = _parked_reason(phase, run.settings, spare, len(run.waiting))
    run.note = f"{member.node.label} {'is a spare' if spare else 'waits'}: {why}"
    run.send((member.node.id,), Parked(run.incarnation, run.round, spare, why))
    if not spare:
        run.send(run.participants, WaitingChanged(run.incarnation, run.round, len(run.waiting)))


def _parked_reason(phase: Sealed, settings: Settings, spare: bool, waiting: int) -> str:
    record = phase.record
    if phase.done:
        return f"round {record.number} is ending: {have_finished(len(phase.done), 'node')}"
    if spare and waiting:
        have = f"round {record.number} has {nodes(len(record.seats))} and {waiting} wait"
        return f"{have}: it is full ({goal_setting(settings)})"
    if spare:
        return f"round {record.number} is full ({goal_setting(settings)})"
    return (
        f"round {record.number} is running with {nodes(len(record.seats))}; the next one has room"
    )


def fill_waiting(run: MutableState) -> None:
    """A waiting node has left: the first spare waits instead, and all are told."""
    if run.spares:
        first = min(run.spares.values(), key=lambda member: member.arrival)
        del run.spares[first.node.id]
        gone = run.note
        park(run, first)
        run.note = f"{gone}; {run.note}"
    else:
        run.send(run.participants, WaitingChanged(run.incarnation, run.round, len(run.waiting)))


def end_waiting(run: MutableState) -> None:
    """The round is ending: waiting nodes become spares, and no new round opens (F1)."""
    if not run.waiting:
        return
    for member in list(run.waiting.values()):
        del run.waiting[member.node.id]
        park(run, member)
    run.send(run.participants, WaitingChanged(run.incarnation, run.round, 0))


def close_run(run: MutableState, by: str, at: str, why: str, verdict: Verdict) -> None:
    """Enter Closed, and tell every live node (F1, C1)."""
    if isinstance(run.phase, Closed):
        return
    number = run.round
    everyone = run.live()
    run.phase = Closed(number, by, at, why, verdict)
    run.notices, run.failing = {}, 0
    for place in (run.candidates, run.participants, run.waiting, run.spares, run.finished):
        place.clear()
    run.note = f"closed by {by}: {why}"
    failures = () if verdict is Verdict.FINISHED else run.failures
    run.send(everyone, RunClosed(run.incarnation, number, by, at, why, verdict, failures))


def close(run: MutableState, e: Close) -> None:
    """Somebody closes the run (C1); an event that names an older incarnation does nothing (E1)."""
    if e.incarnation in (0, run.incarnation):
        close_run(run, e.by, e.at, e.why or NO_REASON, Verdict.CLOSED)


# -- ends of timers: one that names an older round, last call or incarnation does nothing (E1) --


def last_call_over(run: MutableState, e: LastCallOver) -> None:
    """The last call is over; the round seals with the candidates that are there (J4)."""
    phase = run.phase
    current = isinstance(phase, LastCall) and (phase.round, phase.call) == (e.round, e.call)
    if current and e.incarnation == run.incarnation:
        run.note = "the last call is over"
        run.phase = LastCall(e.round, e.call, over=True)


def replacement_wait_over(run: MutableState, e: ReplacementWaitOver) -> None:
    """Nobody waits for replacements of lost nodes any longer (J5)."""
    phase = run.phase
    if not isinstance(phase, Gathering) or not phase.lost:
        return
    if (run.incarnation, phase.round) == (e.incarnation, e.round):
        run.note = "no replacement came in time"
        run.phase = msgspec.structs.replace(phase, patience_over=True)
