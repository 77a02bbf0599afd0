"""Working, rule by rule (F1, B1, E1): finishing, failing, the budget."""

from typing import Any

import pytest
from tests.core.builders import Drive, a_failure, a_settings, refusal, sealed, unchanged

from rallypoint.core.advance import timer_seconds
from rallypoint.core.events import (
    Cause,
    Disconnected,
    Fail,
    Finish,
    Join,
    Lost,
    Parked,
    Reconnected,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
    SteadyOver,
    WaitingChanged,
    assignment,
)
from rallypoint.core.state import (
    FAILURES_LIMIT,
    Closed,
    Gathering,
    Verdict,
)

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
    closed = RunClosed(1, 1, "node2 pid 2", "noon", why, Verdict.FINISHED)
    assert [run.sent(n) for n in ("node1", "node2", "spare")] == [[closed]] * 3
    assert step.state.phase == Closed(1, "node2 pid 2", "noon", why, Verdict.FINISHED)


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
    assert step.state.phase == Gathering(round=3, former=2, charged=True)
    assert (step.state.restarts, run.kinds("node1")) == (2, ["RoundOpened"])
    run.rejoin("node1")
    run.fail("node2", a_failure("node2", code=5), number=2)
    assert run.phase == "Gathering"  # node2 may yet turn out to be lost
    step = run.rejoin("node2")
    why = (
        "a worker failed and max_restarts=1 is used up: "
        "rank 0 (local 0) on node2: exit code 4 at noon; the first of 2 such rounds in a row, "
        "round 1: rank 0 (local 0) on node1: exit code 3"
    )
    assert step.state.phase == Closed(3, "node2", "noon", why, Verdict.BUDGET)
    assert step.state.restarts == 1
    (closed,) = run.sent("node1")
    assert isinstance(closed, RunClosed)
    assert [f.exit_code for f in closed.failures] == [3, 4, 5]
    assert closed.verdict is Verdict.BUDGET


def test_b1_the_first_failure_of_a_row_is_kept_until_the_row_is_over() -> None:
    run = sealed("node1", "node2", "node3")
    for code in (3, 4, 5):
        run.fail("node1", a_failure("node1", code=code))
        run.fail("node2", a_failure("node2", code=code + 10), number=run.number - 1)
        run.rejoin("node1", "node2", "node3")
    assert [(f.round, f.exit_code) for f in run.state.failures] == [(1, 3), (3, 5), (3, 15)]
    assert (run.state.failing, run.record.failing) == (3, 3)
    run.lose("node3")  # another reason than a failure: the row is over
    assert run.state.failing == 0
    run.rejoin("node1", "node2")
    assert run.record.failing == 0
    run.fail("node1", a_failure("node1", code=6))
    assert [(f.round, f.exit_code) for f in run.state.failures] == [(5, 6)]
    assert run.state.failing == 1


def test_b1_all_nodes_are_told_how_many_rounds_have_failed_in_a_row() -> None:
    run = sealed("node1", "node2")
    assert assignment(run.record, 0).failing == 0
    for count in (1, 2, 3):
        run.fail("node2")
        run.rejoin("node1", "node2")
        assert [assignment(run.record, rank).failing for rank in (0, 1)] == [count, count]


def test_b1_a_round_that_works_steadily_ends_a_row() -> None:
    run = sealed("node1", "node2", steady_seconds=7.0)
    assert list(run.step.timers) == []
    run.fail("node1", a_failure("node1", code=3))
    assert SteadyOver(1, 2) not in run.step.timers
    run.rejoin("node1", "node2")
    assert list(run.step.timers) == [SteadyOver(1, 2)]
    assert timer_seconds(run.state, SteadyOver(1, 2)) == 7.0
    for late in (SteadyOver(1, 1), SteadyOver(2, 2)):
        unchanged(run, late)
    step = run.do(SteadyOver(1, 2))
    assert (step.state.failing, step.timers) == (0, ())
    assert step.reason.startswith("round 2 works steadily; ")
    assert step.state.restarts == 1  # the budget is not refilled
    unchanged(run, SteadyOver(1, 2))
    run.fail("node1", a_failure("node1", code=4))
    unchanged(run, SteadyOver(1, 3))
    assert (run.state.failing, [f.exit_code for f in run.state.failures]) == (1, [4])


