"""A model check of the core: every order of events, for a few nodes, over the real `advance`.

Breadth first from the empty run. In each state everything is tried that could happen next:
what nodes do, what hosts report, each running timer, and each fault that this path has not
had yet. States are remembered without their texts and with arrivals as an order, since
those decide nothing. After each step the invariants must hold, and what was promised to
nodes (G1, L2, E1); and from each state the run must come to rest if nodes just do their part.
"""

import time
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from rallypoint.core.advance import Step, advance, timers
from rallypoint.core.annotations import Aspect
from rallypoint.core.codec import encode
from rallypoint.core.events import (
    Cause,
    Close,
    Disconnected,
    Event,
    Exclude,
    Fail,
    Finish,
    Join,
    Leave,
    Lost,
    Notify,
    Reconnected,
    RoundOpened,
    RoundSealed,
    Send,
    Timer,
)
from rallypoint.core.invariants import check_state, check_step
from rallypoint.core.state import (
    PLACES,
    Closed,
    Failure,
    Member,
    Node,
    NodeId,
    Sealed,
    Settings,
    State,
    find,
    round_number,
)

NODES = ("a", "b", "c")
FAULTS = (
    "lost", "leave", "fail", "cut", "close", "replace", "again", "late timer", "finish",
    "notify", "exclude",
)  # fmt: skip
LAST_ROUND = 2
_encoder = msgspec.msgpack.Encoder(order="deterministic")
FINISHED_FAULT = "finish"


class World(msgspec.Struct, frozen=True):
    """A state of the run, and what nodes and network remember beside it.

    Args:
        state: the core's.
        known: by node the incarnation and round that it was told last.
        sealed: number of the last sealed round.
        left: faults that may still happen.
        old_joins: joins that were sent, and may come again.
        old_timers: timers that have run, and may come late.
    """

    state: State
    known: dict[NodeId, tuple[int, int]] = {}
    sealed: int = 0
    left: frozenset[str] = frozenset(FAULTS)
    old_joins: tuple[Join, ...] = ()
    old_timers: frozenset[Timer] = frozenset()


class Broken(Exception):
    """Something that must hold does not; `path` is how to get there."""

    def __init__(self, what: str, path: list[str]) -> None:
        super().__init__("\n  ".join([what, *path]))
        self.path = path


class Report(msgspec.Struct):
    """What a model check has seen."""

    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    complete: bool = True

    def line(self) -> str:
        """Return it as a line for people."""
        end = "all of them" if self.complete else "not all of them"
        return f"{self.states} states, {self.steps} steps in {self.seconds:.1f} s: {end}"


def explore(
    settings: Settings, faults: tuple[str, ...] = FAULTS, limit_seconds: float = float("inf")
) -> Report:
    """Explore all orders (Broken if something does not hold)."""
    began = time.monotonic()
    first = World(State("model"), left=frozenset(faults))
    paths: dict[bytes, tuple[bytes, str]] = {key(first): (b"", "")}
    queue = deque([(first, key(first))])
    report, rested = Report(states=1), set[bytes]()
    while queue:
        world, here = queue.popleft()
        for words, fault, event in possible(world, settings):
            step = advance(world.state, event)
            report.steps += 1
            after = follow(world, event, fault, step)
            there = key(after)
            new = there not in paths
            what = broken(world, event, fault, step) or (
                comes_to_rest(after, rested) if new else ""
            )
            if what:
                raise Broken(what, [*path_to(here, paths), words])
            if new:
                paths[there] = (here, words)
            if new and round_number(after.state.phase) <= LAST_ROUND:
                queue.append((after, there))
        report.states = len(paths)
        report.seconds = time.monotonic() - began
        if report.seconds > limit_seconds:
            report.complete = False
            return report
    return report


def path_to(here: bytes, paths: dict[bytes, tuple[bytes, str]]) -> list[str]:
    """Return the words of the events that lead to a state."""
    words: list[str] = []
    while here:
        here, word = paths[here]
        words.append(word)
    return list(reversed(words[:-1]))


