"""Leaving, rule by rule (F1, L1 to L3, G1, E1): finishes, leaves, losses, disconnects, fences."""

import pytest
from tests.core.builders import Drive, a_settings, refusal, sealed, unchanged

from rallypoint.core.advance import timer_seconds
from rallypoint.core.events import (
    Beat,
    Cause,
    Disconnected,
    Event,
    Finish,
    Leave,
    Lost,
    Notify,
    Parked,
    Reconnected,
    Refusal,
    Refused,
    RejoinOver,
    RoundOpened,
    RunClosed,
    WaitingChanged,
)
from rallypoint.core.state import (
    Aspect,
    Closed,
    Gathering,
    Strike,
    Verdict,
    find,
)

# -- B1, H1: failures that a loss explains ----------------------------------------------


def test_b1_h1_failures_caused_by_a_lost_peer_are_not_counted() -> None:
    run = sealed("node1", "node2", "node3")
    run.fail("node1")
    run.rejoin("node1", "node2", "node3")
    run.fail("node1")
    counted = (run.state.restarts, run.state.failing, len(run.state.strikes))
    assert counted == (2, 2, 2)
    run.lose("node3")
    assert (run.state.restarts, run.state.failing) == (1, 1)
    assert run.state.strikes == (Strike(Aspect.ADDRESS, "node1", 1),)
    run.lose("node2")  # given back once
    assert (run.state.restarts, run.state.failing, len(run.state.strikes)) == (1, 1, 1)


def test_p1_departure_ends_a_notice_without_a_new_round() -> None:
    run = sealed("node1", "node2", most=3)
    run.join("node3")
    run.do(Notify("node3", "spot machine"))
    run.leave("node3")
    assert (run.phase, run.number, run.state.notices) == ("Sealed", 1, {})
    run.lose("node2")
    run.do(Notify("node1", "spot machine"))
    run.lose("node1")
    assert (run.phase, run.state.notices) == ("Gathering", {})


def test_b1_leaving_node_does_not_excuse_failures() -> None:
    run = sealed("node1", "node2", "node3")
    run.fail("node1")
    run.leave("node3")
    assert (run.state.restarts, run.state.failing, len(run.state.strikes)) == (1, 1, 1)


# -- L1, L2, L3: going --------------------------------------------------------------------


@pytest.mark.parametrize("cause", list(Cause))
def test_l1_loss_opens_the_next_round_and_names_the_node(cause: Cause) -> None:
    run = sealed("node1", "node2", "node3")
    run.do(*([Disconnected("node3")] if cause is Cause.DISCONNECT else []))
    step = run.lose("node3", cause)
    how = cause.value
    if cause is Cause.DISCONNECT:
        how = "its connection closed and it did not reconnect within disconnect_grace (1 s)"
    why = f"node3 pid 3 was lost: {how}"
    assert step.state.phase == Gathering(round=2, lost=True, former=3)
    assert run.sent("node1") == run.sent("node2") == [RoundOpened(1, 2, why, ("node3 pid 3",))]
    fenced = Refused(Refusal.FENCED, f"node3 pid 3: {how}", 1, 1)
    assert run.sent("node3") == [fenced]
    assert step.reason == (
        f"round 2 opens: {why}; 0 of at least 2 nodes have joined round 2 (opened because {why}); "
        "waiting for node1 pid 1, node2 pid 2 to join again (rejoin_timeout=60 s)"
    )


def test_l1_last_participant_is_lost() -> None:
    run = sealed("node1", least=1, most=1)
    run.lose("node1")
    assert (run.places(), run.step.timers) == ({}, ())
    assert run.kinds("node1") == ["Refused"]


@pytest.mark.parametrize("why", ["", "SIGTERM"])
@pytest.mark.cases("case-C1")
def test_l1_l3_leave_opens_a_round_and_closes_nothing(why: str) -> None:
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


@pytest.mark.cases("case-C9")
def test_l3_run_stays_open_when_all_leave() -> None:
    run = sealed("node1", "node2")
    run.leave("node1", "ValueError")
    run.leave("node2", "ValueError")
    assert run.phase == "Gathering"
    run.join("node3", "node4")
    run.last_call_over()
    assert run.ranks() == ["node3", "node4"]


def test_l1_late_lease_timer_changes_nothing() -> None:
    run = sealed("node1", "node2")
    run.do(Beat("node2"))
    unchanged(run, Lost("node2", Cause.LEASE, beats=0))
    run.lose("node2", beats=1)
    assert run.number == 2