def test_b1_a_loss_that_explains_a_failure_takes_it_from_its_row() -> None:
    run = sealed("node1", "node2", "node3")
    run.fail("node1")
    run.rejoin("node1", "node2", "node3")
    run.fail("node1")
    assert run.state.failing == 2
    run.lose("node3")
    assert (run.state.failing, run.state.restarts) == (1, 1)


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
    run.rejoin("node1b", "node2")
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


def test_b1_a_failure_after_a_loss_is_a_consequence_and_costs_nothing() -> None:
    run = sealed("node1", "node2", "node3", max_restarts=0)
    run.lose("node3")
    run.fail("node2", a_failure("node2", code=7), number=1)
    assert [(f.round, f.exit_code) for f in run.state.failures] == [(1, 7)]
    assert (run.state.restarts, run.phase) == (0, "Gathering")


def test_b1_failures_after_a_loss_are_not_mixed_with_those_of_an_older_round() -> None:
    run = sealed("node1", "node2", "node3")
    run.fail("node1", a_failure("node1", code=1))
    run.rejoin("node1", "node2", "node3")
    run.lose("node3")
    run.fail("node2", a_failure("node2", code=7), number=2)
    assert [(f.round, f.exit_code) for f in run.state.failures] == [(2, 7)]
    assert run.state.restarts == 1


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_b1_as_many_failing_rounds_as_the_budget_and_not_one_more(budget: int) -> None:
    run = sealed("node1", "node2", max_restarts=budget)
    for count in range(1, budget + 1):
        run.fail("node1")
        assert run.state.restarts == count
        run.rejoin("node1", "node2")
        assert run.record.restarts == count
    run.fail("node1")
    assert (run.phase, run.state.restarts) == ("Gathering", budget + 1)
    step = run.rejoin("node1", "node2")
    assert (run.phase, step.state.restarts) == ("Closed", budget)


def spent(*names: str, **fields: Any) -> Drive:
    """Return a run whose node1 has failed beyond the budget; all of them are due."""
    run = sealed(*names, **{"least": 1, "max_restarts": 0, **fields})
    run.fail("node1", a_failure("node1 (10.0.0.1) pid 7", code=5, at="noon"))
    assert (run.phase, run.state.restarts) == ("Gathering", 1)
    return run


def assert_closed_by_the_failure(run: Drive, number: int = 2) -> None:
    why = (
        "a worker failed and max_restarts=0 is used up: "
        "rank 0 (local 0) on node1 (10.0.0.1) pid 7: exit code 5 at noon"
    )
    assert run.state.phase == Closed(number, "node1 (10.0.0.1) pid 7", "noon", why, Verdict.BUDGET)
    assert (run.state.restarts, [f.exit_code for f in run.state.failures]) == (0, [5])


@pytest.mark.parametrize("gone", ["node2", "node3"])
def test_b1_a_node_lost_without_a_word_is_known_after_the_failure_and_nothing_is_used_up(
    gone: str,
) -> None:
    run = spent("node1", "node2", "node3")
    left = next(name for name in ("node2", "node3") if name != gone)
    run.rejoin("node1", left)
    assert run.phase == "Gathering"
    assert run.step.reason.endswith(
        f"waiting for {gone} pid {gone[-1]} to join again (rejoin_timeout=60 s)"
    )
    run.lose(gone)
    assert (run.ranks(), run.record.restarts) == (["node1", left], 0)


def test_b1_the_failures_that_a_silent_loss_caused_are_charged_once_all_are_back() -> None:
    run = spent("node1", "node2", "node3")
    run.rejoin("node2", "node3")
    assert run.phase == "Gathering"
    run.rejoin("node1")
    assert_closed_by_the_failure(run)
    for name in ("node1", "node2", "node3"):
        assert run.kinds(name) == ["RunClosed"]


@pytest.mark.parametrize("least", [1, 2, 3])
def test_b1_too_few_nodes_do_not_keep_a_run_open_whose_budget_is_passed(least: int) -> None:
    run = spent("node1", "node2", "node3", least=least)
    run.leave("node2")
    run.leave("node3")
    run.rejoin("node1")
    assert_closed_by_the_failure(run)