def node_of(name: NodeId) -> Node:
    """Return a node; `a2` is the successor of `a` in the same slot.

    But for their slots all are alike, so their names can be given in order of arrival, and
    it is enough to look at one of all orders of names.
    """
    return Node(id=name, address="host", port=1, slot=name[0])


def possible(world: World, settings: Settings) -> Iterator[tuple[str, str, Event]]:
    """Yield what can happen next: words for it, the fault that it uses up, the event."""
    state = world.state
    for name in NODES:
        yield from _node_can(world, name, settings)
    for timer in timers(state):
        yield f"{type(timer).__name__}", "", timer
    if "close" in world.left and not isinstance(state.phase, Closed):
        yield "close", "close", Close("a user", "enough")
    if "late timer" in world.left:
        for timer in world.old_timers - set(timers(state)):
            yield f"late {timer}", "late timer", timer
    if "again" in world.left:
        for join in world.old_joins:
            yield f"again {join.node.id} after {join.after}", "again", join


def _node_can(world: World, name: NodeId, settings: Settings) -> Iterator[tuple[str, str, Event]]:
    state, left = world.state, world.left
    present = [n for n in (name, name + "2") if find(state, n) is not None]
    if not present:
        fenced = [n for n in (name, name + "2") if n in state.fenced or n in world.known]
        fresh = name if not fenced else name + "2"
        in_turn = all(n in world.known for n in NODES[: NODES.index(name)])  # all are alike
        if fresh not in fenced and in_turn and not isinstance(state.phase, Closed):
            yield f"join {fresh}", "", Join(node_of(fresh), settings)
        return
    who = present[0]
    incarnation, number = world.known.get(who, (0, 0))
    if who in state.participants:
        yield f"rejoin {who}", "", Join(node_of(who), settings, incarnation, number)
        if "fail" in left and number:
            failure = Failure(who, 0, 0, 1)
            yield f"fail {who}", "fail", Fail(who, incarnation, number, failure)
        if FINISHED_FAULT in left and number:
            yield f"finish {who}", "", Finish(who, incarnation, number)
    if "lost" in left:
        yield f"lost {who}", "lost", Lost(who, Cause.LEASE)
    if "leave" in left:
        yield f"leave {who}", "leave", Leave(who)
    if "notify" in left:
        yield f"notify {who}", "notify", Notify(who, "a notice")
    if "exclude" in left:
        out = Exclude(Aspect.NODE, who, "bad", "a user", 60.0)
        yield f"exclude {who}", "exclude", out
    member = find(state, who)
    if member is not None and not member.connected:
        yield f"reconnect {who}", "", Reconnected(who)
        yield f"grace over {who}", "", Lost(who, Cause.DISCONNECT)
    elif "cut" in left:
        yield f"cut {who}", "cut", Disconnected(who)
    if "replace" in left and who == name and name + "2" not in state.fenced:
        yield f"replace {who}", "replace", Join(node_of(name + "2"), settings)


def follow(world: World, event: Event, fault: str, step: Step) -> World:
    """Return the world after a step."""
    known = dict(world.known)
    for send in step.messages:
        if isinstance(send.message, RoundSealed):
            record = send.message.record
            known.update(dict.fromkeys(send.to, (record.incarnation, record.number)))
    joins = world.old_joins
    if isinstance(event, Join):
        known.setdefault(event.node.id, (0, 0))
        if event not in joins and "again" in world.left:
            joins = (*joins, event)
    phase = step.state.phase
    sealed = phase.record.number if isinstance(phase, Sealed) else world.sealed
    old = world.old_timers | set(timers(world.state)) if "late timer" in world.left else frozenset()
    if "again" not in world.left:
        joins = ()
    return World(step.state, known, sealed, world.left - {fault}, joins, frozenset(old))


