"""A model check of the core: every order of events of a few nodes, over the real `advance`.

The search goes breadth first from the empty run. In each state it tries every possible next
event: what nodes do, what hosts report, each running timer, and each fault that this path has
not used yet. Visited states are compared without texts and with arrivals as an order, since those
decide nothing. After each step the invariants and the rules G1, L1, L3 and E1 must hold. From each
state the run must settle if every node does its part.
"""

import time
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b

import msgspec

from rallypoint.core.advance import Step, advance, timers
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
    Aspect,
    Closed,
    Failure,
    Member,
    Node,
    NodeId,
    RunState,
    Sealed,
    Settings,
    encode_state,
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


class Situation(msgspec.Struct, frozen=True):
    """A state of the run, and what nodes and network remember.

    Args:
        state: of the core.
        known: incarnation and round that each node last knew.
        sealed: number of the last sealed round.
        left: faults that may still happen.
        old_joins: joins that were sent and may arrive again.
        old_timers: timers that have run and may fire late.
    """

    state: RunState
    known: dict[NodeId, tuple[int, int]] = {}
    sealed: int = 0
    left: frozenset[str] = frozenset(FAULTS)
    old_joins: tuple[Join, ...] = ()
    old_timers: frozenset[Timer] = frozenset()


class Broken(Exception):
    """A rule does not hold; `path` lists the events that lead there."""

    def __init__(self, what: str, path: list[str]) -> None:
        super().__init__("\n  ".join([what, *path]))
        self.path = path


class ModelCheck(msgspec.Struct):
    """The result of a model check."""

    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    complete: bool = True

    def line(self) -> str:
        """Return the figures as text."""
        end = "complete" if self.complete else "not complete"
        return f"{self.states} states, {self.steps} steps in {self.seconds:.1f} s: {end}"


def explore(
    settings: Settings, faults: tuple[str, ...] = FAULTS, limit_seconds: float = float("inf")
) -> ModelCheck:
    """Explore all orders of events; raise Broken if a rule does not hold."""
    began = time.monotonic()
    first = Situation(RunState("model"), left=frozenset(faults))
    paths: dict[bytes, tuple[bytes, str]] = {key(first): (b"", "")}
    queue = deque([(first, key(first))])
    report, settled = ModelCheck(states=1), set[bytes]()
    while queue:
        situation, here = queue.popleft()
        for words, fault, event in possible(situation, settings):
            step = advance(situation.state, event)
            report.steps += 1
            after = follow(situation, event, fault, step)
            there = key(after)
            new = there not in paths
            what = broken(situation, event, fault, step) or (settles(after, settled) if new else "")
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
    """Return the events, as text, that lead to a state."""
    words: list[str] = []
    while here:
        here, word = paths[here]
        words.append(word)
    return list(reversed(words[:-1]))


def node_of(name: NodeId) -> Node:
    """Return a node; `a2` is the successor of `a` in the same slot.

    Nodes differ in nothing but their slots, so names are given in order of arrival: one order of
    names stands for all of them.
    """
    return Node(id=name, address="host", port=1, slot=name[0])


def possible(situation: Situation, settings: Settings) -> Iterator[tuple[str, str, Event]]:
    """Yield each possible next event: its text, the fault that it uses up, the event."""
    state = situation.state
    for name in NODES:
        yield from _node_can(situation, name, settings)
    for timer in timers(state):
        yield f"{type(timer).__name__}", "", timer
    if "close" in situation.left and not isinstance(state.phase, Closed):
        yield "close", "close", Close("a user", "enough")
    if "late timer" in situation.left:
        for timer in situation.old_timers - set(timers(state)):
            yield f"late {timer}", "late timer", timer
    if "again" in situation.left:
        for join in situation.old_joins:
            yield f"again {join.node.id} after {join.after}", "again", join


def _node_can(
    situation: Situation, name: NodeId, settings: Settings
) -> Iterator[tuple[str, str, Event]]:
    state, left = situation.state, situation.left
    present = [n for n in (name, name + "2") if find(state, n) is not None]
    if not present:
        fenced = [n for n in (name, name + "2") if n in state.fenced or n in situation.known]
        fresh = name if not fenced else name + "2"
        in_turn = all(n in situation.known for n in NODES[: NODES.index(name)])  # nodes are alike
        if fresh not in fenced and in_turn and not isinstance(state.phase, Closed):
            yield f"join {fresh}", "", Join(node_of(fresh), settings)
        return
    who = present[0]
    incarnation, number = situation.known.get(who, (0, 0))
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


