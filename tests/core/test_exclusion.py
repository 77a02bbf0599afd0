"""Exclusions, rule H1: who is meant, what they lose, how they are refused and let in again."""

from typing import Any

import pytest
from tests.core.builders import Drive, a_node, refusal, sealed, unchanged

from rallypoint.core.advance import advance, timer_seconds
from rallypoint.core.events import (
    Admit,
    Exclude,
    ExclusionOver,
    Finish,
    Refusal,
    Refused,
    RoundOpened,
    WaitingChanged,
)
from rallypoint.core.exclusion import selects, told
from rallypoint.core.state import (
    EXCLUSIONS_LIMIT,
    Aspect,
    Closed,
    Exclusion,
    Gathering,
    RunState,
)

SENTENCE = "node node2 was excluded by alice at noon until it is admitted: bad memory"


def excluding(name: str = "node2", aspect: Aspect = Aspect.NODE, **more: Any) -> Exclude:
    given = {"why": "bad memory", "by": "alice", "at": "noon", **more}
    return Exclude(aspect, name, **given)


def admitting(name: str = "node2", aspect: Aspect = Aspect.NODE) -> Admit:
    return Admit(aspect, name, "bob")


# -- live nodes -----------------------------------------------------------------------------


def test_h1_excluded_live_node_loses_its_seat() -> None:
    run = sealed("node1", "node2", "node3")
    step = run.do(excluding())
    why = "node2 pid 2 was excluded by alice: bad memory"
    assert run.sent("node2") == [Refused(Refusal.EXCLUDED, SENTENCE, 1, 1)]
    assert run.sent("node1") == run.sent("node3") == [RoundOpened(1, 2, why, ("node2 pid 2",))]
    assert step.state.phase == Gathering(2, lost=True, former=3)
    assert step.state.fenced == {}
    assert step.state.exclusions == (
        Exclusion(1, Aspect.NODE, "node2", "bad memory", "alice", "noon", None, ("node2",)),
    )
    assert step.reason.startswith(f"round 2 opens: {why}; ")
    assert step.reason.endswith("; excluded: node node2 (by alice)")
    run.rejoin("node1", "node3")
    assert run.ranks() == ["node1", "node3"]


@pytest.mark.parametrize(
    ("aspect", "name", "out"),
    [
        (Aspect.NODE, "id7", ["id7"]),
        (Aspect.NODE, "h7", ["id7"]),
        (Aspect.NODE, "h7 (10.0.0.7) pid 7", ["id7"]),
        (Aspect.NODE, "10.0.0.7", []),
        (Aspect.ADDRESS, "10.0.0.7", ["id7", "id8"]),
        (Aspect.ADDRESS, "h7", []),
        (Aspect.SLOT, "s8", ["id8"]),
        (Aspect.SLOT, "id7", []),
    ],
)
def test_h1_exclusion_matches_id_host_label_address_or_slot(
    aspect: Aspect, name: str, out: list[str]
) -> None:
    nodes = [
        a_node("node7", id="id7", address="10.0.0.7", host="h7", slot="s7"),
        a_node("node8", id="id8", address="10.0.0.7", host="h8", slot="s8"),
        a_node("node9", id="id9", address="10.0.0.9", host="h9"),
    ]
    assert [node.id for node in nodes if selects(aspect, name, node)] == out


def test_h1_exclusion_removes_all_matching_nodes_at_once() -> None:
    run = Drive(1, 2)
    run.join("node1", address="a")
    run.join("node2", address="b")
    run.join("node3", address="b")
    assert run.places() == {"participants": ["node1", "node2"], "spares": ["node3"]}
    run.do(excluding("b", Aspect.ADDRESS))
    assert run.kinds("node2") == ["Refused"]
    assert run.kinds("node3") == ["RoundOpened", "Refused"]
    assert run.places() == {"participants": ["node1"]}
    run.do(excluding("a", Aspect.ADDRESS))
    assert run.places() == {}
    assert (run.phase, run.number) == ("Gathering", 2)


def test_h1_excluded_candidate_may_end_the_last_call() -> None:
    run = Drive(2, 4)
    run.join("node1", "node2")
    assert run.phase == "LastCall"
    run.do(excluding())
    assert (run.phase, run.places()) == ("Gathering", {"candidates": ["node1"]})
    assert run.kinds("node1") == []


