"""Joining, going and working, rule by rule (J1, J6, N1, N2, L1 to L3, I1, C1, E1, F1, B1)."""

from typing import Any

import pytest
from tests.rendezvous.core.builders import Drive, a_failure, a_settings, sealed

from rallypoint.rendezvous.core.events import (
    Beat,
    Cause,
    Disconnected,
    Event,
    Fail,
    Finish,
    Join,
    Leave,
    Lost,
    Parked,
    Reconnected,
    Refusal,
    Refused,
    RoundOpened,
    RoundSealed,
    RunClosed,
    WaitingChanged,
)
from rallypoint.rendezvous.core.state import (
    FAILURES_LIMIT,
    Closed,
    Gathering,
    Standing,
    find,
)


def refusal(run: Drive, node: str) -> Refused:
    """Return the one refusal that the last step has for a node."""
    (message,) = (m for m in run.sent(node) if isinstance(m, Refused))
    return message


def unchanged(run: Drive, *events: Event) -> None:
    """Let events happen that must change nothing and tell nobody anything."""
    before = run.state
    step = run.do(*events)
    assert (step.state, step.messages) == (before, ())


# -- J1: joining is idempotent ------------------------------------------------------------


@pytest.mark.parametrize("others", [[], ["node2"]], ids=["gathering", "last call"])
def test_j1_a_join_makes_a_candidate_and_again_changes_nothing(others: list[str]) -> None:
    run = Drive(2, 4)
    run.join("node1", *others)
    assert run.places() == {"candidates": ["node1", *others]}
    unchanged(run, run.joining("node1"))


def test_j1_joining_again_after_the_answer_was_lost_gives_the_same_record() -> None:
    run = sealed("node1", "node2")
    before = run.state
    run.join("node1", after=0)
    assert run.sent("node1") == [RoundSealed(run.record)]
    assert run.sent("node2") == []
    assert run.state == before
    run.join("node3")
    run.join("node1", after=0)
    assert run.sent("node1") == [RoundSealed(run.record), WaitingChanged(1, 1, 1)]


def test_j1_a_candidate_of_a_later_round_asks_again() -> None:
    run = sealed("node1", "node2", "node3")
    run.rejoin("node1")
    unchanged(run, run.joining("node1", after=1))


@pytest.mark.parametrize(("names", "spare"), [(["node1", "node2"], False), (["a", "b"], True)])
def test_j1_n1_who_waits_and_asks_again_is_told_so(names: list[str], spare: bool) -> None:
    run = sealed(*names, most=2 if spare else 4)
    run.join("node9")
    before = run.state
    run.join("node9")
    assert run.sent("node9") == [Parked(1, 1, spare, "waits for the next round")]
    assert run.state == before


# -- J6: bounds ---------------------------------------------------------------------------


@pytest.mark.parametrize(("least", "most"), [(1, 4), (2, 5), (3, 3)])
def test_j6_other_bounds_are_refused_naming_both_and_the_opener(least: int, most: int) -> None:
    run = Drive(2, 4)
    run.join("node1")
    before = run.state
    step = run.join("node2", settings=a_settings(least, most))
    assert run.state == before
    assert refusal(run, "node2").refusal is Refusal.SETTINGS
    assert refusal(run, "node2").why == (
        f"min_nodes={least}, max_nodes={most} were asked for, but the run was opened with "
        "min_nodes=2, max_nodes=4 by node1 pid 1; give all nodes the same"
    )
    assert step.reason.startswith(f"refused node2: min_nodes={least}")


def test_j6_only_the_bounds_must_agree_the_openers_other_settings_stand() -> None:
    run = Drive(2, 4)
    run.join("node1")
    run.join("node2", settings=a_settings(2, 4, last_call_seconds=1, max_restarts=9))
    assert run.state.settings == a_settings(2, 4)
    assert run.phase == "LastCall"


def test_j6_bounds_can_be_set_anew_when_no_live_node_is_left() -> None:
    run = Drive(2, 4)
    run.join("node1")
    run.leave("node1")
    run.join("node2", settings=a_settings(1, 1))
    assert run.ranks() == ["node2"]
    assert run.state.opened_by == "node2 pid 2"


def test_j6_holds_while_a_finished_node_is_there() -> None:
    run = sealed("node1", "node2")
    run.finish("node1")
    run.leave("node2")
    run.join("node3", settings=a_settings(1, 1))
    assert refusal(run, "node3").refusal is Refusal.SETTINGS


