"""Who is alive and which timer has ended, as one node sees it by its own clock.

A shared state holds no time. Each observer remembers on its own monotonic clock when it
first saw a member's heartbeat counter at its present value, and when it first saw a timer;
what has stood for too long becomes an event, which carries what was seen, so that it is
void if the state has moved on (rules L1, E1).

An observer that did not look for a while (it was stopped, or the backend was away) cannot
tell its own absence from the others' silence: everything it was timing begins anew. Neither
can one that reads but cannot write (the backend is full, or takes no writes for a while).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rallypoint.core.advance import timer_seconds, timers
from rallypoint.core.events import Beat, Cause, Event, Lost, Timer
from rallypoint.core.state import PLACES, Closed, Member, NodeId, RunState, find
from rallypoint.deadline import Clock
from rallypoint.rendezvous import defaults

BEATS_PER_LEASE = 3
_SHORTEST_PAUSE_SECONDS = 0.001


@dataclass
class _Sign:
    """A member's heartbeat counter, and when it was first seen at this value."""

    beats: int
    at: float


@dataclass
class _Running:
    """A timer: when it was first seen, and whether it was handed in."""

    at: float
    over: bool = False


class Observer:
    """One node's judgement of the others.

    Not thread-safe; its owner calls it under a lock.

    Args:
        clock: monotonic clock in seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._signs: dict[NodeId, _Sign] = {}
        self._timers: dict[Timer, _Running] = {}
        self._looked: float | None = None
        self._beaten = clock()
        self._next = 0.0

    def beaten(self) -> None:
        """Note that a sign of life of this node was stored just now."""
        self._beaten = self._clock()

    def interrupted(self) -> None:
        """Note that reading or writing failed: the others may have met with the same."""
        self._signs.clear()
        self._timers.clear()

    def look(self, state: RunState, me: NodeId | None) -> list[Event]:
        """Return the events that are due in a state, this node's own heartbeat included.

        Args:
            state: as just read.
            me: this node's id; a node that is not a member judges nobody.
        """
        now, lease = self._clock(), lease_seconds(state)
        beat = lease / BEATS_PER_LEASE
        if self._looked is not None and now - self._looked > 2 * beat:
            self._signs.clear()
            self._timers.clear()
        self._looked, self._next = now, now + beat
        if me is None or find(state, me) is None or isinstance(state.phase, Closed):
            self._signs.clear()
            self._timers.clear()
            return []
        due: list[Event] = []
        if self._is_over(self._beaten + beat, now):
            due.append(Beat(me))
        due += self._silent(state, me, now, lease)
        due += self._ended(state, now)
        return due

    def settle(self, events: Sequence[Event]) -> None:
        """Note that these events of `look` were applied and stored."""
        now = self._clock()
        for event in events:
            match event:
                case Beat():
                    self._beaten = now
                case Lost(node=node):
                    self._signs.pop(node, None)
                case _ if event in self._timers:
                    self._timers[event].over = True  # not again while the state still lists it

    def pause(self) -> float:
        """Return the seconds until `look` has something to do if nothing changes."""
        return max(_SHORTEST_PAUSE_SECONDS, self._next - self._clock())

    def _is_over(self, at: float, now: float) -> bool:
        if now >= at:
            return True
        self._next = min(self._next, at)
        return False

    def _silent(self, state: RunState, me: NodeId, now: float, lease: float) -> list[Event]:
        members = _members(state)
        self._signs = {node: sign for node, sign in self._signs.items() if node in members}
        lost: list[Event] = []
        for node, member in members.items():
            sign = self._signs.get(node)
            if sign is None or sign.beats != member.beats:
                sign = self._signs[node] = _Sign(member.beats, now)
            if node != me and self._is_over(sign.at + lease, now):
                lost.append(Lost(node, Cause.LEASE, member.beats))
        return lost

    def _ended(self, state: RunState, now: float) -> list[Event]:
        listed = timers(state)
        self._timers = {t: run for t, run in self._timers.items() if t in listed}
        ended: list[Event] = []
        for timer in listed:
            run = self._timers.setdefault(timer, _Running(now))
            if not run.over and self._is_over(run.at + timer_seconds(state, timer), now):
                ended.append(timer)
        return ended


def lease_seconds(state: RunState) -> float:
    """Return the lease of a run, the default one before it was opened."""
    return defaults.value("lease") if state.settings is None else state.settings.lease_seconds


def _members(state: RunState) -> dict[NodeId, Member]:
    return {node: member for place in PLACES for node, member in getattr(state, place).items()}