def test_l1_heartbeat_counts_in_every_place() -> None:
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


def test_l1_restored_connection_changes_nothing_else() -> None:
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


@pytest.mark.parametrize("place", ["candidates", "participants", "waiting", "rejoining"])
def test_l1_rejoin_over_a_new_connection_marks_the_node_connected(place: str) -> None:
    run = Drive(2, 3) if place == "candidates" else sealed("node1", "node2")
    if place in ("candidates", "waiting"):
        run.join("node3")
    name = "node3" if place in ("candidates", "waiting") else "node1"
    run.do(Disconnected(name))
    if place == "rejoining":
        run.rejoin(name)
    else:
        run.join(name)
    member = find(run.state, name)
    assert member is not None
    assert member.connected


@pytest.mark.parametrize("place", ["candidates", "participants", "waiting", "spares", "finished"])
@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("cut", [False, True])
def test_l1_late_end_of_grace_changes_nothing(place: str, cause: Cause, cut: bool) -> None:
    if place == "candidates":
        run = Drive(2, 3)
        run.join("node1")
    else:
        run = sealed("node1", "node2", most=2 if place == "spares" else 3)
    if place in ("waiting", "spares"):
        run.join("node3")
    if place == "finished":
        run.finish("node1")
    gone = "node3" if place in ("waiting", "spares") else "node1"
    assert gone in run.places()[place]
    run.do(Disconnected(gone), *([] if cut else [Reconnected(gone)]))
    if cause is Cause.DISCONNECT and not cut:
        unchanged(run, Lost(gone, cause))
    else:
        run.lose(gone, cause)
        assert set(run.state.fenced) == {gone}


def test_l1_loss_of_a_waiting_node_updates_the_count() -> None:
    run = sealed("node1", "node2")
    run.join("node3", "node4")
    run.lose("node3")
    assert run.sent("node1") == [WaitingChanged(1, 1, 1)]
    assert run.number == 1


@pytest.mark.parametrize("place", ["spares", "finished"])
def test_l1_loss_of_a_non_participant_disturbs_nobody(place: str) -> None:
    run = sealed("node1", "node2", most=2)
    run.join("node3")
    run.finish("node2")
    gone = {"spares": "node3", "finished": "node2"}[place]
    run.lose(gone)
    assert [send.to for send in run.step.messages] == [(gone,)]
    assert run.phase == "Sealed"


def test_l2_fence_is_reported_first() -> None:
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


@pytest.mark.cases("case-C2")
@pytest.mark.parametrize("noticed", [False, True], ids=["in-time", "after-the-loss"])
def test_l2_returning_node_is_a_newcomer(noticed: bool) -> None:
    run = sealed("node1", "node2", "node3")
    run.lose("node3")
    if noticed:
        run.rejoin("node1", "node2")
    run.join("node3b")
    run.rejoin("node1", "node2")
    assert run.ranks() == ["node1", "node2", "node3b"]


@pytest.mark.parametrize(("after", "incarnation"), [(1, 1), (1, 0), (0, 7), (3, 2)])
def test_l2_e1_node_with_unknown_history_is_fenced(after: int, incarnation: int) -> None:
    run = sealed("node1", "node2")
    before = run.state
    run.join("ghost", after=after, incarnation=incarnation)
    assert refusal(run, "ghost").refusal is Refusal.FENCED
    assert refusal(run, "ghost").why == (
        f"it names incarnation {incarnation}, round {after}, in which it is no member any more"
    )
    assert run.state == before


@pytest.mark.parametrize("event", [Leave("nobody"), Lost("nobody", Cause.DIED)])
def test_l1_leave_of_an_unknown_node_changes_nothing(event: Event) -> None:
    run = sealed("node1", "node2")
    unchanged(run, event)


# -- F1: finishing ------------------------------------------------------------------------


def test_f1_run_closes_when_all_have_finished() -> None:
    run = sealed("node1", "node2", most=2)
    run.join("spare")
    step = run.finish("node1")
    assert run.places()["finished"] == ["node1"]
    assert step.messages == ()
    assert step.reason == (
        "node1 pid 1 has finished; round 1 is running with 2 nodes; 1 has finished, "
        "still working: node2 pid 2; 1 spare"
    )
    step = run.finish("node2", at="noon")
    why = "all 2 nodes of round 1 finished"
    closed = RunClosed(1, 1, "node2 pid 2", "noon", why, Verdict.FINISHED)
    assert [run.sent(n) for n in ("node1", "node2", "spare")] == [[closed]] * 3
    assert step.state.phase == Closed(1, "node2 pid 2", "noon", why, Verdict.FINISHED)