# -- N1, N2: a round is at work -----------------------------------------------------------


def test_n1_a_newcomer_waits_while_there_is_room_and_is_a_spare_when_there_is_none() -> None:
    run = sealed("node1", "node2", most=3)
    run.join("node3")
    assert run.places() == {"participants": ["node1", "node2"], "waiting": ["node3"]}
    why = "round 1 is at work with 2 nodes; the next one has room"
    assert run.sent("node3") == [Parked(1, 1, False, why)]
    assert run.sent("node1") == run.sent("node2") == [WaitingChanged(1, 1, 1)]
    assert run.step.reason == (
        f"node3 pid 3 waits: {why}; round 1 is at work with 2 nodes; 1 wait for the next round"
    )
    run.join("node4")
    assert run.places()["spares"] == ["node4"]
    assert run.sent("node4") == [Parked(1, 1, True, "round 1 is full (max_nodes=3)")]
    assert run.sent("node1") == []  # spares never disturb a round
    assert run.step.reason.endswith("; 1 wait for the next round; 1 spare")


@pytest.mark.cases("C4")
def test_c4_a_node_after_the_last_call_comes_in_with_the_next_round() -> None:
    run = sealed("node1", "node2")
    run.join("late")
    assert run.kinds("late") == ["Parked"]
    run.rejoin("node1", "node2", why="nodes wait")
    assert run.ranks() == ["node1", "node2", "late"]


@pytest.mark.cases("E3")
def test_e3_n1_the_fifth_of_four_is_a_spare() -> None:
    run = sealed("node1", "node2", "node3", "node4", least=4, most=4)
    run.join("node5")
    assert run.places()["spares"] == ["node5"]
    assert run.kinds("node5") == ["Parked"]
    run.lose("node2")
    run.rejoin("node1", "node3", "node4")  # and node5 need not ask again
    assert run.ranks() == ["node1", "node5", "node3", "node4"]


def test_n2_a_participant_that_joins_again_opens_a_round_and_all_are_told_why() -> None:
    run = sealed("node1", "node2")
    step = run.rejoin("node1", why="nodes wait")
    why = "node1 pid 1 asked for a new round: nodes wait"
    assert run.sent("node2") == [RoundOpened(1, 2, why)]
    assert run.places() == {"candidates": ["node1"], "participants": ["node2"]}
    assert step.state.opening == why
    assert f"(opened because {why})" in step.reason
    run.rejoin("node2")
    assert (run.number, run.state.opening) == (2, "")


def test_n2_without_a_reason_there_still_is_one() -> None:
    run = sealed("node1", "node2")
    run.rejoin("node1")
    assert run.state.opening == "node1 pid 1 asked for a new round: it joined again"


def test_n2_uses_up_no_budget() -> None:
    run = sealed("node1", "node2", max_restarts=0)
    run.rejoin("node1", "node2")
    assert (run.number, run.state.restarts) == (2, 0)


def test_n2_a_rejoin_brings_a_new_port_but_keeps_slot_and_hint() -> None:
    run = Drive(2, 2)
    run.join("node1", slot="s1", node_rank=1)
    run.join("node2")
    before = run.record.seats[1].node
    again = run.joining("node1", after=1, port=999, slot="s7", node_rank=0)
    run.do(again)
    run.rejoin("node2")
    seat = run.record.seats[1]
    assert (seat.node.id, seat.node.port, before.port) == ("node1", 999, 20_001)
    assert (seat.node.slot, seat.node.node_rank) == ("s1", 1)


# -- L1, L2, L3: going --------------------------------------------------------------------


@pytest.mark.parametrize("cause", list(Cause))
def test_l1_a_loss_opens_the_next_round_and_names_who_was_lost(cause: Cause) -> None:
    run = sealed("node1", "node2", "node3")
    step = run.lose("node3", cause)
    why = f"node3 pid 3 was lost: {cause.value}"
    assert step.state.phase == Gathering(round=2, lost=True, former=3)
    assert run.sent("node1") == run.sent("node2") == [RoundOpened(1, 2, why, ("node3 pid 3",))]
    fenced = Refused(Refusal.FENCED, f"node3 pid 3: {cause.value}", 1, 1)
    assert run.sent("node3") == [fenced]
    assert step.reason == (
        f"round 2 opens: {why}; 0 of at least 2 nodes have joined round 2 (opened because {why}); "
        "waiting for node1 pid 1, node2 pid 2 to join again (rejoin_timeout=60 s)"
    )