def test_h1_excluding_a_waiting_node_opens_no_round() -> None:
    run = sealed("node1", "node3", most=3)
    run.join("node2")
    run.do(excluding())
    assert run.places() == {"participants": ["node1", "node3"]}
    assert run.sent("node1") == [WaitingChanged(1, 1, 0)]


def test_h1_failing_round_counts_although_its_node_is_excluded() -> None:
    run = sealed("node1", "node2", "node3", max_restarts=5)
    run.fail("node2")
    run.do(excluding())
    assert (run.state.restarts, run.state.failing) == (1, 1)


def test_h1_excluded_finished_node_keeps_its_place() -> None:
    run = sealed("node1", "node2")
    run.do(Finish("node2", 1, 1))
    run.do(excluding())
    assert run.places() == {"participants": ["node1"], "finished": ["node2"]}
    assert run.kinds("node2") == []
    run.join("node2")
    assert refusal(run, "node2").refusal is Refusal.EXCLUDED
    run.finish("node1")
    assert isinstance(run.state.phase, Closed)
    assert run.state.phase.finished


# -- those who come -------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1])
def test_h1_refused_join_says_who_excluded_why_and_how_long(after: int) -> None:
    run = sealed("node1", "node2", "node3")
    run.do(excluding(seconds=3600.0))
    before = run.state
    step = run.do(run.joining("node2", after=after, incarnation=1))
    why = "node node2 was excluded by alice at noon for 3600 s: bad memory"
    assert run.sent("node2") == [Refused(Refusal.EXCLUDED, why, 1, 2)]
    assert step.state == before
    assert step.reason.startswith(f"refused node2: {why}; ")


def test_h1_node_may_be_excluded_before_it_joins() -> None:
    run = Drive(1, 3)
    step = run.do(excluding("pod-3", Aspect.SLOT, seconds=60.0, why="", at=""))
    assert step.timers == (ExclusionOver(1),)
    assert step.reason.startswith("slot pod-3 was excluded by alice for 60 s: no reason was given;")
    run.join("node1", slot="pod-3")
    assert refusal(run, "node1").why == (
        "slot pod-3 was excluded by alice for 60 s: no reason was given"
    )
    run.join("node2", slot="pod-4")
    assert run.places() == {"candidates": ["node2"]}


def test_h1_exclusion_by_label_covers_a_new_process_in_the_slot() -> None:
    run = Drive(1, 3)
    run.join("node1", slot="a")
    run.join("node2", slot="b")
    run.join("node3")
    run.do(excluding("node2 pid 2"), excluding("node3 pid 3"))
    assert run.state.exclusions[0].slots == ("b",)
    assert run.state.exclusions[1].slots == ()
    run.join("node4", slot="b")
    assert refusal(run, "node4").refusal is Refusal.EXCLUDED
    run.join("node5", slot="c")
    run.join("node6")
    assert run.places()["candidates"] == ["node5", "node6"]


def test_h1_exclusion_by_address_or_slot_covers_no_other_slot() -> None:
    run = Drive(1, 3)
    run.join("node1", slot="a", address="x")
    run.do(excluding("x", Aspect.ADDRESS))
    assert run.state.exclusions[0].slots == ()
    run.join("node2", slot="a", address="y")
    assert run.places() == {"candidates": ["node2"]}


def test_h1_member_that_moves_to_an_excluded_slot_is_excluded() -> None:
    run = sealed("node1", "node2", "node3")
    run.do(excluding("rack9", Aspect.ADDRESS))
    run.fail("node1")
    run.rejoin("node1")
    moved = run.joining("node2", after=1, incarnation=1, address="rack9")
    run.do(moved)
    assert refusal(run, "node2").refusal is Refusal.EXCLUDED
    assert run.places() == {"candidates": ["node1"], "participants": ["node3"]}
    run.rejoin("node3")
    assert run.ranks() == ["node1", "node3"]


def test_h1_fence_and_close_take_precedence_over_an_exclusion() -> None:
    run = sealed("node1", "node2", "node3")
    run.lose("node2")
    run.do(excluding())
    run.join("node2")
    assert refusal(run, "node2").refusal is Refusal.FENCED
    run.close()
    run.join("node2b", host="node2")
    assert refusal(run, "node2b").refusal is Refusal.CLOSED


