"""Opening, sealing and closing: who gets a seat (S1, S2), who is parked (N1), what is told."""

import pytest
from tests.core.builders import Drive, a_failure, a_node, a_settings, sealed, unchanged

from rallypoint.core.advance import timer_seconds
from rallypoint.core.events import (
    Cause,
    Close,
    Disconnected,
    Event,
    LastCallOver,
    Parked,
    Reconnected,
    RejoinOver,
    ReplacementWaitOver,
    RoundSealed,
    RunClosed,
    WaitingChanged,
)
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.rounds import (
    close_run,
    end_waiting,
    open_round,
    park,
    seal,
    settle,
    standing_as,
)
from rallypoint.core.state import (
    Closed,
    Gathering,
    LastCall,
    Member,
    RunState,
    Sealed,
    Standing,
    Verdict,
    decode_state,
    encode_state,
)


def test_s1_waiting_nodes_and_spares_become_candidates() -> None:
    run = sealed("node1", "node2", most=3)
    run.join("node3", "node4")
    run.lose("node1")
    assert run.places() == {"participants": ["node2"], "candidates": ["node3", "node4"]}
    standings = {n: m.standing for n, m in run.state.candidates.items()}
    assert standings == {"node3": Standing.WAITING, "node4": Standing.NEW}
    run.rejoin("node2")
    assert sorted(run.ranks()) == ["node2", "node3", "node4"]


@pytest.mark.cases("case-E4")
def test_s2_early_spares_do_not_displace_members() -> None:
    run = sealed("node1", "node2", "node3", least=2, most=3)
    run.join("spare1", "spare2", "spare3")
    run.fail("node1")
    assert run.phase == "Gathering"  # three candidates would do, but the seats are held
    run.rejoin("node1", "node2", "node3")
    assert run.ranks() == ["node1", "node2", "node3"]
    assert run.places()["spares"] == ["spare1", "spare2", "spare3"]
    assert [run.kinds(f"spare{i}") for i in (1, 2, 3)] == [["Parked"]] * 3


def test_s2_members_before_waiting_nodes_before_spares() -> None:
    run = sealed("node1", "node2", "node3", least=1, most=5)
    run.join("wait1", "wait2", "spare1", "spare2")
    assert run.places()["spares"] == ["spare1", "spare2"]
    run.lose("node1")
    run.rejoin("node2", "node3")
    assert sorted(run.ranks()) == ["node2", "node3", "spare1", "wait1", "wait2"]
    assert run.places()["spares"] == ["spare2"]


def test_s2_order_of_arrival_survives_storage() -> None:
    run = sealed("n1", "n2", least=2, most=4)
    for name in ("z", "y", "x"):
        run.join(name)
        run.state = decode_state(encode_state(run.state))  # sorts the places by id
    arrivals = {
        n: m.arrival for p in ("waiting", "spares") for n, m in getattr(run.state, p).items()
    }
    assert arrivals == {"z": 3, "y": 4, "x": 5}
    run.rejoin("n1", "n2")
    assert sorted(run.ranks()) == ["n1", "n2", "y", "z"]
    assert run.places()["spares"] == ["x"]


def test_s2_newcomer_comes_after_earlier_spares() -> None:
    run = sealed("node1", "node2", least=1, most=2)
    run.join("spare")
    run.lose("node1")
    run.join("new")
    run.rejoin("node2")
    assert sorted(run.ranks()) == ["node2", "spare"]
    assert run.places()["spares"] == ["new"]


def test_j3_s2_full_round_waits_for_held_seats() -> None:
    run = sealed("node1", "node2", least=1, most=2)
    run.join("a", "b")
    run.rejoin("node1")
    assert len(run.state.candidates) == 3
    assert run.phase == "Gathering"


def test_n1_surplus_nodes_learn_their_place_at_sealing() -> None:
    run = sealed("node1", "node2", least=2, most=2)
    run.join("s1", "s2")
    run.lose("node2")
    run.rejoin("node1")
    assert run.sent("s2") == [Parked(1, 2, True, "round 2 is full (max_nodes=2)")]
    assert run.sent("s1") == [RoundSealed(run.record)]
    assert run.step.reason.startswith("round 2 sealed with 2 nodes: ")


