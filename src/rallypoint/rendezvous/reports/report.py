"""The report of a run, made of its state and its history. PURE."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from rallypoint.core import explain
from rallypoint.core.advance import TIMER_SETTINGS
from rallypoint.core.events import (
    ExclusionOver,
    LastCallOver,
    RejoinOver,
    ReplacementWaitOver,
    SteadyOver,
    Timer,
)
from rallypoint.core.state import (
    Closed,
    NodeId,
    RunState,
    Sealed,
    find,
    round_number,
)
from rallypoint.rendezvous.coordinator import (
    ExclusionLine,
    NodeStatus,
    Report,
    RoundLine,
    RunningTimer,
)
from rallypoint.rendezvous.reports.history import History, ago

SHUT_OUT_SHOWN = 16
MISSING_SHOWN = 16

_NAMES: dict[type, str] = {
    LastCallOver: "last call for more nodes",
    RejoinOver: "participants of the previous round may join again",
    ReplacementWaitOver: "a replacement may come",
    SteadyOver: "earlier failing rounds no longer count",
}


def report_of(
    state: RunState,
    server: str,
    history: History | None = None,
    now: float = 0.0,
    heard: Callable[[NodeId], float | None] = lambda _: None,
    timers: Iterable[tuple[Timer, float | None]] = (),
) -> Report:
    """Return the report of a state.

    Args:
        state: of the run.
        server: where the answer comes from, for people.
        history: of the run, None if no times are known.
        now: on the clock of the history.
        heard: when the last heartbeat of a node came, on that clock.
        timers: those that run, with the seconds that are left.
    """
    seen = history or History()
    members = tuple(
        NodeStatus(*row, seen.place_seconds(row[0].id, row[1], now), ago(now, heard(row[0].id)))
        for row in explain.rows(state)
    )
    running = dict(timers)
    return Report(
        run_id=state.run_id,
        phase=explain.phase_name(state),
        incarnation=state.incarnation,
        round=round_number(state.phase),
        reason=explain.describe(state),
        missing=explain.missing(state),
        members=members,
        settings=state.settings,
        restarts=state.restarts,
        server=server,
        since_seconds=ago(now, seen.phase_at),
        opened_by=state.opened_by,
        timers=(*_waits(running), *_graces(state, seen.disconnected_seconds(now))),
        rounds=seen.lines(now) or _present(state),
        failures=state.failures,
        shut_out=tuple(islice(reversed(state.fenced.items()), SHUT_OUT_SHOWN)),
        failing=state.failing,
        exclusions=_exclusions(state, running),
        notices=seen.notices(state, now),
    )


def _waits(running: Mapping[Timer, float | None]) -> list[RunningTimer]:
    return [
        RunningTimer(_NAMES[type(t)], TIMER_SETTINGS[type(t)], left)
        for t, left in running.items()
        if type(t) in _NAMES
    ]


def _exclusions(state: RunState, left: Mapping[Timer, float | None]) -> tuple[ExclusionLine, ...]:
    return tuple(
        ExclusionLine(
            out.aspect,
            out.name,
            out.why,
            out.by,
            out.at,
            out.seconds,
            left.get(ExclusionOver(out.number)),
        )
        for out in state.exclusions
    )


def _present(state: RunState) -> tuple[RoundLine, ...]:
    """Return the round of the state, without times."""
    phase = state.phase
    if state.settings is None or isinstance(phase, Closed):
        return ()
    record = phase.record if isinstance(phase, Sealed) else None
    line = RoundLine(
        incarnation=state.incarnation,
        number=round_number(phase),
        opened_seconds=None,
        opened_because=state.opening,
        sealed_because=record.reason if record else "",
        size=len(record.seats) if record else 0,
        nodes=tuple(seat.node.label for seat in record.seats) if record else (),
    )
    return (line,)


def brief_report(state: RunState, server: str) -> Report:
    """Return a short report, whose cost does not depend on the number of nodes.

    Args:
        state: of the run.
        server: where the answer comes from, for people.
    """
    missing = explain.missing(state)
    if len(missing) > MISSING_SHOWN:
        missing = (*missing[:MISSING_SHOWN], f"{len(missing) - MISSING_SHOWN} more")
    return Report(
        run_id=state.run_id,
        phase=explain.phase_name(state),
        incarnation=state.incarnation,
        round=round_number(state.phase),
        reason=explain.describe(state),
        missing=missing,
        settings=state.settings,
        restarts=state.restarts,
        server=server,
    )


def _graces(state: RunState, cut: dict[NodeId, float]) -> list[RunningTimer]:
    settings, running = state.settings, []
    for node, seconds in cut.items():
        member = find(state, node)
        if settings is not None and member is not None and not member.connected:
            left = min(settings.disconnect_grace_seconds, settings.lease_seconds) - seconds
            name = f"{member.node.label} may reconnect"
            running.append(RunningTimer(name, "disconnect_grace", max(0.0, left)))
    return running