def test_h1_exclusions_outlive_incarnations() -> None:
    run = sealed("node1", "node2")
    run.close()
    run.do(excluding(seconds=5.0))
    assert run.step.timers == (ExclusionOver(1),)
    run.do(run.joining("node2", new_incarnation=True))
    assert refusal(run, "node2").refusal is Refusal.EXCLUDED
    assert run.phase == "Closed"
    run.do(run.joining("node1", new_incarnation=True))
    assert run.state.incarnation == 2
    run.join("node2")
    assert refusal(run, "node2").refusal is Refusal.EXCLUDED


# -- let in again ---------------------------------------------------------------------------


def test_h1_admitted_process_comes_back_as_a_newcomer() -> None:
    run = sealed("node1", "node2", "node3")
    run.do(excluding(seconds=60.0))
    run.rejoin("node1", "node3")
    for other in (admitting("node3"), admitting("node2", Aspect.SLOT), admitting("node2 pid 2")):
        unchanged(run, other)
    step = run.do(admitting())
    assert (step.state.exclusions, step.timers, step.messages) == ((), (), ())
    assert step.reason.startswith("node node2 is admitted again by bob; ")
    unchanged(run, admitting())
    run.join("node2")
    assert run.kinds("node2") == ["Parked"]


def test_h1_exclusion_ends_by_its_own_timer_only() -> None:
    run = sealed("node1", "node2", "node3")
    run.do(excluding(seconds=60.0), excluding("node3", seconds=30.0))
    assert run.step.timers[1:] == (ExclusionOver(1), ExclusionOver(2))
    assert [timer_seconds(run.state, ExclusionOver(n)) for n in (1, 2)] == [60.0, 30.0]
    step = run.do(ExclusionOver(2))
    assert [x.number for x in step.state.exclusions] == [1]
    assert step.reason.startswith("the exclusion of node node3 is over; ")
    unchanged(run, ExclusionOver(2))
    run.do(admitting(), excluding(seconds=60.0))
    assert [x.number for x in run.state.exclusions] == [3]  # the timer of the first one is another
    unchanged(run, ExclusionOver(1))


def test_h1_repeated_exclusion_restarts_its_time() -> None:
    run = Drive(1, 3)
    run.join("node1", host="h", slot="a")
    run.do(excluding("h", seconds=60.0), excluding("other", seconds=9.0))
    run.do(excluding("h", why="still bad"))
    assert [x.number for x in run.state.exclusions] == [2, 3]
    newest = run.state.exclusions[-1]
    assert (newest.why, newest.seconds) == ("still bad", None)
    assert (newest.nodes, newest.slots) == (("node1",), ("a",))
    run.join("node1", host="h", slot="a")
    assert refusal(run, "node1").why.endswith("still bad")


def test_h1_oldest_of_too_many_exclusions_ends() -> None:
    run = Drive(1, 2)
    step = advance(run.state, *(excluding(f"n{i}") for i in range(EXCLUSIONS_LIMIT)))
    assert [len(step.state.exclusions), step.state.exclusions[0].number] == [EXCLUSIONS_LIMIT, 1]
    step = advance(step.state, excluding("one more"))
    assert [len(step.state.exclusions), step.state.exclusions[0].number] == [EXCLUSIONS_LIMIT, 2]


# -- what a node that was not there is told -------------------------------------------------


def test_h1_reconnected_node_learns_its_exclusion_from_the_state() -> None:
    run = sealed("node1", "node2", "node3")
    assert told(run.state, "node2") is None
    run.do(excluding("node9"), excluding())
    assert told(run.state, "node2") == Refused(Refusal.EXCLUDED, SENTENCE, 1, 2)
    assert told(run.state, "node1") is None
    run.do(admitting())
    assert told(run.state, "node2") is None


def test_timer_of_an_unknown_exclusion_has_no_length() -> None:
    state = RunState("x", exclusions=(Exclusion(1, Aspect.NODE, "n", "why", "me"),))
    assert timer_seconds(state, ExclusionOver(1)) == 0.0
