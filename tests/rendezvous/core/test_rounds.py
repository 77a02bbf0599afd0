"""Opening, sealing and closing: who gets a seat (S1, S2), who is parked (N1), what is told."""

import pytest
from tests.rendezvous.core.builders import Drive, a_node, a_settings, sealed

from rallypoint.rendezvous.core.draft import Draft
from rallypoint.rendezvous.core.events import Parked, RoundSealed, RunClosed, WaitingChanged
from rallypoint.rendezvous.core.rounds import (
    close_run,
    end_waiting,
    open_round,
    park,
    seal,
    settle,
    standing_as,
)
from rallypoint.rendezvous.core.state import (
    Closed,
    Gathering,
    LastCall,
    Member,
    Sealed,
    Standing,
    State,
)


def test_s1_those_who_wait_and_spares_are_candidates_without_asking_again() -> None:
    run = sealed("node1", "node2", most=3)
    run.join("node3", "node4")
    run.lose("node1")
    assert run.places() == {"participants": ["node2"], "candidates": ["node3", "node4"]}
    standings = {n: m.standing for n, m in run.state.candidates.items()}
    assert standings == {"node3": Standing.WAITING, "node4": Standing.NEW}
    run.rejoin("node2")
    assert sorted(run.ranks()) == ["node2", "node3", "node4"]


@pytest.mark.cases("E4")
def test_e4_s2_spares_that_are_there_first_push_out_no_member() -> None:
    run = sealed("node1", "node2", "node3", least=2, most=3)
    run.join("spare1", "spare2", "spare3")
    run.fail("node1")
    assert run.phase == "Gathering"  # three candidates would do, but the seats are held
    run.rejoin("node1", "node2", "node3")
    assert run.ranks() == ["node1", "node2", "node3"]
    assert run.places()["spares"] == ["spare1", "spare2", "spare3"]
    assert [run.kinds(f"spare{i}") for i in (1, 2, 3)] == [["Parked"]] * 3


def test_s2_members_then_those_waiting_then_spares_each_in_order_of_arrival() -> None:
    run = sealed("node1", "node2", "node3", least=1, most=5)
    run.join("wait1", "wait2", "spare1", "spare2")
    assert run.places()["spares"] == ["spare1", "spare2"]
    run.lose("node1")
    run.rejoin("node2", "node3")
    assert sorted(run.ranks()) == ["node2", "node3", "spare1", "wait1", "wait2"]
    assert run.places()["spares"] == ["spare2"]


def test_s2_a_newcomer_while_gathering_comes_after_spares_that_came_before() -> None:
    run = sealed("node1", "node2", least=1, most=2)
    run.join("spare")
    run.lose("node1")
    run.join("new")
    run.rejoin("node2")
    assert sorted(run.ranks()) == ["node2", "spare"]
    assert run.places()["spares"] == ["new"]


def test_j3_s2_a_full_round_waits_for_the_seats_that_are_held() -> None:
    run = sealed("node1", "node2", least=1, most=2)
    run.join("a", "b")
    run.rejoin("node1")
    assert len(run.state.candidates) == 3
    assert run.phase == "Gathering"


def test_n1_at_sealing_left_over_nodes_are_told_their_place() -> None:
    run = sealed("node1", "node2", least=2, most=2)
    run.join("s1", "s2")
    run.lose("node2")
    run.rejoin("node1")
    assert run.sent("s2") == [Parked(1, 2, True, "round 2 is full (max_nodes=2)")]
    assert run.sent("s1") == [RoundSealed(run.record)]
    assert run.step.reason.startswith("round 2 sealed with 2 nodes: 2 of up to 2 nodes have come")


def test_n1_target_reached_leaves_room_up_to_max() -> None:
    run = sealed("node1", "node2", least=2, most=4, target_nodes=2)
    run.join("node3", "node4", "node5")
    assert run.places()["waiting"] == ["node3", "node4"]
    assert run.places()["spares"] == ["node5"]


@pytest.mark.cases("C6")
def test_c6_e1_rank_0_leaves_and_the_next_round_has_another_address() -> None:
    run = sealed("node1", "node2", "node3")
    first = run.record
    assert (first.master_addr, first.master_port) == ("node1", 20_001)
    run.leave("node1")
    run.rejoin("node2", "node3")
    second = run.record
    assert second.master_addr in ("node2", "node3")
    assert first.master_addr == "node1"  # the old record is what it was


