"""The one place for decisions: `advance(state, *events) -> Step`. PURE.

All transitions of a run live here. Each event is applied in order, and after each one
`_settle` asks whether the round can be sealed; the letters in comments are the rules of
docs/state-machine.md. Hosts and handlers only carry events in and messages out.

    Gathering(n) --min nodes--> LastCall(n) --over, or full--> Sealed(n) --loss, leave,
    failure, rejoin--> Gathering(n+1) ...        any phase --close--> Closed
"""

from collections.abc import Callable
from typing import Any

import msgspec

from rallypoint.rendezvous.core import membership
from rallypoint.rendezvous.core.draft import Draft
from rallypoint.rendezvous.core.events import (
    Beat,
    Close,
    Disconnected,
    Event,
    Fail,
    Finish,
    Join,
    LastCallOver,
    Leave,
    Lost,
    Reconnected,
    RejoinOver,
    ReplacementWaitOver,
    Send,
    Timer,
)
from rallypoint.rendezvous.core.explain import describe
from rallypoint.rendezvous.core.rounds import close_run, settle
from rallypoint.rendezvous.core.state import Gathering, LastCall, State


class Step(msgspec.Struct, frozen=True):
    """What follows from an event.

    Args:
        state: the next state.
        messages: to be sent, in order, only AFTER `state` has been stored.
        timers: the timers that should run in `state`; the host starts those that are new,
            stops those that are gone, and hands a timer back as an event when it ends.
        reason: what happened and what is waited for, for people.
    """

    state: State
    messages: tuple[Send, ...]
    timers: tuple[Timer, ...]
    reason: str


def advance(state: State, *events: Event) -> Step:
    """Apply events in order; the same as one after the other, at the cost of one copy."""
    draft = Draft(state)
    notes: list[str] = []
    for event in events:
        draft.note = ""
        _RULES[type(event)](draft, event)
        settle(draft)
        if draft.note and draft.note not in notes[-1:]:
            notes.append(draft.note)
    after = draft.freeze()
    reason = "; ".join([*notes[-3:], describe(after)])
    return Step(after, tuple(draft.messages), timers(after), reason)


def timers(state: State) -> tuple[Timer, ...]:
    """Return the timers that should run in a state."""
    phase, settings = state.phase, state.settings
    if isinstance(phase, LastCall):
        call = LastCallOver(state.incarnation, phase.round, phase.call)
        return () if phase.over else (call,)
    if not isinstance(phase, Gathering) or settings is None:
        return ()
    running: list[Timer] = []
    if state.participants:
        running.append(RejoinOver(state.incarnation, phase.round))
    if phase.lost and not phase.patience_over and settings.replacement_seconds > 0:
        running.append(ReplacementWaitOver(state.incarnation, phase.round))
    return tuple(running)


def timer_seconds(state: State, timer: Timer) -> float:
    """Return how long a timer of this state runs, in seconds."""
    settings = state.settings
    if settings is None:
        return 0.0
    if isinstance(timer, LastCallOver):
        return settings.last_call_seconds
    if isinstance(timer, RejoinOver):
        return settings.rejoin_seconds
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
        for node in list(d.participants):  # G1: told, and silent for rejoin_timeout
            why = f"did not join round {e.round} within rejoin_timeout"
            membership.lose(d, node, why)


def _replacement_wait_over(d: Draft, e: ReplacementWaitOver) -> None:
    phase = d.phase
    if isinstance(phase, Gathering) and phase.lost and _gathering(d, e.incarnation, e.round):
        d.note = "no replacement came in time"
        d.phase = msgspec.structs.replace(phase, patience_over=True)


def _gathering(d: Draft, incarnation: int, number: int) -> bool:
    return isinstance(d.phase, Gathering) and (d.incarnation, d.round) == (incarnation, number)


def _close(d: Draft, e: Close) -> None:
    if e.incarnation in (0, d.incarnation):  # E1
        close_run(d, e.by, e.at, e.why, finished=False)  # L3: only here, in F1 and in B1


_RULES: dict[type, Callable[[Draft, Any], None]] = {
    Join: membership.join,
    Leave: membership.leave,
    Lost: membership.lost,
    Finish: membership.finish,
    Fail: membership.fail,
    Beat: membership.beat,
    Disconnected: membership.disconnected,
    Reconnected: membership.reconnected,
    Close: _close,
    LastCallOver: _last_call_over,
    RejoinOver: _rejoin_over,
    ReplacementWaitOver: _replacement_wait_over,
}
