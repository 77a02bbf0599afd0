"""Which nodes are lost and which timers have ended, by one node's own clock (serverless).

The state holds no time. Each node remembers on its own monotonic clock when it first saw the
present value of a member's heartbeat counter, and when it first saw a timer. A counter that has
not changed for the lease is a `Lost`, a timer that has lasted long enough is its event. Both carry
what was seen, so that they change nothing if the state has moved on (rules L1, E1).

A node that did not look for a while (it was stopped, or the backend was out of reach) cannot tell
its own absence from the others' silence: it starts all measurements again. So does one that can
read but not write.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rallypoint.core.advance import timer_seconds, timers
from rallypoint.core.events import Beat, Cause, Event, Lost, Timer
from rallypoint.core.state import PLACES, Closed, Member, NodeId, RunState, find
from rallypoint.deadline import Clock
from rallypoint.rendezvous import defaults
from rallypoint.rendezvous.timing import HEARTBEATS_PER_LEASE

_SHORTEST_PAUSE_SECONDS = 0.001


@dataclass
class _Heartbeat:
    """A member's heartbeat counter, and when this value was first seen."""

    beats: int
    at: float


@dataclass
class _Running:
    """A timer: when it was first seen, and whether its event was stored."""

    at: float
    over: bool = False


class FailureDetector:
    """Detects lost nodes and ended timers.

    Not thread-safe; its owner calls it under a lock.

    Args:
        clock: monotonic clock in seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heartbeats: dict[NodeId, _Heartbeat] = {}
        self._timers: dict[Timer, _Running] = {}
        self._looked: float | None = None
        self._beaten = clock()
        self._next = 0.0

    def beaten(self) -> None:
        """This node's heartbeat was stored just now."""
        self._beaten = self._clock()

    def interrupted(self) -> None:
        """Reading or writing failed, maybe for the other nodes, too: start again."""
        self._heartbeats.clear()
        self._timers.clear()

    def look(self, state: RunState, me: NodeId | None) -> list[Event]:
        """Return the events that are due in a state, this node's own heartbeat included.

        Args:
            state: as just read.
            me: this node's id; a node that is no member sends nothing.
        """
        now, lease = self._clock(), lease_seconds(state)
        beat = lease / HEARTBEATS_PER_LEASE
        if self._looked is not None and now - self._looked > 2 * beat:
            self._heartbeats.clear()
            self._timers.clear()
        self._looked, self._next = now, now + beat
        if me is None or find(state, me) is None or isinstance(state.phase, Closed):
            self._heartbeats.clear()
            self._timers.clear()
            return []
        due: list[Event] = []
        if self._is_over(self._beaten + beat, now):
            due.append(Beat(me))
        due += self._silent(state, me, now, lease)
        due += self._ended(state, now)
        return due

    def settle(self, events: Sequence[Event]) -> None:
        """These events of `look` were stored."""
        now = self._clock()
        for event in events:
            match event:
                case Beat():
                    self._beaten = now
                case Lost(node=node):
                    self._heartbeats.pop(node, None)
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
        self._heartbeats = {
            node: seen for node, seen in self._heartbeats.items() if node in members
        }
        lost: list[Event] = []
        for node, member in members.items():
            seen = self._heartbeats.get(node)
            if seen is None or seen.beats != member.beats:
                seen = self._heartbeats[node] = _Heartbeat(member.beats, now)
            if node != me and self._is_over(seen.at + lease, now):
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