def test_b1_it_is_passed_too_when_all_leave_or_finish() -> None:
    run = spent("node1", "node2")
    run.leave("node1")
    run.do(Finish("node2", 1, 1))
    assert_closed_by_the_failure(run)
    assert run.kinds("node2") == ["RunClosed"]


def test_b1_a_single_node_that_fails_is_asked_for_once_more() -> None:
    run = spent("node1")
    run.rejoin("node1")
    assert_closed_by_the_failure(run)


def test_b1_newcomers_and_a_last_call_do_not_let_it_begin_anew() -> None:
    run = spent("node1", "node2")
    run.join("node3", "node4", "node5")
    run.do(Disconnected("node3"))
    run.leave("node1")
    run.leave("node2")
    assert run.phase == "LastCall"  # node3 is cut: not judged yet, and not sealed
    run.last_call_over()
    assert (run.phase, run.state.restarts) == ("LastCall", 1)
    run.do(Reconnected("node3"))
    assert_closed_by_the_failure(run)


@pytest.mark.parametrize("cut", ["node1", "node2", "node3"], ids=["who fails", "one", "another"])
@pytest.mark.parametrize("budget", [None, 0, 1])
def test_b1_a_failure_while_a_participant_is_cut_is_charged_until_that_is_lost(
    cut: str, budget: int | None
) -> None:
    run = sealed("node1", "node2", "node3", max_restarts=budget)
    run.do(Disconnected(cut))
    step = run.fail("node1", a_failure("node1", code=5))
    assert step.state.phase == Gathering(round=2, former=3, charged=True)
    assert (step.state.restarts, [f.exit_code for f in step.state.failures]) == (1, [5])
    assert run.kinds("node3") == ["RoundOpened"]
    run.rejoin(*({"node1", "node2", "node3"} - {cut}))
    assert run.phase == "Gathering"
    run.lose(cut, Cause.DISCONNECT)
    assert run.record.restarts == 0


@pytest.mark.parametrize("back", [True, False], ids=["back", "lost"])
def test_b1_nothing_is_judged_while_one_that_came_is_cut(back: bool) -> None:
    run = spent("node1", "node2", "node3")
    run.rejoin("node3")
    run.do(Disconnected("node3"))
    run.rejoin("node1", "node2")
    assert (run.phase, run.state.restarts) == ("Gathering", 1)
    if back:
        run.do(Reconnected("node3"))
        assert_closed_by_the_failure(run)
    else:
        run.lose("node3", Cause.DISCONNECT)
        assert run.ranks() == ["node1", "node2"]


@pytest.mark.parametrize("place", ["waiting", "spares", "finished"])
def test_b1_who_does_not_work_is_no_excuse_for_a_failure(place: str) -> None:
    run = sealed(
        "node1", "node2", "node3", least=1, most=3 if place == "spares" else 4, max_restarts=0
    )
    if place == "finished":
        run.finish("node3")
    else:
        run.join("node4")
    gone = "node3" if place == "finished" else "node4"
    assert run.places()[place] == [gone]
    run.do(Disconnected(gone))
    run.fail("node1")
    working = run.places()["participants"]
    run.rejoin(*working)
    if place != "finished":
        assert run.phase == "Gathering"  # a candidate now: it may be back in a moment
        run.lose(gone, Cause.DISCONNECT)
    assert run.phase == "Closed"


def test_b1_a_connection_that_is_back_is_no_excuse_either() -> None:
    run = sealed("node1", "node2", max_restarts=0)
    run.do(Disconnected("node2"), Reconnected("node2"))
    run.fail("node1")
    run.rejoin("node1", "node2")
    assert run.phase == "Closed"


def test_b1_one_that_was_cut_and_is_back_lets_the_failure_count() -> None:
    run = sealed("node1", "node2", max_restarts=0)
    run.do(Disconnected("node2"))
    run.fail("node1")
    run.rejoin("node1")
    run.do(Reconnected("node2"))
    assert run.phase == "Gathering"
    run.rejoin("node2")
    assert run.phase == "Closed"