@pytest.mark.parametrize(
    ("target", "waiting", "spares"),
    [
        (2, [], ["node3", "node4", "node5", "node6"]),
        (3, ["node3"], ["node4", "node5", "node6"]),
        (4, ["node3", "node4"], ["node5", "node6"]),
        (None, ["node3", "node4", "node5"], ["node6"]),
    ],
)
def test_n1_room_depends_on_the_target(
    target: int | None, waiting: list[str], spares: list[str]
) -> None:
    run = Drive(2, 5, target_nodes=target)
    run.join("node1", "node2")
    if run.phase == "LastCall":
        run.last_call_over()
    run.join("node3", "node4", "node5", "node6")
    assert run.places() == {
        "participants": ["node1", "node2"],
        **({"waiting": waiting} if waiting else {}),
        "spares": spares,
    }
    run.rejoin("node1", "node2")
    assert len(run.record.seats) == (target or 5)
    assert sorted(run.ranks()) == ["node1", "node2", *waiting]
    assert "waiting" not in run.places()


def test_j3_round_has_no_more_seats_than_its_target() -> None:
    run = Drive(2, 6, target_nodes=3)
    run.do(*(run.joining(f"node{i}") for i in (1, 2, 3, 4)))  # the fourth comes in the same batch
    assert run.ranks() == ["node1", "node2", "node3"]
    assert run.places()["spares"] == ["node4"]
    run.lose("node1")
    run.join("node5")
    run.rejoin("node2", "node3")
    assert run.ranks() == ["node4", "node2", "node3"]
    assert run.record.reason == "all 3 nodes joined (target_nodes=3)"  # not four
    assert run.sent("node5") == [Parked(1, 2, True, "round 2 is full (target_nodes=3)")]


def test_j3_target_below_min_nodes_is_raised() -> None:
    run = Drive(3, 5, target_nodes=1)  # our own settings refuse this, another client may not
    run.join("node1", "node2")
    assert run.phase == "Gathering"
    run.join("node3")
    assert run.ranks() == ["node1", "node2", "node3"]


# -- N1: the first spare waits where one that waited is gone --------------------------------------


@pytest.mark.parametrize("how", ["leave", "lose"])
def test_n1_first_spare_waits_in_place_of_a_departed_node(how: str) -> None:
    run = sealed("node1", "node2", most=4)
    run.join("z3", "y4", "x5", "w6")
    run.state = decode_state(encode_state(run.state))  # sorts the places by id; arrival decides
    step = run.leave("z3") if how == "leave" else run.lose("z3")
    assert (run.places()["waiting"], run.places()["spares"]) == (["x5", "y4"], ["w6"])
    why = "round 1 is running with 2 nodes; the next one has room"
    assert run.sent("x5") == [Parked(1, 1, False, why)]
    assert run.sent("node1") == run.sent("node2") == [WaitingChanged(1, 1, 2)]
    assert [run.sent(n) for n in ("y4", "w6")] == [[], []]
    gone = "z3 pid 3 left" if how == "leave" else "z3 pid 3 was lost: its lease lapsed"
    assert step.reason.startswith(f"{gone}; x5 pid 5 waits: {why}; round 1 is running")


def test_n1_without_spares_one_node_less_waits() -> None:
    run = sealed("node1", "node2", most=4)
    run.join("node3", "node4")
    run.leave("node3")
    assert [s.message for s in run.step.messages] == [WaitingChanged(1, 1, 1)]
    assert run.places()["waiting"] == ["node4"]


@pytest.mark.parametrize("gone", ["spare4", "spare5"])
def test_n1_leaving_spare_moves_nobody(gone: str) -> None:
    run = sealed("node1", "node2", most=3)
    run.join("node3", "spare4", "spare5")
    run.leave(gone)
    assert run.places()["waiting"] == ["node3"]
    assert run.step.messages == ()


def test_n1_f1_no_spare_waits_in_an_ending_round() -> None:
    run = sealed("node1", "node2", most=3)
    run.join("node3", "spare4")
    run.finish("node1")
    run.leave("node3")
    assert "waiting" not in run.places()
    assert run.places()["spares"] == ["spare4"]


# -- nothing is sealed while a candidate's connection is cut --------------------------------------


def nearly(rule: str) -> tuple[Drive, Event]:
    """Return a run that lacks one event to be sealed, and that event."""
    if rule == "J3":
        run = Drive(2, 3)
        run.join("node1", "node2")
        return run, run.joining("node3")
    if rule == "J4":
        run = Drive(2, 3)
        run.join("node1", "node2")
        return run, LastCallOver(1, 1, 1)
    run = sealed("node1", "node2", "node3", "node4", replacement_wait_seconds=5)
    run.lose("node4")
    run.rejoin("node1", "node2")
    if rule == "J5":
        run.replacement_over()
        return run, run.joining("node3", after=1, incarnation=1)
    run.rejoin("node3")
    return run, ReplacementWaitOver(1, 2)