def test_l1_the_last_participant_is_lost() -> None:
    run = sealed("node1", least=1, most=1)
    run.lose("node1")
    assert (run.places(), run.step.timers) == ({}, ())
    assert run.kinds("node1") == ["Refused"]


@pytest.mark.parametrize("why", ["", "SIGTERM"])
@pytest.mark.cases("C1")
def test_c1_l1_l3_leaving_opens_a_round_and_closes_nothing(why: str) -> None:
    run = sealed("node1", "node2", "node3", least=1)
    run.leave("node1", why)
    text = "node1 pid 1 left" + (": SIGTERM" if why else "")
    assert run.sent("node2") == [RoundOpened(1, 2, text, ("node1 pid 1",))]
    assert run.sent("node1") == []
    assert run.state.fenced == {}
    run.rejoin("node2", "node3")
    assert sorted(run.ranks()) == ["node2", "node3"]
    run.join("node1b")  # and it may come back
    assert run.places()["waiting"] == ["node1b"]


@pytest.mark.cases("C9")
def test_c9_l3_when_all_leave_the_run_is_still_open() -> None:
    run = sealed("node1", "node2")
    run.leave("node1", "ValueError")
    run.leave("node2", "ValueError")
    assert run.phase == "Gathering"
    run.join("node3", "node4")
    run.last_call_over()
    assert run.ranks() == ["node3", "node4"]


def test_l1_a_late_lapse_changes_nothing() -> None:
    run = sealed("node1", "node2")
    run.do(Beat("node2"))
    unchanged(run, Lost("node2", Cause.LEASE, beats=0))
    run.lose("node2", beats=1)
    assert run.number == 2


def test_l1_a_beat_is_counted_in_every_place() -> None:
    run = sealed("node1", "node2", most=2)
    run.join("node3")
    run.finish("node2")
    run.do(Beat("node1"), Beat("node2"), Beat("node3"), Beat("node3"), Beat("nobody"))
    beats = [member.beats for n in ("node1", "node2", "node3") if (member := find(run.state, n))]
    assert beats == [1, 1, 2]
    run.rejoin("node1")
    member = find(run.state, "node1")
    assert member is not None
    assert member.beats == 1  # or a lapse seen before could kill it


def test_l1_a_cut_connection_that_comes_back_changes_nothing_else() -> None:
    run = sealed("node1", "node2")
    before = run.state
    step = run.do(Disconnected("node1"))
    assert (step.messages, step.timers) == ((), ())
    member = find(step.state, "node1")
    assert member is not None
    assert not member.connected
    unchanged(run, Disconnected("node1"))
    assert run.do(Reconnected("node1")).state == before
    unchanged(run, Reconnected("node1"), Disconnected("nobody"), Reconnected("nobody"))


def test_l1_joining_again_over_another_connection_marks_it_connected() -> None:
    run = sealed("node1", "node2")
    run.do(Disconnected("node1"))
    run.rejoin("node1")
    member = find(run.state, "node1")
    assert member is not None
    assert member.connected


def test_l1_losing_one_that_waits_is_told_as_a_count() -> None:
    run = sealed("node1", "node2")
    run.join("node3", "node4")
    run.lose("node3")
    assert run.sent("node1") == [WaitingChanged(1, 1, 1)]
    assert run.number == 1


@pytest.mark.parametrize("place", ["spares", "finished"])
def test_l1_losing_one_that_does_not_work_disturbs_nobody(place: str) -> None:
    run = sealed("node1", "node2", most=2)
    run.join("node3")
    run.finish("node2")
    gone = {"spares": "node3", "finished": "node2"}[place]
    run.lose(gone)
    assert [send.to for send in run.step.messages] == [(gone,)]
    assert run.phase == "Sealed"


def test_l2_a_fenced_node_is_told_before_anything_else() -> None:
    run = sealed("node1", "node2", "node3")
    run.lose("node3")
    before = run.state
    for after in (0, 1):
        run.join("node3", after=after, settings=a_settings(9, 9))
        assert refusal(run, "node3").refusal is Refusal.FENCED
        assert refusal(run, "node3").why == "node3 pid 3: its lease lapsed"
        assert run.state == before
    run.close()
    run.join("node3")
    assert refusal(run, "node3").refusal is Refusal.FENCED