def test_b1_a_lower_budget_of_who_opens_a_deserted_run_closes_nothing_by_itself() -> None:
    run = sealed("node1", least=1, most=1, max_restarts=5)
    for _ in range(3):
        run.fail("node1")
        run.rejoin("node1")
    run.leave("node1")
    run.join("node2", settings=a_settings(1, 1, max_restarts=1))
    assert (run.ranks(), run.record.restarts) == (["node2"], 1)
    run.fail("node2")
    run.rejoin("node2")
    assert run.phase == "Closed"


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("gone", ["node1", "node2", "node3"])
@pytest.mark.parametrize("rejoined", [False, True])
def test_b1_a_charge_is_given_back_once_when_a_member_is_lost(
    cause: Cause, gone: str, rejoined: bool
) -> None:
    run = sealed("node1", "node2", "node3", least=1, max_restarts=2)
    run.fail("node1")
    run.rejoin("node1", "node2", "node3")
    run.fail("node1")
    assert run.state.phase == Gathering(round=3, former=3, charged=True)
    assert run.state.restarts == 2
    if rejoined:
        run.rejoin(gone)
    run.do(*([Disconnected(gone)] if cause is Cause.DISCONNECT else []))
    run.lose(gone, cause)
    assert run.state.phase == Gathering(round=3, former=3, lost=True)
    assert run.state.restarts == 1
    left = [name for name in ("node1", "node2", "node3") if name != gone]
    run.lose(left[0])
    assert run.state.restarts == 1  # the earlier round's charge stands
    run.rejoin(left[1])
    assert run.record.restarts == 1


def test_b1_rejoin_timeout_and_a_replacement_give_it_back_too() -> None:
    run = sealed("node1", "node2", least=1, max_restarts=1)
    run.fail("node1")
    run.rejoin("node1")
    run.rejoin_over()
    assert run.record.restarts == 0
    run = Drive(2, 2, max_restarts=1)
    run.join("node1", slot="s1")
    run.join("node2", slot="s2")
    run.fail("node1")
    run.join("node3", slot="s2")
    assert run.state.restarts == 0


@pytest.mark.parametrize("gone", ["waited", "came", "spare", "finished"])
def test_b1_only_the_loss_of_a_member_gives_it_back(gone: str) -> None:
    run = sealed("node1", "node2", "finished", least=1, most=4, max_restarts=1)
    run.join("waited", "spare")
    run.fail("node1")
    run.join("came")
    run.do(Finish("finished", 1, 1))
    run.lose(gone)
    assert run.state.phase == Gathering(round=2, former=3, charged=True)
    assert run.state.restarts == 1


@pytest.mark.parametrize("gone", ["node1", "node2"])
def test_b1_a_leave_gives_nothing_back_nor_does_a_loss_after_the_sealing(gone: str) -> None:
    run = sealed("node1", "node2", "node3", least=1, max_restarts=1)
    run.fail("node1")
    run.leave(gone)
    assert run.state.phase == Gathering(round=2, former=3, lost=True, charged=True)
    run.rejoin(*({"node1", "node2", "node3"} - {gone}))
    run.lose("node3")
    assert run.state.phase == Gathering(round=3, former=2, lost=True)
    assert run.state.restarts == 1


def test_b1_what_was_given_back_can_be_spent_again() -> None:
    run = sealed("node1", "node2", "node3", least=1, max_restarts=1)
    run.fail("node1")
    run.lose("node3")
    run.rejoin("node1", "node2")
    run.fail("node1")
    assert (run.phase, run.state.restarts) == ("Gathering", 1)
    run.rejoin("node1", "node2")
    run.fail("node1")
    run.rejoin("node1", "node2")
    assert run.phase == "Closed"


def test_b1_a_loss_after_the_budget_was_used_up_opens_nothing() -> None:
    run = spent("node1", "node2")
    run.rejoin("node1", "node2")
    unchanged(run, Lost("node2", Cause.LEASE))


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


def test_f1_a_run_of_one_node_is_finished_by_the_only_one() -> None:
    run = sealed("node1", least=1)
    run.finish("node1")
    assert isinstance(run.state.phase, Closed)
    assert run.state.phase.why == "the only node of round 1 finished"