RULES = ["J3", "J4", "J5", "J5 after the wait"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("end", ["reconnected", "joined again", "lost"])
def test_no_round_is_sealed_while_a_candidate_is_disconnected(rule: str, end: str) -> None:
    run, last = nearly(rule)
    run.do(Disconnected("node2"))
    step = run.do(last)
    assert run.phase in ("Gathering", "LastCall")
    # the host's grace is all that is waited for; a last call not yet over goes on if it is lost
    assert step.timers == ((LastCallOver(1, 1, 1),) if rule == "J3" else ())
    assert step.reason.endswith("; waiting for node2 pid 2 to reconnect (disconnect_grace=1 s)")
    if end == "reconnected":
        run.do(Reconnected("node2"))
    elif end == "joined again":
        run.join("node2")
    else:
        run.lose("node2", Cause.DISCONNECT)
    if end == "lost" and rule in ("J3", "J4"):  # as if it had never come
        assert run.phase == ("LastCall" if rule == "J3" else "Gathering")
        assert "node2" not in run.places()["candidates"]
    else:
        assert ("node2" in run.ranks()) is (end != "lost")


@pytest.mark.parametrize("rule", RULES)
def test_connection_restored_in_time_delays_nothing(rule: str) -> None:
    run, last = nearly(rule)
    run.do(Disconnected("node2"), Reconnected("node2"), last)
    assert "node2" in run.ranks()


@pytest.mark.parametrize("rule", RULES)
def test_all_disconnected_candidates_must_be_back(rule: str) -> None:
    run, last = nearly(rule)
    run.do(Disconnected("node1"), Disconnected("node2"), last)
    run.do(Reconnected("node1"))
    assert run.phase != "Sealed"
    run.do(Reconnected("node2"))
    assert run.phase == "Sealed"


def test_last_call_starts_again_with_too_few_nodes() -> None:
    run, last = nearly("J4")
    run.do(Disconnected("node2"))
    run.do(last)
    phases = [run.state.phase]
    unchanged(run, last)
    phases.append(run.lose("node2", Cause.DISCONNECT).state.phase)
    phases.append(run.join("node4").state.phase)
    assert phases == [LastCall(1, 1, over=True), Gathering(round=1), LastCall(1, 2)]
    assert run.step.timers == (LastCallOver(1, 1, 2),)


def test_end_of_the_last_call_seals_with_all_candidates() -> None:
    run, last = nearly("J4")
    run.settings = a_settings(2, 3)
    run.do(Disconnected("node2"))
    run.do(last)
    run.join("node3")
    assert run.phase == "LastCall"  # full, and one of them cut
    run.do(Reconnected("node2"))
    assert run.ranks() == ["node1", "node2", "node3"]
    assert run.record.reason == "all 3 nodes joined (max_nodes=3)"


def test_disconnected_spare_delays_only_rounds_that_need_it() -> None:
    run = sealed("node1", "node2", most=2)
    run.join("spare")
    run.do(Disconnected("spare"))
    run.rejoin("node1", "node2")
    assert run.phase == "Gathering"
    run.lose("spare", Cause.DISCONNECT)
    assert run.ranks() == ["node1", "node2"]


@pytest.mark.parametrize("place", ["participants", "finished"])
def test_disconnected_non_candidate_delays_no_round(place: str) -> None:
    run = sealed("node1", "node2", "node3")
    if place == "finished":
        run.finish("node3")
    run.do(Disconnected("node3"))
    run.rejoin("node1", "node2")
    if place == "participants":
        assert run.step.reason.endswith("node3 pid 3 to join again (rejoin_timeout=60 s)")
        run.rejoin("node3")
    assert run.number == len(run.told) == 2


@pytest.mark.cases("case-C6")
def test_e1_rank_0_leaves_and_the_next_round_has_another_address() -> None:
    run = sealed("node1", "node2", "node3")
    first = run.record
    assert (first.master_addr, first.master_port) == ("node1", 20_001)
    run.leave("node1")
    run.rejoin("node2", "node3")
    second = run.record
    assert second.master_addr in ("node2", "node3")
    assert first.master_addr == "node1"  # the old record is what it was


def test_e1_all_members_get_the_same_record() -> None:
    run = sealed("node1", "node2", "node3", most=3)
    (send,) = (s for s in run.step.messages if isinstance(s.message, RoundSealed))
    assert sorted(send.to) == ["node1", "node2", "node3"]
    assert send.message == RoundSealed(run.record)


def test_j2_later_last_call_below_min_nodes_ends() -> None:
    run = sealed("a1", "a2")
    run.join("b1", "b2")
    run.lose("a1")
    run.lose("a2")
    assert run.phase == "LastCall"
    assert run.leave("b1").state.phase == Gathering(round=2)


# -- the functions by themselves ------------------------------------------------------------------


def draft_of(run: Drive) -> MutableState:
    return MutableState(run.state)


def test_unopened_run_cannot_be_sealed() -> None:
    d = MutableState(RunState(run_id="demo"))
    settle(d)
    seal(d, "because")
    park(d, Member(node=a_node("node1"), arrival=1))
    assert d.freeze() == RunState(run_id="demo")
    assert d.messages == []


def test_park_needs_a_sealed_round() -> None:
    run = Drive(2, 4)
    run.join("node1")
    d = draft_of(run)
    park(d, Member(node=a_node("node2"), arrival=2))
    assert d.freeze() == run.state


def test_settle_leaves_sealed_and_closed_alone() -> None:
    run = sealed("node1", "node2")
    d = draft_of(run)
    settle(d)
    assert d.freeze() == run.state
    run.close()
    d = draft_of(run)
    settle(d)
    assert d.freeze() == run.state


def test_standing_as_changes_only_the_claim() -> None:
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


def test_f1_end_of_waiting_notifies_waiting_and_working_nodes() -> None:
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


def test_b1_spent_budget_closes_the_run_with_last_and_first_failure() -> None:
    run = sealed("node1", "node2", least=1, max_restarts=1)
    run.fail("node1", a_failure("node1", code=3))
    run.rejoin("node1", "node2")
    run.fail("node2", a_failure("node2", code=4, at="noon"))
    run.rejoin("node1")
    assert run.phase == "Gathering"  # nothing is judged while node2 is missing
    run.rejoin("node2")
    why = (
        "a worker failed and max_restarts=1 is used up: rank 0 (local 0) on node2: exit code 4 "
        "at noon; the first of 2 consecutive failing rounds, round 1: rank 0 (local 0) on node1: "
        "exit code 3"
    )
    assert run.state.phase == Closed(3, "node2", "noon", why, Verdict.BUDGET)
    assert (run.state.restarts, run.state.failing) == (1, 0)


def test_b1_only_failure_is_reported_once() -> None:
    run = sealed("node1", "node2", max_restarts=0)
    run.fail("node1")
    run.rejoin("node1", "node2")
    assert isinstance(run.state.phase, Closed)
    assert run.state.phase.why == (
        "a worker failed and max_restarts=0 is used up: rank 0 (local 0) on node1: exit code 1"
    )


def test_c1_close_notifies_everyone_once() -> None:
    run = sealed("node1", "node2")
    run.join("node3")
    d = draft_of(run)
    close_run(d, "alice", "noon", "enough", Verdict.CLOSED)
    assert d.phase == Closed(1, "alice", "noon", "enough")
    assert d.is_empty()
    (send,) = d.messages
    assert send.to == ("node1", "node2", "node3")
    assert send.message == RunClosed(1, 1, "alice", "noon", "enough", Verdict.CLOSED)
    close_run(d, "bob", "later", "me too", Verdict.CLOSED)
    assert len(d.messages) == 1


def test_seal_forgets_why_the_round_was_opened() -> None:
    d = MutableState(
        RunState(run_id="demo", settings=a_settings(1, 1), opening="x", phase=LastCall(1, 1))
    )
    d.put(d.candidates, Member(node=a_node("node1"), arrival=1))
    seal(d, "y")
    assert (d.opening, d.note) == ("", "round 1 sealed with 1 node: y")
    assert d.participants["node1"].standing is Standing.MEMBER


def test_f1_finished_run_reports_no_failures() -> None:
    run = sealed("n1", "n2")
    run.fail("n1")
    run.rejoin("n1", "n2")
    run.finish("n1", "n2")
    (told,) = run.sent("n1")
    assert isinstance(told, RunClosed)
    assert told.failures == ()


def test_c1_the_reason_says_who_closed_the_run() -> None:
    assert sealed("n1", "n2").close().reason.startswith("closed by alice: enough; ")


def test_j4_end_of_the_last_call_is_reported_despite_a_disconnected_node() -> None:
    run = Drive(2, 4)
    run.join("n1", "n2")
    run.do(Disconnected("n2"))
    assert run.last_call_over().reason.startswith("the last call is over; ")


def test_j5_the_shortest_replacement_wait_is_one() -> None:
    run = sealed("n1", "n2", "n3", replacement_wait_seconds=0.5)
    run.lose("n3")
    run.rejoin("n1", "n2")
    assert isinstance(run.state.phase, Gathering)


def test_j3_single_node_round_is_sealed_at_once() -> None:
    run = sealed("node1", least=1, most=1)
    why = "the only node joined (max_nodes=1); round 1 is running with 1 node"
    assert run.step.reason.endswith(f": {why}")


def test_j4_end_of_the_last_call_seals_with_present_nodes() -> None:
    run = Drive(2, 4)
    run.join("node1", "node2", "node3")
    step = run.last_call_over()
    assert run.ranks() == ["node1", "node2", "node3"]
    assert run.record.reason == "the last call is over with 3 of up to 4 nodes"
    assert step.reason.startswith("round 1 sealed with 3 nodes: the last call is over")


STALE_LAST_CALLS = {
    "round": LastCallOver(1, 2, 1),
    "call": LastCallOver(1, 1, 2),
    "incarnation": LastCallOver(2, 1, 1),
}


@pytest.mark.parametrize("stale", STALE_LAST_CALLS.values(), ids=STALE_LAST_CALLS)
def test_e1_stale_last_call_changes_nothing(stale: LastCallOver) -> None:
    run = Drive(2, 4)
    run.join("node1", "node2")
    before = run.state
    step = run.do(stale)
    assert (step.state, step.messages) == (before, ())


@pytest.mark.parametrize("event", [ReplacementWaitOver(1, 1), ReplacementWaitOver(2, 2)])
def test_e1_stale_timers_change_nothing_while_gathering(event: Event) -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=5)
    run.lose("node3")
    before = run.state
    assert run.do(event).state == before


