"""The one place for decisions: `advance(state, *events) -> Step`. PURE.

    Gathering(n) --min_nodes--> LastCall(n) --over, or full--> Sealed(n)
    Sealed(n) --a node is lost, leaves, fails or joins again--> Gathering(n+1)
    any phase --close, all finished, budget spent--> Closed --new incarnation--> Gathering

`TRANSITIONS` lists all events with their functions and the rules of docs/state-machine.md that
they implement. After each event `failures.quarantine_if_due` may exclude a node (H1), and `settle`
closes a run whose budget is spent (B1), moves between Gathering and LastCall (J2), and seals the
round (J3 to J5); sealing hands out seats (S2) and ranks (R1, `ranks.assign_ranks`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rallypoint.core import departures, exclusion, failures, joins, notices, rounds
from rallypoint.core.events import (
    Admit,
    Beat,
    Close,
    Disconnected,
    Event,
    Exclude,
    ExclusionOver,
    Fail,
    Finish,
    Join,
    LastCallOver,
    Leave,
    Lost,
    Notify,
    Reconnected,
    RejoinOver,
    ReplacementWaitOver,
    RunClosed,
    Send,
    SteadyOver,
    Timer,
)
from rallypoint.core.explain import describe
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.state import (
    PLACES,
    Closed,
    Gathering,
    LastCall,
    RunState,
    Sealed,
    Verdict,
    round_number,
)

TRANSITIONS: dict[type, Callable[[MutableState, Any], None]] = {
    Join: joins.join,  # J1, J6, N1, N2, L2, C1, E1, H1, I1
    Finish: departures.finish,  # F1
    Leave: departures.leave,  # L1, L3
    Lost: departures.lost,  # L1, L2
    Disconnected: departures.disconnected,  # L1
    Reconnected: departures.reconnected,  # L1
    Beat: departures.beat,  # L1, serverless only
    Fail: failures.fail,  # B1, N2
    Notify: notices.notify,  # P1
    Exclude: exclusion.exclude,  # H1
    Admit: exclusion.admit,  # H1
    Close: rounds.close,  # C1
    LastCallOver: rounds.last_call_over,  # J4
    RejoinOver: departures.rejoin_over,  # G1
    ReplacementWaitOver: rounds.replacement_wait_over,  # J5
    SteadyOver: failures.steady_over,  # B1
    ExclusionOver: exclusion.over,  # H1
}
TIMER_SETTINGS: dict[type, str] = {
    LastCallOver: "last_call",
    RejoinOver: "rejoin_timeout",
    ReplacementWaitOver: "replacement_wait",
    SteadyOver: "steady_after",
}
"""Which setting is the length of a timer; an `ExclusionOver` has that of its exclusion."""


class Step(msgspec.Struct, frozen=True):
    """The result of events.

    Args:
        state: the next state.
        messages: to be sent, in order, only AFTER `state` has been stored.
        timers: that run in `state`; the host starts new ones, stops those that are gone, and
            sends each as an event when it ends.
        notes: what happened, for people.
    """

    state: RunState
    messages: tuple[Send, ...]
    timers: tuple[Timer, ...]
    notes: tuple[str, ...]

    @property
    def reason(self) -> str:
        """For people: what happened, and what the run waits for. Computed when it is read."""
        return "; ".join([*self.notes[-3:], describe(self.state)])


def advance(state: RunState, *events: Event) -> Step:
    """Apply events in order: the same as one after the other, with a single copy of the state."""
    run = MutableState(state)
    notes: list[str] = []
    for event in events:
        run.note = ""
        TRANSITIONS[type(event)](run, event)
        if failures.quarantine_if_due(run):
            notes.append(run.note)
        rounds.settle(run)
        if run.note and run.note not in notes[-1:]:
            notes.append(run.note)
    after = run.freeze()
    return Step(after, tuple(run.messages), timers(after), tuple(notes))


def closed_by_fault(state: RunState, by: str, at: str, why: str) -> Step:
    """Close a run after an internal error, without any of the rules that may have failed.

    Args:
        state: the last one that was stored.
        by, at, why: as in `Close`.
    """
    if isinstance(state.phase, Closed):
        return Step(state, (), (), ())
    number = round_number(state.phase)
    nodes = tuple(node for place in PLACES for node in getattr(state, place))
    emptied: dict[str, Any] = {place: {} for place in PLACES}
    closed = Closed(number, by, at, why)
    after = msgspec.structs.replace(state, phase=closed, notices={}, failing=0, **emptied)
    message = RunClosed(state.incarnation, number, by, at, why, Verdict.CLOSED)
    return Step(after, (Send(nodes, message),), (), ())


def timers(state: RunState) -> tuple[Timer, ...]:
    """Return the timers that run in a state."""
    temporary = (x.number for x in state.exclusions if x.seconds is not None)
    return (*_timers_of_round(state), *map(ExclusionOver, temporary))


def _timers_of_round(state: RunState) -> Iterator[Timer]:
    phase, settings, incarnation = state.phase, state.settings, state.incarnation
    if settings is None:
        return
    if isinstance(phase, LastCall) and not phase.over:
        yield LastCallOver(incarnation, phase.round, phase.call)
    elif isinstance(phase, Sealed) and state.failing:
        yield SteadyOver(incarnation, phase.record.number)
    elif isinstance(phase, Gathering):
        if state.participants:
            yield RejoinOver(incarnation, phase.round)
        if phase.lost and not phase.patience_over and settings.replacement_wait_seconds > 0:
            yield ReplacementWaitOver(incarnation, phase.round)


def timer_seconds(state: RunState, timer: Timer) -> float:
    """Return how long a timer of this state runs, in seconds."""
    if isinstance(timer, ExclusionOver):
        lasting = (x.seconds for x in state.exclusions if x.number == timer.number)
        return next(lasting, None) or 0.0
    if state.settings is None:
        return 0.0
    seconds: float = getattr(state.settings, f"{TIMER_SETTINGS[type(timer)]}_seconds")
    return seconds