@pytest.mark.cases("C2")
@pytest.mark.parametrize("noticed", [False, True], ids=["in-time", "after-the-loss"])
def test_c2_l2_who_comes_back_joins_as_a_newcomer(noticed: bool) -> None:
    run = sealed("node1", "node2", "node3")
    run.lose("node3")
    if noticed:
        run.rejoin("node1", "node2")
    run.join("node3b")
    run.rejoin("node1", "node2")
    assert run.ranks() == ["node1", "node2", "node3b"]


@pytest.mark.parametrize(("after", "incarnation"), [(1, 1), (1, 0), (0, 7), (3, 2)])
def test_l2_e1_one_that_speaks_of_what_is_not_known_is_fenced(after: int, incarnation: int) -> None:
    run = sealed("node1", "node2")
    before = run.state
    run.join("ghost", after=after, incarnation=incarnation)
    assert refusal(run, "ghost").refusal is Refusal.FENCED
    assert refusal(run, "ghost").why == (
        f"it speaks of incarnation {incarnation}, round {after}, "
        "in which it is not known here any more"
    )
    assert run.state == before


@pytest.mark.parametrize("event", [Leave("nobody"), Lost("nobody", Cause.DIED)])
def test_l1_a_stranger_that_goes_changes_nothing(event: Event) -> None:
    run = sealed("node1", "node2")
    unchanged(run, event)


# -- I1 and hints: the same place ---------------------------------------------------------


@pytest.mark.parametrize("place", ["candidates", "participants", "waiting", "spares"])
def test_i1_the_same_slot_replaces_at_once_and_fences_the_old_one(place: str) -> None:
    run = Drive(2, 3)
    if place == "candidates":
        run.join("old", slot="pod-1")
    elif place == "participants":
        run.join("old", slot="pod-1")
        run.join("node1", "node2")
    else:
        run.join(*["node1", "node2", "node3"][: 2 if place == "waiting" else 3])
        if place == "waiting":
            run.last_call_over()
        run.join("old", slot="pod-1")
    assert "old" in run.places()[place]
    step = run.join("new", slot="pod-1")
    assert refusal(run, "old").why == "old id old: replaced by new id new in the same place"
    assert set(run.state.fenced) == {"old"}
    expected = "candidates" if place == "participants" else place
    assert "new" in run.places()[expected]
    assert step.messages


def test_i1_a_replacement_takes_rank_and_standing_of_a_participant() -> None:
    run = Drive(2, 3)
    run.join("a", slot="s0")
    run.join("b", slot="s1")
    run.join("c", slot="s2")
    run.join("spare")
    run.join("b2", slot="s1")
    assert run.number == 2
    assert run.step.reason.startswith("round 2 opens: b id b was lost: replaced by b2 pid 2")
    member = run.state.candidates["b2"]
    assert (member.rank, member.standing) == (1, Standing.MEMBER)
    run.rejoin("a", "c")
    assert run.ranks() == ["a", "b2", "c"]
    assert run.places()["spares"] == ["spare"]


def test_i1_a_finished_node_keeps_no_slot() -> None:
    for batch in (False, True):
        run = Drive(2, 2)
        run.join("a", slot="s0")
        run.join("b", slot="s1")
        done = Finish("a", 1, 1)
        if batch:
            run.do(run.joining("c", slot="s9"), done, run.joining("a2", slot="s0"))
        else:
            run.do(run.joining("c", slot="s9"))
            run.do(done)
            run.do(run.joining("a2", slot="s0"))
        assert run.places()["finished"] == ["a"]
        assert run.state.fenced == {}


@pytest.mark.cases("E2")
def test_e2_r1_a_duplicate_hint_is_refused_naming_both() -> None:
    run = Drive(2, 3)
    run.join("node1", node_rank=1)
    before = run.state
    run.join("node2", node_rank=1)
    assert refusal(run, "node2").refusal is Refusal.NODE_RANK
    assert refusal(run, "node2").why == (
        "node_rank=1 is taken by node1 pid 1, asked for by node2 pid 2; give each node another one"
    )
    assert run.state == before
    run.join("node2", node_rank=0)
    run.last_call_over()
    assert run.ranks() == ["node2", "node1"]


