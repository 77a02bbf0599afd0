"""Joining, rule by rule (J1, J6, N1, N2, I1, R1, C1, E1); see also test_going and test_working."""

import msgspec
import pytest
from tests.core.builders import Drive, a_failure, a_settings, refusal, sealed, unchanged

from rallypoint.core.events import (
    Beat,
    Cause,
    Disconnected,
    Event,
    Exclude,
    Fail,
    Finish,
    Leave,
    Lost,
    Parked,
    Refusal,
    RoundOpened,
    RoundSealed,
    SettingsHeld,
    WaitingChanged,
)
from rallypoint.core.state import Aspect, Closed, Newcomers, Standing

# -- L2, H1, F1: who is refused whatever it asks --------------------------------------------


def test_l2_fenced_id_is_refused_first() -> None:
    run = sealed("node1", "node2", "node3")
    run.lose("node3")
    run.close()
    run.join("node3")
    assert refusal(run, "node3").refusal is Refusal.FENCED


def test_h1_join_of_an_excluded_node_is_refused() -> None:
    run = sealed("node1", "node2")
    run.do(Exclude(Aspect.NODE, "node3", "why", "alice"))
    before = run.state
    run.join("node3")
    assert refusal(run, "node3").refusal is Refusal.EXCLUDED
    assert run.state == before


def test_f1_join_of_a_finished_node_is_refused() -> None:
    run = sealed("node1", "node2")
    run.finish("node1")
    run.join("node1")
    assert refusal(run, "node1").why == "this node has finished its work in this round"


# -- J1: joining is idempotent ------------------------------------------------------------


@pytest.mark.parametrize("others", [[], ["node2"]], ids=["gathering", "last call"])
def test_j1_join_is_idempotent_while_gathering(others: list[str]) -> None:
    run = Drive(2, 4)
    run.join("node1", *others)
    assert run.places() == {"candidates": ["node1", *others]}
    unchanged(run, run.joining("node1"))


def test_j1_repeated_join_gives_the_same_record() -> None:
    run = sealed("node1", "node2")
    before = run.state
    run.join("node1", after=0)
    assert run.sent("node1") == [RoundSealed(run.record)]
    assert run.sent("node2") == []
    assert run.state == before
    run.join("node3")
    run.join("node1", after=0)
    assert run.sent("node1") == [RoundSealed(run.record), WaitingChanged(1, 1, 1)]


def test_j1_candidate_of_a_later_round_joins_again() -> None:
    run = sealed("node1", "node2", "node3")
    run.rejoin("node1")
    unchanged(run, run.joining("node1", after=1))


@pytest.mark.parametrize(("names", "spare"), [(["node1", "node2"], False), (["a", "b"], True)])
def test_j1_n1_repeated_join_of_a_waiting_node_is_answered(names: list[str], spare: bool) -> None:
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


def test_j6_only_bounds_must_agree() -> None:
    run = Drive(2, 4)
    run.join("node1")
    run.join("node2", settings=a_settings(2, 4, last_call_seconds=1, max_restarts=9))
    assert run.state.settings == a_settings(2, 4)
    assert run.phase == "LastCall"


def test_j6_bounds_can_change_without_live_nodes() -> None:
    run = Drive(2, 4)
    run.join("node1")
    run.leave("node1")
    run.join("node2", settings=a_settings(1, 1))
    assert run.ranks() == ["node2"]
    assert run.state.opened_by == "node2 pid 2"


def test_j6_bounds_hold_while_a_finished_node_exists() -> None:
    run = sealed("node1", "node2")
    run.finish("node1")
    run.leave("node2")
    run.join("node3", settings=a_settings(1, 1))
    assert refusal(run, "node3").refusal is Refusal.SETTINGS


# -- N1, N2: a round is at work -----------------------------------------------------------


def test_n1_newcomer_waits_or_is_a_spare() -> None:
    run = sealed("node1", "node2", most=3)
    run.join("node3")
    assert run.places() == {"participants": ["node1", "node2"], "waiting": ["node3"]}
    why = "round 1 is running with 2 nodes; the next one has room"
    assert run.sent("node3") == [Parked(1, 1, False, why)]
    assert run.sent("node1") == run.sent("node2") == [WaitingChanged(1, 1, 1)]
    assert run.step.reason == (
        f"node3 pid 3 waits: {why}; round 1 is running with 2 nodes; 1 wait for the next round"
    )
    run.join("node4")
    assert run.places()["spares"] == ["node4"]
    assert run.sent("node4") == [
        Parked(1, 1, True, "round 1 has 2 nodes and 1 wait: it is full (max_nodes=3)")
    ]
    assert run.sent("node1") == []  # spares never disturb a round
    assert run.step.reason.endswith("; 1 wait for the next round; 1 spare")