def test_f1_waiting_nodes_and_newcomers_become_spares() -> None:
    run = sealed("node1", "node2")
    run.join("node3")
    run.finish("node1")
    why = "round 1 is ending: 1 node has finished"
    assert run.sent("node3") == [Parked(1, 1, True, why)]
    assert run.sent("node2") == [WaitingChanged(1, 1, 0)]
    assert run.step.reason.startswith("node1 pid 1 has finished; round 1 is running")
    run.join("node4")
    assert run.sent("node4") == [Parked(1, 1, True, why)]
    assert run.places()["spares"] == ["node3", "node4"]


def test_f1_finished_node_is_neither_lost_nor_missing() -> None:
    run = sealed("node1", "node2", "node3", least=1)
    run.finish("node1")
    run.lose("node2")
    assert run.places() == {"finished": ["node1"], "participants": ["node3"]}
    run.rejoin("node3")
    assert run.ranks() == ["node3"]
    run.finish("node3")
    assert run.phase == "Closed"


def test_f1_finished_node_may_leave_before_the_run_finishes() -> None:
    run = sealed("node1", "node2")
    run.finish("node1")
    run.leave("node1")
    assert run.phase == "Sealed"
    run.finish("node2")
    assert isinstance(run.state.phase, Closed)
    assert run.state.phase.finished


def test_f1_below_min_nodes_names_finished_nodes() -> None:
    run = sealed("node1", "node2")
    run.finish("node1")
    run.fail("node2")
    step = run.rejoin("node2")
    assert step.reason.endswith("; here: node2 pid 2; 1 has finished and will not return")


def test_f1_second_finish_changes_nothing_and_join_is_refused() -> None:
    run = sealed("node1", "node2")
    run.finish("node1")
    unchanged(run, Finish("node1", 1, 1))
    before = run.state
    run.join("node1", after=1)
    assert refusal(run, "node1").refusal is Refusal.STALE
    assert run.state == before


def test_f1_finish_crosses_with_a_new_round() -> None:
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
def test_e1_finish_of_another_round_is_refused(event: Finish, why: str) -> None:
    run = sealed("node1", "node2")
    run.rejoin("node1", "node2")
    before = run.state
    run.do(event)
    assert refusal(run, event.node) == Refused(Refusal.STALE, why, 1, 2)
    assert run.state == before


def test_e1_finish_of_an_older_round_is_refused_while_gathering() -> None:
    run = sealed("node1", "node2")
    run.rejoin("node1", "node2")
    run.rejoin("node1")
    run.do(Finish("node2", 1, 1))
    assert refusal(run, "node2").why == "round 1 is over; this is round 3"


def test_f1_single_node_finishes_the_run() -> None:
    run = sealed("node1", least=1)
    run.finish("node1")
    assert isinstance(run.state.phase, Closed)
    assert run.state.phase.why == "the only node of round 1 finished"


def test_g1_no_round_while_a_notified_participant_is_missing() -> None:
    run = sealed("node1", "node2", "node3", rejoin_timeout_seconds=9)
    step = run.rejoin("node1", "node2", why="nodes wait")
    assert step.reason.startswith("node2 pid 2 joined again; 2 of at least 2 nodes")
    rejoin = RejoinOver(incarnation=1, round=2)
    assert (run.phase, step.timers) == ("Gathering", (rejoin,))
    assert timer_seconds(step.state, rejoin) == 9
    assert step.reason.endswith("; waiting for node3 pid 3 to join again (rejoin_timeout=9 s)")
    step = run.rejoin_over()
    assert run.ranks() == ["node1", "node2"]
    assert step.reason.startswith("round 2 sealed with 2 nodes: all 2 live nodes have")
    (refused,) = run.sent("node3")
    assert isinstance(refused, Refused)
    assert refused.why == "node3 pid 3: did not join round 2 within rejoin_timeout"


def test_g1_all_silent_nodes_are_lost_together() -> None:
    run = sealed("node1", "node2", "node3", "node4", least=1)
    run.rejoin("node1")
    run.rejoin_over()
    assert run.ranks() == ["node1"]
    assert set(run.state.fenced) == {"node2", "node3", "node4"}


@pytest.mark.parametrize("event", [RejoinOver(1, 1), RejoinOver(2, 2)])
def test_e1_a_stale_rejoin_timer_changes_nothing(event: RejoinOver) -> None:
    run = sealed("node1", "node2")
    unchanged(run, event)
    run.lose("node1")
    unchanged(run, event)