def test_r1_a_duplicate_hint_is_refused_even_with_another_nodes_slot() -> None:
    run = Drive(3, 3)
    run.join("a", slot="s0", node_rank=0)
    run.join("b", slot="s1", node_rank=1)
    before = run.state
    run.join("c", slot="s0", node_rank=1)
    assert refusal(run, "c").refusal is Refusal.NODE_RANK
    assert run.state == before
    run.join("c", slot="s0", node_rank=0)
    assert run.places() == {"candidates": ["b", "c"]}


def test_i1_a_hint_of_one_whose_connection_is_cut_replaces_it() -> None:
    run = Drive(2, 2)
    run.join("a", node_rank=0)
    run.join("b", node_rank=1)
    run.do(Disconnected("b"))
    run.join("b2", node_rank=1)
    assert set(run.state.fenced) == {"b"}
    run.rejoin("a")
    assert run.ranks() == ["a", "b2"]


def test_i1_slot_of_one_and_hint_of_another_cut_one_replace_both() -> None:
    run = Drive(3, 3)
    run.join("a", slot="s0")
    run.join("b", node_rank=1)
    run.do(Disconnected("b"))
    run.join("c", slot="s0", node_rank=1)
    assert run.places() == {"candidates": ["c"]}
    assert set(run.state.fenced) == {"a", "b"}


# -- C1, C7: closed, and opened afresh ----------------------------------------------------


def test_c1_every_join_is_refused_with_who_when_and_why() -> None:
    run = sealed("node1", "node2")
    run.fail("node1", a_failure("node1", message="boom"))
    run.close("alice", "wrong data", "10:15")
    assert run.state.phase == Closed(2, "alice", "10:15", "wrong data")
    before = run.state
    for name in ("node1", "node9"):
        run.join(name)
        refused = refusal(run, name)
        assert refused.refusal is Refusal.CLOSED
        assert refused.why == (
            "run 'demo' was closed at 10:15 by alice: wrong data; new_incarnation opens it afresh"
        )
        assert not refused.finished
        assert [f.message for f in refused.failures] == ["boom"]
    assert run.state == before
    assert run.step.reason.startswith("refused node9: run 'demo' was closed")


