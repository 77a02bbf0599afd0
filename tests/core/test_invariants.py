"""The invariants catch what is planted, and only that."""

from typing import Any

import msgspec
import pytest
from tests.core.builders import Drive, a_node, sealed

from rallypoint.core.advance import advance
from rallypoint.core.events import (
    Close,
    Exclude,
    Finish,
    Notify,
    RoundSealed,
    Send,
    WaitingChanged,
)
from rallypoint.core.invariants import check_state, check_step
from rallypoint.core.state import (
    FENCED_LIMIT,
    Aspect,
    Closed,
    Exclusion,
    Gathering,
    LastCall,
    Member,
    Notice,
    Round,
    RunState,
    Sealed,
)


def change(value: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(value, **fields)


RUN = sealed("node1", "node2", "node3")
GOOD = RUN.state
RECORD = RUN.record
ONE, TWO = RECORD.seats[0], RECORD.seats[1]
EXTRA = {"x": Member(node=a_node("x", id="x"), arrival=9)}


NOTICE = Notice("x", "x", "why", "alice")
OUT = Exclusion(1, Aspect.NODE, "node2", "why", "alice")


def record_with(*seats: Any, **fields: Any) -> RunState:
    return change(GOOD, phase=Sealed(change(RECORD, seats=seats, **fields)))


def gathering() -> RunState:
    run = Drive(2, 4)
    run.join("node1")
    return run.state


BROKEN_STATES: dict[str, tuple[RunState, str]] = {
    "two places": (change(GOOD, spares=GOOD.participants), "a node is in more than one place"),
    "fenced": (change(GOOD, fenced={"node2": "why"}), "fenced nodes hold a place: ['node2']"),
    "wrong id": (change(GOOD, spares={"y": EXTRA["x"]}), "spares[y] holds node x"),
    "waiting": (change(gathering(), waiting=EXTRA), "nodes wait or are spare while a round"),
    "spare": (change(gathering(), spares=EXTRA), "nodes wait or are spare while a round gathers"),
    "candidate": (change(GOOD, candidates=EXTRA), "there are candidates in a sealed round"),
    "call": (change(GOOD, phase=LastCall(2, 1)), "a last call runs while former participants"),
    "gone": (change(GOOD, notices={"x": NOTICE}), "notices of nodes that have gone: ['x']"),
    "done and noticed": (
        change(GOOD, finished=EXTRA, notices={"x": NOTICE}),
        "notices of nodes that have gone: ['x']",
    ),
    "kept out": (
        change(GOOD, exclusions=(OUT,)),
        "node2 is excluded and has a place: node node2 was excluded by alice",
    ),
    "closed": (change(GOOD, phase=Closed(1, "", "", "")), "closed, but participants is not empty"),
    "ranks": (record_with(TWO, ONE), "ranks are not 0..n-1: [1, 0]"),
    "hole": (record_with(ONE, change(TWO, rank=2)), "ranks are not 0..n-1: [0, 2]"),
    "twice": (record_with(ONE, change(ONE, rank=1)), "a node has two seats"),
    "few": (record_with(ONE), "1 seats are outside the bounds"),
    "many": (
        change(GOOD, settings=change(GOOD.settings, max_nodes=2)),
        "3 seats are outside the bounds",
    ),
    "goal": (
        change(GOOD, settings=change(GOOD.settings, target_nodes=2)),
        "3 seats are outside the bounds",
    ),
    "unopened": (change(GOOD, settings=None), "3 seats are outside the bounds of None"),
    "no seat": (
        change(GOOD, participants={**GOOD.participants, **EXTRA}),
        "a participant has no seat, or has finished",
    ),
    "done": (
        change(GOOD, phase=Sealed(RECORD, frozenset({"node1"}))),
        "a participant has no seat, or has finished",
    ),
    "empty seat": (change(GOOD, participants={}), "a seat is neither at work nor done"),
    "offsets": (
        record_with(ONE, change(TWO, worker_offset=5), RECORD.seats[2]),
        "worker ranks do not follow the nodes' ranks",
    ),
    "world": (
        record_with(*RECORD.seats, world_size=9),
        "worker ranks do not follow the nodes' ranks",
    ),
}


@pytest.mark.parametrize(("state", "sentence"), BROKEN_STATES.values(), ids=BROKEN_STATES)
def test_planted_states_are_caught(state: RunState, sentence: str) -> None:
    assert any(text.startswith(sentence) for text in check_state(state)), check_state(state)


def test_valid_states_pass() -> None:
    closed = advance(GOOD, Close("alice", "enough")).state
    noticed = advance(GOOD, Notify("node2", "why")).state
    done = advance(GOOD, Finish("node2", 1, 1), Exclude(Aspect.NODE, "node2", "", "me")).state
    assert (list(noticed.notices), list(done.finished)) == (["node2"], ["node2"])
    for state in (RunState(run_id="x"), GOOD, gathering(), closed, noticed, done):
        assert check_state(state) == []
        assert check_step(state, state, ()) == []


CLOSED = change(GOOD, phase=Closed(1, "a", "", ""), participants={})
NEXT = change(GOOD, phase=Gathering(round=2))
OTHER: Round = change(RECORD, reason="another")


def full(*names: int) -> RunState:
    return change(GOOD, fenced={f"f{i}": "why" for i in names})


BROKEN_STEPS: dict[str, tuple[RunState, RunState, str]] = {
    "fell": (NEXT, GOOD, "the round number fell from 2 to 1"),
    "incarnation": (change(GOOD, incarnation=2), GOOD, "the incarnation fell"),
    "revived": (CLOSED, NEXT, "a closed run changed"),
    "retold": (CLOSED, change(CLOSED, phase=Closed(1, "b", "", "")), "a closed run changed"),
    "changed": (GOOD, change(GOOD, phase=Sealed(OTHER)), "sealed round 1 changed"),
    "undone": (
        change(GOOD, phase=Sealed(RECORD, frozenset({"node1"}))),
        GOOD,
        "a finished node is not finished any more",
    ),
    "forgot one": (full(1, 2), full(1), "fenced nodes were forgotten: ['f2']"),
    "forgot all": (full(1, 2), GOOD, "fenced nodes were forgotten: ['f1', 'f2']"),
    "swapped": (full(1, 2), full(1, 3), "fenced nodes were forgotten: ['f2']"),
}


@pytest.mark.parametrize(("before", "after", "sentence"), BROKEN_STEPS.values(), ids=BROKEN_STEPS)
def test_planted_steps_are_caught(before: RunState, after: RunState, sentence: str) -> None:
    assert sentence in check_step(before, after, ())


def test_oldest_fence_is_forgotten_when_the_list_is_full() -> None:
    before, after = full(*range(FENCED_LIMIT)), full(*range(1, FENCED_LIMIT + 1))
    assert check_step(before, after, ()) == []


def test_new_incarnation_may_follow_a_closed_one() -> None:
    assert check_step(CLOSED, change(NEXT, incarnation=2), ()) == []


def tell(record: Round) -> tuple[Send, ...]:
    return (
        Send(("node1",), WaitingChanged(1, 1, 0)),
        Send(("node1",), RoundSealed(record)),
    )


STANDS = {
    "stands": (GOOD, RECORD, True),
    "over already": (NEXT, RECORD, True),
    "closed already": (CLOSED, RECORD, True),
    "an incarnation ago": (change(NEXT, incarnation=2), change(RECORD, number=9), True),
    "another record": (GOOD, OTHER, False),
    "not sealed": (change(GOOD, phase=Gathering(round=1)), RECORD, False),
    "of the future": (GOOD, change(RECORD, number=2), False),
    "closed before": (CLOSED, change(RECORD, number=2), False),
}


@pytest.mark.parametrize(("after", "record", "good"), STANDS.values(), ids=STANDS)
def test_only_a_current_round_is_sent(after: RunState, record: Round, good: bool) -> None:
    number = record.number
    expected = [] if good else [f"nodes were told of round {number}, which does not stand"]
    before = change(RunState(run_id="demo"), fenced=after.fenced)
    assert check_step(before, after, tell(record)) == expected