def key(world: World) -> bytes:
    """Return what tells apart worlds that can go different ways."""
    state, change = world.state, msgspec.structs.replace
    order = sorted(m.arrival for place in PLACES for m in getattr(state, place).values())
    places: dict[str, dict[NodeId, Member]] = {
        place: {
            node: change(member, arrival=order.index(member.arrival))
            for node, member in getattr(state, place).items()
        }
        for place in PLACES
    }
    phase = state.phase
    if isinstance(phase, Sealed):
        phase = change(phase, record=change(phase.record, reason=""))
    elif isinstance(phase, Closed):
        phase = Closed(phase.round, "", "", "", phase.verdict)
    bare = change(
        state, phase=phase, opened_by="", opening="", arrivals=0,
        fenced=dict.fromkeys(state.fenced, ""), failures=state.failures[:1], **places,
    )  # fmt: skip
    joins = sorted((j.node.id, j.incarnation, j.after) for j in world.old_joins)
    late = sorted(map(_encoder.encode, world.old_timers))
    whole = _encoder.encode((bare, world.known, world.sealed, world.left, joins, late))
    return blake2b(whole, digest_size=16).digest()


# -- what must hold ---------------------------------------------------------------------------


def broken(world: World, event: Event, fault: str, step: Step) -> str:
    """Return what a step breaks, "" if nothing."""
    before, after = world.state, step.state
    wrong = check_state(after) + check_step(before, after, step.messages)
    if wrong:
        return "; ".join(wrong)
    if fault == "late timer" and (after != before or step.messages):
        return f"E1: {event} came late and changed something"
    phase = after.phase
    if isinstance(phase, Sealed) and not isinstance(before.phase, Sealed):
        return _sealing(world, event, phase, after)
    if isinstance(phase, Sealed) and isinstance(before.phase, Sealed):
        grown = phase.record.number - before.phase.record.number
        return _passed_over(before, event, after) if grown else ""
    if isinstance(phase, Closed) and not isinstance(before.phase, Closed):
        spent = before.settings is not None and before.settings.max_restarts is not None
        if not isinstance(event, Close | Fail | Finish) and not (spent and before.restarts):
            return f"L3: {event} has closed the run"
    return _untold(after, step.messages)


def _sealing(world: World, event: Event, phase: Sealed, after: State) -> str:
    if phase.record.number <= world.sealed:
        return f"round {phase.record.number} was sealed after round {world.sealed}"
    return _passed_over(world.state, event, after)


def _passed_over(before: State, event: Event, after: State) -> str:
    """G1: who worked, or came back, has a seat unless it finished, left or was lost."""
    record = after.phase.record if isinstance(after.phase, Sealed) else None
    seated = {seat.node.id for seat in record.seats} if record else set()
    for node in before.participants:
        put_out = any(node in out.nodes for out in after.exclusions)
        gone = node in after.fenced or node in after.finished or put_out
        left = isinstance(event, Leave) and event.node == node
        if node not in seated and not gone and not left:
            return f"G1: a round was sealed without {node}, who is alive"
    return ""


def _untold(after: State, messages: tuple[Send, ...]) -> str:
    """L1: whoever opens a round tells all who worked in the one before."""
    opened = [send for send in messages if isinstance(send.message, RoundOpened)]
    if not opened or not after.participants:
        return ""
    told = {node for send in opened for node in send.to}
    untold = set(after.participants) - told
    return f"L1: {sorted(untold)} were not told that their round is over" if untold else ""


def comes_to_rest(world: World, rested: set[bytes]) -> str:
    """Let everyone do its part; return what hangs, "" if the run comes to rest."""
    state = world.state
    for _ in range(30):
        bare = encode(state)
        if bare in rested:
            return ""
        rested.add(bare)
        if isinstance(state.phase, Sealed | Closed):
            return ""
        event = _next_part(state)
        if event is None:
            least = state.settings.min_nodes if state.settings else 1
            few = len(state.candidates) < least and not state.participants
            return "" if few else f"nothing moves {state.phase}"
        state = advance(state, event).state
    return f"it does not come to rest: {state.phase}"


def _next_part(state: State) -> Event | None:
    for place in PLACES:
        for node, member in getattr(state, place).items():
            if not member.connected:
                return Lost(node, Cause.DISCONNECT, member.beats)
    if state.settings is not None:
        for member in state.participants.values():
            number = round_number(state.phase) - 1
            return Join(member.node, state.settings, state.incarnation, number)
    for timer in timers(state):
        return timer
    return None