@pytest.mark.parametrize(
    "event",
    [
        Leave("node1"),
        Lost("node1", Cause.LEASE),
        Finish("node1", 1, 1),
        Fail("node1", 1, 1, a_failure()),
        Beat("node1"),
        Disconnected("node1"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_c1_closed_stays_closed(event: Event) -> None:
    run = sealed("node1", "node2")
    run.close()
    unchanged(run, event)
    run.close("bob", "too late")
    assert isinstance(run.state.phase, Closed)
    assert run.state.phase.by == "alice"
    assert run.step.messages == ()


@pytest.mark.cases("C7")
@pytest.mark.parametrize("known", [0, 1])
def test_c7_c1_a_new_incarnation_opens_it_afresh(known: int) -> None:
    run = sealed("node1", "node2", max_restarts=0)
    run.fail("node1")
    assert run.phase == "Closed"
    step = run.join(
        "node1",
        new_incarnation=True,
        settings=a_settings(1, 2),
        incarnation=known,
        after=known,
    )
    assert (step.state.incarnation, run.number) == (2, 2)
    assert run.phase == "LastCall"
    assert (step.state.restarts, step.state.failures, step.state.opening) == (0, (), "")
    assert step.state.settings == a_settings(1, 2)
    # the second one asks likewise, and finds it open
    run.join(
        "node2",
        new_incarnation=True,
        settings=a_settings(1, 2),
        incarnation=known,
        after=known,
    )
    assert run.state.incarnation == 2
    assert run.ranks() == ["node1", "node2"]


def test_c7_a_finished_run_says_so_and_its_failures_are_history() -> None:
    run = sealed("node1", "node2", max_restarts=3)
    run.fail("node1")
    run.rejoin("node1", "node2")
    run.finish("node1", "node2", at="noon")
    run.join("node5")
    refused = refusal(run, "node5")
    assert refused.finished
    assert refused.failures == ()
    assert refused.why == (
        "run 'demo' finished at noon by node2 pid 2: all 2 nodes of round 2 finished; "
        "new_incarnation opens it afresh"
    )


def test_e1_new_incarnation_of_an_open_run_changes_nothing_for_a_newcomer() -> None:
    run = sealed("node1", "node2")
    run.join("node3", new_incarnation=True)
    assert run.state.incarnation == 1
    assert run.places()["waiting"] == ["node3"]


# -- F1: finishing ------------------------------------------------------------------------


def test_f1_when_all_have_finished_the_run_closes_and_the_others_go_home() -> None:
    run = sealed("node1", "node2", most=2)
    run.join("spare")
    step = run.finish("node1")
    assert run.places()["finished"] == ["node1"]
    assert step.messages == ()
    assert step.reason == (
        "node1 pid 1 has finished; round 1 is at work with 2 nodes; 1 have finished, "
        "still working: node2 pid 2; 1 spare"
    )
    step = run.finish("node2", at="noon")
    why = "all 2 nodes of round 1 finished"
    closed = RunClosed(1, 1, "node2 pid 2", "noon", why, finished=True)
    assert [run.sent(n) for n in ("node1", "node2", "spare")] == [[closed]] * 3
    assert step.state.phase == Closed(1, "node2 pid 2", "noon", why, finished=True)


def test_f1_those_who_wait_become_spares_and_newcomers_are_spares() -> None:
    run = sealed("node1", "node2")
    run.join("node3")
    run.finish("node1")
    why = "round 1 is ending: 1 nodes have finished"
    assert run.sent("node3") == [Parked(1, 1, True, why)]
    assert run.sent("node2") == [WaitingChanged(1, 1, 0)]
    assert run.step.reason.startswith("node1 pid 1 has finished; round 1 is at work")
    run.join("node4")
    assert run.sent("node4") == [Parked(1, 1, True, why)]
    assert run.places()["spares"] == ["node3", "node4"]


def test_f1_a_finished_node_is_neither_lost_nor_missing() -> None:
    run = sealed("node1", "node2", "node3", least=1)
    run.finish("node1")
    run.lose("node2")
    assert run.places() == {"finished": ["node1"], "participants": ["node3"]}
    run.rejoin("node3")
    assert run.ranks() == ["node3"]
    run.finish("node3")
    assert run.phase == "Closed"


def test_f1_a_finished_node_may_leave_and_the_run_still_finishes() -> None:
    run = sealed("node1", "node2")
    run.finish("node1")
    run.leave("node1")
    assert run.phase == "Sealed"
    run.finish("node2")
    assert isinstance(run.state.phase, Closed)
    assert run.state.phase.finished


def test_f1_below_min_it_says_who_will_not_come() -> None:
    run = sealed("node1", "node2")
    run.finish("node1")
    run.fail("node2")
    step = run.rejoin("node2")
    assert step.reason.endswith("; here: node2 pid 2; 1 have finished and will not come again")


def test_f1_finishing_twice_changes_nothing_and_a_finished_node_cannot_join() -> None:
    run = sealed("node1", "node2")
    run.finish("node1")
    unchanged(run, Finish("node1", 1, 1))
    before = run.state
    run.join("node1", after=1)
    assert refusal(run, "node1").refusal is Refusal.STALE
    assert run.state == before


def test_f1_one_that_was_done_before_it_heard_of_the_next_round() -> None:
    run = sealed("node1", "node2", "node3")
    run.lose("node3")
    step = run.do(Finish("node2", 1, 1))
    assert run.places() == {"finished": ["node2"], "participants": ["node1"]}
    assert step.reason.startswith("node2 pid 2 has finished and does not join again; ")


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Finish("node1", 2, 2), "round 2 is not the one this node works in"),
        (Finish("nobody", 1, 2), "round 2 is not the one this node works in"),
        (Finish("node1", 1, 1), "round 1 is over; this is round 2"),
        (Finish("node1", 1, 3), "round 3 is over; this is round 2"),
    ],
)
def test_e1_a_finish_of_another_round_is_refused(event: Finish, why: str) -> None:
    run = sealed("node1", "node2")
    run.rejoin("node1", "node2")
    before = run.state
    run.do(event)
    assert refusal(run, event.node) == Refused(Refusal.STALE, why, 1, 2)
    assert run.state == before