def test_e1_everybody_is_told_one_and_the_same_record() -> None:
    run = sealed("node1", "node2", "node3", most=3)
    (send,) = (s for s in run.step.messages if isinstance(s.message, RoundSealed))
    assert sorted(send.to) == ["node1", "node2", "node3"]
    assert send.message == RoundSealed(run.record)


def test_j2_a_later_last_call_that_falls_below_min_is_gathering_again() -> None:
    run = sealed("a1", "a2")
    run.join("b1", "b2")
    run.lose("a1")
    run.lose("a2")
    assert run.phase == "LastCall"
    assert run.leave("b1").state.phase == Gathering(round=2)


# -- the functions by themselves ------------------------------------------------------------------


def draft_of(run: Drive) -> Draft:
    return Draft(run.state)


def test_nothing_can_be_sealed_before_the_run_is_opened() -> None:
    d = Draft(State(run_id="demo"))
    settle(d)
    seal(d, "because")
    park(d, Member(node=a_node("node1"), arrival=1))
    assert d.freeze() == State(run_id="demo")
    assert d.messages == []


def test_park_is_for_sealed_rounds() -> None:
    run = Drive(2, 4)
    run.join("node1")
    d = draft_of(run)
    park(d, Member(node=a_node("node2"), arrival=2))
    assert d.freeze() == run.state


def test_settle_leaves_sealed_and_closed_alone() -> None:
    run = sealed("node1", "node2")
    d = draft_of(run)
    settle(d, last_call_over=True)
    assert d.freeze() == run.state
    run.close()
    d = draft_of(run)
    settle(d)
    assert d.freeze() == run.state


def test_standing_as_changes_the_claim_and_nothing_else() -> None:
    member = Member(
        node=a_node("node1"), arrival=3, rank=2, standing=Standing.NEW, beats=4, connected=False
    )
    assert standing_as(member, Standing.WAITING, None) == Member(
        node=member.node,
        arrival=3,
        rank=None,
        standing=Standing.WAITING,
        beats=4,
        connected=False,
    )


def test_open_round_counts_the_former_participants() -> None:
    run = sealed("node1", "node2", "node3")
    d = draft_of(run)
    d.take("node3")
    open_round(d, "because", lost=("node3",))
    assert d.phase == Gathering(round=2, lost=True, former=3)
    d = draft_of(run)
    open_round(d, "because")
    assert d.phase == Gathering(round=2, lost=False, former=3)
    assert d.note == "round 2 opens: because"


def test_f1_end_waiting_tells_those_who_wait_and_those_who_work() -> None:
    run = sealed("node1", "node2")
    run.join("node3")
    d = draft_of(run)
    phase = d.phase
    assert isinstance(phase, Sealed)
    d.phase = Sealed(phase.record, frozenset({"node1"}))
    end_waiting(d)
    assert (list(d.spares), d.waiting) == (["node3"], {})
    assert d.messages[-1].message == WaitingChanged(1, 1, 0)
    d.messages.clear()
    end_waiting(d)
    assert d.messages == []


def test_c1_close_run_tells_everyone_and_only_once() -> None:
    run = sealed("node1", "node2")
    run.join("node3")
    d = draft_of(run)
    close_run(d, "alice", "noon", "enough", finished=False)
    assert d.phase == Closed(1, "alice", "noon", "enough")
    assert d.is_empty()
    (send,) = d.messages
    assert send.to == ("node1", "node2", "node3")
    assert send.message == RunClosed(1, 1, "alice", "noon", "enough", finished=False)
    close_run(d, "bob", "later", "me too", finished=False)
    assert len(d.messages) == 1


def test_seal_forgets_why_the_round_was_opened() -> None:
    d = Draft(State(run_id="demo", settings=a_settings(1, 1), opening="x", phase=LastCall(1, 1)))
    d.put(d.candidates, Member(node=a_node("node1"), arrival=1))
    seal(d, "y")
    assert (d.opening, d.note) == ("", "round 1 sealed with 1 nodes: y")
    assert d.participants["node1"].standing is Standing.MEMBER