def follow(situation: Situation, event: Event, fault: str, step: Step) -> Situation:
    """Return the situation after a step."""
    known = dict(situation.known)
    for send in step.messages:
        if isinstance(send.message, RoundSealed):
            record = send.message.record
            known.update(dict.fromkeys(send.to, (record.incarnation, record.number)))
    joins = situation.old_joins
    if isinstance(event, Join):
        known.setdefault(event.node.id, (0, 0))
        if event not in joins and "again" in situation.left:
            joins = (*joins, event)
    phase = step.state.phase
    sealed = phase.record.number if isinstance(phase, Sealed) else situation.sealed
    old = (
        situation.old_timers | set(timers(situation.state))
        if "late timer" in situation.left
        else frozenset()
    )
    if "again" not in situation.left:
        joins = ()
    return Situation(step.state, known, sealed, situation.left - {fault}, joins, frozenset(old))


def key(situation: Situation) -> bytes:
    """Return a digest that is equal for situations with the same future."""
    state, change = situation.state, msgspec.structs.replace
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
    joins = sorted((j.node.id, j.incarnation, j.after) for j in situation.old_joins)
    late = sorted(map(_encoder.encode, situation.old_timers))
    whole = _encoder.encode((bare, situation.known, situation.sealed, situation.left, joins, late))
    return blake2b(whole, digest_size=16).digest()


# -- rules ------------------------------------------------------------------------------------


def broken(situation: Situation, event: Event, fault: str, step: Step) -> str:
    """Return the rule that a step breaks, "" if none."""
    before, after = situation.state, step.state
    wrong = check_state(after) + check_step(before, after, step.messages)
    if wrong:
        return "; ".join(wrong)
    if fault == "late timer" and (after != before or step.messages):
        return f"E1: {event} fired late and changed the state"
    phase = after.phase
    if isinstance(phase, Sealed) and not isinstance(before.phase, Sealed):
        return _sealing(situation, event, phase, after)
    if isinstance(phase, Sealed) and isinstance(before.phase, Sealed):
        grown = phase.record.number - before.phase.record.number
        return _passed_over(before, event, after) if grown else ""
    if isinstance(phase, Closed) and not isinstance(before.phase, Closed):
        spent = before.settings is not None and before.settings.max_restarts is not None
        if not isinstance(event, Close | Fail | Finish) and not (spent and before.restarts):
            return f"L3: {event} has closed the run"
    return _unnotified(after, step.messages)


def _sealing(situation: Situation, event: Event, phase: Sealed, after: RunState) -> str:
    if phase.record.number <= situation.sealed:
        return f"round {phase.record.number} was sealed after round {situation.sealed}"
    return _passed_over(situation.state, event, after)


def _passed_over(before: RunState, event: Event, after: RunState) -> str:
    """G1: a participant has a seat in the next round unless it finished, left or was lost."""
    record = after.phase.record if isinstance(after.phase, Sealed) else None
    seated = {seat.node.id for seat in record.seats} if record else set()
    for node in before.participants:
        put_out = any(node in out.nodes for out in after.exclusions)
        gone = node in after.fenced or node in after.finished or put_out
        left = isinstance(event, Leave) and event.node == node
        if node not in seated and not gone and not left:
            return f"G1: a round was sealed without {node}, which is alive"
    return ""


def _unnotified(after: RunState, messages: tuple[Send, ...]) -> str:
    """L1: when a round opens, all participants of the round before are notified."""
    opened = [send for send in messages if isinstance(send.message, RoundOpened)]
    if not opened or not after.participants:
        return ""
    notified = {node for send in opened for node in send.to}
    unnotified = set(after.participants) - notified
    return (
        f"L1: {sorted(unnotified)} were not notified that their round is over" if unnotified else ""
    )


def settles(situation: Situation, settled: set[bytes]) -> str:
    """Let every node do its part; return what hangs, "" if the run settles."""
    state = situation.state
    for _ in range(30):
        bare = encode_state(state)
        if bare in settled:
            return ""
        settled.add(bare)
        if isinstance(state.phase, Sealed | Closed):
            return ""
        event = _next_part(state)
        if event is None:
            least = state.settings.min_nodes if state.settings else 1
            few = len(state.candidates) < least and not state.participants
            return "" if few else f"nothing moves {state.phase}"
        state = advance(state, event).state
    return f"the run does not settle: {state.phase}"


def _next_part(state: RunState) -> Event | None:
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