def test_e1_a_finish_of_an_older_round_while_gathering_is_refused() -> None:
    run = sealed("node1", "node2")
    run.rejoin("node1", "node2")
    run.rejoin("node1")
    run.do(Finish("node2", 1, 1))
    assert refusal(run, "node2").why == "round 1 is over; this is round 3"


# -- B1: the budget -----------------------------------------------------------------------


def test_b1_a_failing_worker_opens_a_round_and_uses_up_the_budget() -> None:
    run = sealed("node1", "node2", max_restarts=1)
    step = run.fail("node1", a_failure("node1", code=3))
    why = "a worker failed: rank 0 (local 0) on node1: exit code 3"
    assert run.sent("node2") == [RoundOpened(1, 2, why)]
    assert step.state.restarts == 1
    assert [f.round for f in step.state.failures] == [1]
    run.rejoin("node1", "node2")
    assert run.record.restarts == 1
    step = run.fail("node2", a_failure("node2", code=4, at="noon"))
    why = (
        "a worker failed and max_restarts=1 is used up: "
        "rank 0 (local 0) on node2: exit code 4 at noon"
    )
    assert step.state.phase == Closed(2, "node2 pid 2", "noon", why)
    assert step.state.restarts == 1
    (closed,) = run.sent("node1")
    assert isinstance(closed, RunClosed)
    assert [f.exit_code for f in closed.failures] == [4]


def test_b1_none_is_no_limit_and_membership_changes_cost_nothing() -> None:
    run = sealed("node1", "node2", "node3")
    for _ in range(5):
        run.fail("node1")
        run.rejoin("node1", "node2", "node3")
    assert run.state.restarts == 5
    run.lose("node3")
    run.rejoin("node1", "node2")
    assert run.state.restarts == 5


def test_b1_leaving_and_coming_back_does_not_refill_it() -> None:
    run = sealed("node1", "node2", least=1, most=2, max_restarts=1)
    run.fail("node1")
    run.leave("node1")
    run.join("node1b")
    run.rejoin("node2")
    run.fail("node1b")
    assert run.phase == "Closed"


def test_b1_later_failures_of_the_round_are_consequences_and_counted_once() -> None:
    run = sealed("node1", "node2", max_restarts=9)
    run.fail("node1", a_failure("node1", code=1))
    run.fail("node2", a_failure("node2", code=2), number=1)
    run.fail("node2", a_failure("node2", code=2), number=1)  # sent again after a reconnect
    assert [f.exit_code for f in run.state.failures] == [1, 2]
    assert run.state.restarts == 1
    for code in range(3, 60):
        run.fail("node2", a_failure("node2", code=code), number=1)
    assert len(run.state.failures) == FAILURES_LIMIT
    assert run.state.failures[0].exit_code == 1


def test_b1_failures_after_a_loss_are_not_mixed_with_those_of_an_older_round() -> None:
    run = sealed("node1", "node2", "node3")
    run.fail("node1", a_failure("node1", code=1))
    run.rejoin("node1", "node2", "node3")
    run.lose("node3")
    run.fail("node2", a_failure("node2", code=7), number=2)
    assert [(f.round, f.exit_code) for f in run.state.failures] == [(2, 7)]
    assert run.state.restarts == 1


def stale_failures() -> dict[str, dict[str, Any]]:
    return {
        "incarnation": {"node": "node1", "incarnation": 2, "round": 1},
        "stranger": {"node": "nobody", "incarnation": 1, "round": 1},
        "round": {"node": "node1", "incarnation": 1, "round": 2},
        "older": {"node": "node1", "incarnation": 1, "round": 0},
    }


@pytest.mark.parametrize("fields", stale_failures().values(), ids=stale_failures())
def test_e1_a_stale_failure_changes_nothing(fields: dict[str, Any]) -> None:
    run = sealed("node1", "node2")
    unchanged(run, Fail(failure=a_failure(), **fields))


def test_e1_a_stale_failure_while_gathering_changes_nothing() -> None:
    run = sealed("node1", "node2")
    run.rejoin("node1")
    unchanged(run, Fail("node2", 1, 2, a_failure()))
    unchanged(run, Fail("node1", 1, 1, a_failure()))  # has joined again already


def test_a_join_by_itself_opens_a_run() -> None:
    run = Drive(1, 1)
    step = run.do(Join(node=run.joining("solo").node, settings=a_settings(1, 1)))
    assert step.state.opened_by == "solo id solo"
    assert run.ranks() == ["solo"]