@pytest.mark.cases("case-C4")
def test_node_after_the_last_call_joins_the_next_round() -> None:
    run = sealed("node1", "node2")
    run.join("late")
    assert run.kinds("late") == ["Parked"]
    run.rejoin("node1", "node2", why="nodes wait")
    assert run.ranks() == ["node1", "node2", "late"]


@pytest.mark.cases("case-E3")
def test_n1_fifth_of_four_nodes_is_a_spare() -> None:
    run = sealed("node1", "node2", "node3", "node4", least=4, most=4)
    run.join("node5")
    assert run.places()["spares"] == ["node5"]
    assert run.kinds("node5") == ["Parked"]
    run.lose("node2")
    run.rejoin("node1", "node3", "node4")  # and node5 need not ask again
    assert run.ranks() == ["node1", "node5", "node3", "node4"]


def test_n2_rejoining_participant_opens_a_round() -> None:
    run = sealed("node1", "node2")
    step = run.rejoin("node1", why="nodes wait")
    why = "node1 pid 1 asked for a new round: nodes wait"
    assert run.sent("node2") == [RoundOpened(1, 2, why)]
    assert run.places() == {"candidates": ["node1"], "participants": ["node2"]}
    assert step.state.opening == why
    assert f"(opened because {why})" in step.reason
    assert step.reason.startswith(f"round 2 opens: {why}; 1 of at least 2")
    run.rejoin("node2")
    assert (run.number, run.state.opening) == (2, "")


def test_n2_rejoin_without_a_reason_gets_a_default() -> None:
    run = sealed("node1", "node2")
    run.rejoin("node1")
    assert run.state.opening == "node1 pid 1 asked for a new round: it joined again"


def test_n2_rejoin_uses_no_budget() -> None:
    run = sealed("node1", "node2", max_restarts=0)
    run.rejoin("node1", "node2")
    assert (run.number, run.state.restarts) == (2, 0)


def test_n2_rejoin_keeps_slot_and_hint() -> None:
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


def test_j6_newcomer_with_other_settings_learns_which_apply() -> None:
    run = sealed("node1", "node2", most=3)
    other = msgspec.structs.replace(run.settings, lease_seconds=5.0, max_restarts=7)
    step = run.do(msgspec.structs.replace(run.joining("node3"), settings=other))
    (held,) = (s.message for s in step.messages if isinstance(s.message, SettingsHeld))
    assert held.why == (
        "the run was opened by node1 pid 1 with max_restarts=none (not 7), lease=15 (not 5), "
        "which holds for all nodes"
    )
    step = run.join("node4")
    assert not [s for s in step.messages if isinstance(s.message, SettingsHeld)]


def test_j6_newcomer_with_a_long_stop_grace_is_warned() -> None:
    run = sealed("node1", "node2", most=4)
    held = run.settings.rejoin_timeout_seconds
    for name, rejoin in (("node3", held + 270), ("node4", held / 2)):
        other = msgspec.structs.replace(run.settings, rejoin_timeout_seconds=rejoin)
        step = run.do(msgspec.structs.replace(run.joining(name), settings=other))
        (why,) = (s.message.why for s in step.messages if isinstance(s.message, SettingsHeld))
        assert f"rejoin_timeout={held:g} (not {rejoin:g}), which holds for all nodes" in why
        means = "; a node whose workers take longer to stop is lost in each change"
        assert why.endswith(means) is (name == "node3")


def test_j6_newcomer_with_another_admission_is_notified() -> None:
    run = Drive(1, 3)
    mine = msgspec.structs.replace(run.settings, admit=Newcomers.CHECKPOINT)
    run.do(msgspec.structs.replace(run.joining("node1"), settings=mine))
    for name, admit in (("node2", Newcomers.NOW), ("node3", None), ("node4", mine.admit)):
        asked = msgspec.structs.replace(mine, admit=admit)
        step = run.do(msgspec.structs.replace(run.joining(name), settings=asked))
        told = [(s.to, s.message) for s in step.messages if isinstance(s.message, SettingsHeld)]
        why = (
            "the run was opened by node1 pid 1 with admit=checkpoint (not now): each node goes by "
            "its own, so give all nodes the same"
        )
        assert told == ([(("node2",), SettingsHeld(why))] if name == "node2" else [])


# -- I1 and hints: the same place ---------------------------------------------------------


@pytest.mark.parametrize("place", ["candidates", "participants", "waiting", "spares"])
def test_i1_same_slot_replaces_and_fences_the_old_node(place: str) -> None:
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
    assert refusal(run, "old").refusal is Refusal.REPLACED
    assert set(run.state.fenced) == run.state.replaced == {"old"}
    expected = "candidates" if place == "participants" else place
    assert "new" in run.places()[expected]
    assert step.messages


