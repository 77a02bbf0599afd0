"""The one place for decisions: `advance(state, *events) -> Step`. PURE.

All transitions of a run live here. Each event is applied in order, and after each one
`_settle` asks whether the round can be sealed; the letters in comments are the rules of
docs/state-machine.md. Hosts and handlers only carry events in and messages out.

    Gathering(n) --min nodes--> LastCall(n) --over, or full--> Sealed(n) --loss, leave,
    failure, rejoin--> Gathering(n+1) ...        any phase --close--> Closed
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rallypoint.core import departures, exclusion, joins, notices, quarantine, worker_events
from rallypoint.core.annotations import NO_REASON
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
from rallypoint.core.mutable_state import Draft
from rallypoint.core.rounds import close_run, settle
from rallypoint.core.state import (
    PLACES,
    Closed,
    Gathering,
    LastCall,
    Sealed,
    State,
    Verdict,
    round_number,
)


class Step(msgspec.Struct, frozen=True):
    """What follows from an event.

    Args:
        state: the next state.
        messages: to be sent, in order, only AFTER `state` has been stored.
        timers: the timers that should run in `state`; the host starts those that are new,
            stops those that are gone, and hands a timer back as an event when it ends.
        notes: what happened, for people.
    """

    state: State
    messages: tuple[Send, ...]
    timers: tuple[Timer, ...]
    notes: tuple[str, ...]

    @property
    def reason(self) -> str:
        """What happened and what is waited for, for people; made for who asks."""
        return "; ".join([*self.notes[-3:], describe(self.state)])


def advance(state: State, *events: Event) -> Step:
    """Apply events in order; the same as one after the other, at the cost of one copy."""
    draft = Draft(state)
    notes: list[str] = []
    for event in events:
        draft.note = ""
        _RULES[type(event)](draft, event)
        if quarantine.judge(draft):
            notes.append(draft.note)
        settle(draft)
        if draft.note and draft.note not in notes[-1:]:
            notes.append(draft.note)
    after = draft.freeze()
    return Step(after, tuple(draft.messages), timers(after), tuple(notes))


def broken(state: State, by: str, at: str, why: str) -> Step:
    """Close a run whose rules have failed: by none of them, so that nothing more can fail.

    Args:
        state: the last one that was stored.
        by, at, why: as those of a `Close`.
    """
    if isinstance(state.phase, Closed):
        return Step(state, (), (), ())
    number = round_number(state.phase)
    nodes = tuple(node for place in PLACES for node in getattr(state, place))
    emptied: dict[str, Any] = {place: {} for place in PLACES}
    closed = Closed(number, by, at, why)
    after = msgspec.structs.replace(state, phase=closed, notices={}, failing=0, **emptied)
    told = RunClosed(state.incarnation, number, by, at, why, Verdict.CLOSED)
    return Step(after, (Send(nodes, told),), (), ())


def timers(state: State) -> tuple[Timer, ...]:
    """Return the timers that should run in a state."""
    keeping = (x.number for x in state.exclusions if x.seconds is not None)
    return (*_of_round(state), *map(ExclusionOver, keeping))


def _of_round(state: State) -> Iterator[Timer]:
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
        if phase.lost and not phase.patience_over and settings.replacement_seconds > 0:
            yield ReplacementWaitOver(incarnation, phase.round)


def timer_seconds(state: State, timer: Timer) -> float:
    """Return how long a timer of this state runs, in seconds."""
    settings = state.settings
    if isinstance(timer, ExclusionOver):
        lasting = (x.seconds for x in state.exclusions if x.number == timer.number)
        return next(lasting, None) or 0.0
    if settings is None:
        return 0.0
    match timer:
        case LastCallOver():
            return settings.last_call_seconds
        case RejoinOver():
            return settings.rejoin_seconds
        case SteadyOver():
            return settings.steady_seconds
    return settings.replacement_seconds


# -- ends of timers, fenced by what the host saw when it set them ---------------------------


def _last_call_over(d: Draft, e: LastCallOver) -> None:
    phase = d.phase
    current = isinstance(phase, LastCall) and (phase.round, phase.call) == (e.round, e.call)
    if current and e.incarnation == d.incarnation:
        d.note = "the last call is over"
        d.phase = LastCall(e.round, e.call, over=True)  # J4


def _rejoin_over(d: Draft, e: RejoinOver) -> None:
    if _gathering(d, e.incarnation, e.round):
        for member in list(d.participants.values()):  # G1: told, and silent for rejoin_timeout
            departures.lose(d, member.node, f"did not join round {e.round} within rejoin_timeout")


def _replacement_wait_over(d: Draft, e: ReplacementWaitOver) -> None:
    phase = d.phase
    if isinstance(phase, Gathering) and phase.lost and _gathering(d, e.incarnation, e.round):
        d.note = "no replacement came in time"
        d.phase = msgspec.structs.replace(phase, patience_over=True)


def _steady_over(d: Draft, e: SteadyOver) -> None:
    phase = d.phase
    current = isinstance(phase, Sealed) and phase.record.number == e.round
    if current and e.incarnation == d.incarnation and d.failing:
        d.note = f"round {e.round} works steadily"
        d.failing = 0  # B1: the next failure is the first of its row


def _gathering(d: Draft, incarnation: int, number: int) -> bool:
    return isinstance(d.phase, Gathering) and (d.incarnation, d.round) == (incarnation, number)


def _close(d: Draft, e: Close) -> None:
    if e.incarnation in (0, d.incarnation):  # E1
        why = e.why or NO_REASON
        close_run(d, e.by, e.at, why, Verdict.CLOSED)  # L3: only here, in F1 and in B1


_RULES: dict[type, Callable[[Draft, Any], None]] = {
    Join: joins.join,
    Leave: departures.leave,
    Lost: departures.lost,
    Finish: worker_events.finish,
    Fail: worker_events.fail,
    Notify: notices.notify,
    Exclude: exclusion.exclude,
    Admit: exclusion.admit,
    Beat: departures.beat,
    Disconnected: departures.disconnected,
    Reconnected: departures.reconnected,
    Close: _close,
    LastCallOver: _last_call_over,
    RejoinOver: _rejoin_over,
    ReplacementWaitOver: _replacement_wait_over,
    SteadyOver: _steady_over,
    ExclusionOver: exclusion.over,
}