def test_j5_replacement_wait_holds_the_seat_and_then_ends() -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=5)
    step = run.lose("node3")
    wait = ReplacementWaitOver(incarnation=1, round=2)
    assert step.timers == (RejoinOver(1, 2), wait)
    assert timer_seconds(step.state, wait) == 5
    step = run.rejoin("node1", "node2")
    assert (run.phase, step.timers) == ("Gathering", (wait,))
    assert step.reason.endswith("; waiting for a replacement (replacement_wait=5)")
    step = run.replacement_over()
    assert run.ranks() == ["node1", "node2"]
    assert step.timers == ()


def test_j5_replacement_wait_ends_early_with_a_replacement() -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=5)
    run.lose("node3")
    run.rejoin("node1", "node2")
    run.join("node9")
    assert run.ranks() == ["node1", "node2", "node9"]


def test_j5_replacement_wait_over_before_all_have_joined_again() -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=5)
    run.lose("node3")
    step = run.replacement_over()
    assert step.reason.startswith("no replacement came in time; 0 of at least 2 nodes")
    assert (run.phase, step.timers) == ("Gathering", (RejoinOver(1, 2),))
    run.rejoin("node1", "node2")
    assert run.ranks() == ["node1", "node2"]


def test_close_ends_the_incarnation_in_every_phase() -> None:
    for prepare in ([], ["node1"], ["node1", "node2"], ["node1", "node2", "node3"]):
        run = Drive(2, 3)
        run.join(*prepare)
        step = run.close("alice", "enough", "noon")
        assert run.phase == "Closed"
        assert run.places() == {}
        assert step.reason.endswith("run 'demo' was closed at noon by alice: enough")
        assert [run.kinds(name) for name in prepare] == [["RunClosed"]] * len(prepare)


def test_close_without_a_reason_says_so() -> None:
    step = sealed("node1", "node2").close("alice@node7", "", "noon")
    words = "run 'demo' was closed at noon by alice@node7: no reason was given"
    assert step.reason.endswith(words)
    (told,) = step.messages
    assert isinstance(told.message, RunClosed)
    assert told.message.why == "no reason was given"


@pytest.mark.parametrize(("known", "closed"), [(0, True), (1, False), (2, True), (3, False)])
def test_e1_close_of_another_incarnation_changes_nothing(known: int, closed: bool) -> None:
    run = sealed("node1", "node2")
    run.close()
    run.join("node3", new_incarnation=True)
    assert run.state.incarnation == 2
    run.do(Close("alice", "too late", incarnation=known))
    assert (run.phase == "Closed") is closed
    assert (run.step.messages == ()) is not closed


def test_e1_a_replacement_timer_in_a_sealed_round_changes_nothing() -> None:
    run = sealed("node1", "node2")
    before = run.state
    step = run.do(ReplacementWaitOver(1, 1))
    assert (step.state, step.messages) == (before, ())