def test_i1_replaced_node_is_refused_permanently() -> None:
    run = sealed("node1", "node2", most=3)
    run.join("a", slot="s0")
    run.join("b", slot="s0")
    again = run.join("a", slot="s0")
    assert refusal(run, "a").refusal is Refusal.REPLACED
    assert "b" in {**again.state.waiting, **again.state.candidates}


def test_i1_n1_replacement_takes_the_place_of_a_waiting_node() -> None:
    run = sealed("node1", "node2", most=3)
    run.join("old", slot="pod-1")
    run.join("spare")
    run.join("new", slot="pod-1")
    assert (run.places()["waiting"], run.places()["spares"]) == (["new"], ["spare"])
    assert run.sent("node1") == [WaitingChanged(1, 1, 1)]
    assert run.sent("spare") == []


def test_i1_n1_first_spare_waits_when_one_node_replaces_two() -> None:
    run = sealed("node1", "node2", most=4)
    run.join("a", slot="s0")
    run.join("b", node_rank=1)
    run.join("spare5", "spare6")
    run.do(Disconnected("b"))
    run.join("c", slot="s0", node_rank=1)
    assert (run.places()["waiting"], run.places()["spares"]) == (["c", "spare5"], ["spare6"])
    assert run.sent("node1")[-1] == WaitingChanged(1, 1, 2)


def test_i1_replacement_takes_the_rank_of_a_participant() -> None:
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


def test_i1_finished_node_keeps_no_slot() -> None:
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


@pytest.mark.cases("case-E2")
def test_r1_duplicate_hint_error_names_both_nodes() -> None:
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


def test_r1_duplicate_hint_is_refused_even_with_another_slot() -> None:
    run = Drive(3, 3)
    run.join("a", slot="s0", node_rank=0)
    run.join("b", slot="s1", node_rank=1)
    before = run.state
    run.join("c", slot="s0", node_rank=1)
    assert refusal(run, "c").refusal is Refusal.NODE_RANK
    assert run.state == before
    run.join("c", slot="s0", node_rank=0)
    assert run.places() == {"candidates": ["b", "c"]}


def test_i1_same_hint_replaces_a_disconnected_node() -> None:
    run = Drive(2, 2)
    run.join("a", node_rank=0)
    run.join("b", node_rank=1)
    run.do(Disconnected("b"))
    run.join("b2", node_rank=1)
    assert set(run.state.fenced) == {"b"}
    run.rejoin("a")
    assert run.ranks() == ["a", "b2"]


def test_i1_newcomer_may_replace_two_nodes_by_slot_and_hint() -> None:
    run = Drive(3, 3)
    run.join("a", slot="s0")
    run.join("b", node_rank=1)
    run.do(Disconnected("b"))
    run.join("c", slot="s0", node_rank=1)
    assert run.places() == {"candidates": ["c"]}
    assert set(run.state.fenced) == {"a", "b"}


# -- C1, case-C7: closed, and opened again ----------------------------------------------------


def test_c1_refused_join_says_who_closed_the_run_when_and_why() -> None:
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
            "run 'demo' was closed at 10:15 by alice: wrong data; "
            "use a new run id, or --new-incarnation (new_incarnation) to open it again"
        )
        assert not refused.finished
        assert [f.message for f in refused.failures] == ["boom"]
    assert run.state == before
    assert run.step.reason.startswith("refused node9: run 'demo' was closed")
    run.join("0123456789abcdef")
    assert run.step.reason.startswith("refused 01234567: run 'demo' was closed")


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


@pytest.mark.cases("case-C7")
@pytest.mark.parametrize("known", [0, 1])
def test_c1_new_incarnation_reopens_the_run(known: int) -> None:
    run = sealed("node1", "node2", max_restarts=0)
    run.fail("node1")
    run.rejoin("node1", "node2")
    assert run.phase == "Closed"
    step = run.join(
        "node1",
        new_incarnation=True,
        settings=a_settings(1, 2),
        incarnation=known,
        after=known,
    )
    assert (step.state.incarnation, run.number) == (2, 3)
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


def test_finished_run_keeps_its_failures_as_history() -> None:
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
        "use a new run id, or --new-incarnation (new_incarnation) to open it again"
    )


def test_e1_new_incarnation_does_not_bypass_a_fence() -> None:
    run = sealed("node1", "node2")
    run.join("ghost", after=1, incarnation=1, new_incarnation=True)
    assert refusal(run, "ghost").refusal is Refusal.FENCED


def test_e1_new_incarnation_of_an_open_run_is_a_plain_join() -> None:
    run = sealed("node1", "node2")
    run.join("node3", new_incarnation=True)
    assert run.state.incarnation == 1
    assert run.places()["waiting"] == ["node3"]
