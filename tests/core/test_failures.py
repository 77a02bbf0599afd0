"""Failing workers, rule by rule: the budget (B1, E1) and quarantine (H1)."""

from typing import Any

import pytest
from tests.core.builders import Drive, a_failure, a_settings, refusal, sealed, unchanged

from rallypoint.core.advance import timer_seconds
from rallypoint.core.events import (
    Beat,
    Cause,
    Disconnected,
    ExclusionOver,
    Fail,
    Finish,
    Join,
    Lost,
    Reconnected,
    Refusal,
    RoundOpened,
    RunClosed,
    SteadyOver,
    assignment,
)
from rallypoint.core.explain import describe
from rallypoint.core.failures import BY
from rallypoint.core.state import (
    FAILURES_LIMIT,
    QUARANTINE_ROUNDS,
    Aspect,
    Closed,
    Gathering,
    Strike,
    Verdict,
)

# -- B1: the budget -----------------------------------------------------------------------


def test_b1_worker_failure_opens_a_round_and_uses_the_budget() -> None:
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
        "rank 0 (local 0) on node2: exit code 4 at noon; the first of 2 consecutive failing "
        "rounds, round 1: rank 0 (local 0) on node1: exit code 3"
    )
    assert step.state.phase == Closed(3, "node2", "noon", why, Verdict.BUDGET)
    assert step.state.restarts == 1
    (closed,) = run.sent("node1")
    assert isinstance(closed, RunClosed)
    assert [f.exit_code for f in closed.failures] == [3, 4, 5]
    assert closed.verdict is Verdict.BUDGET


def test_b1_first_of_consecutive_failures_is_kept() -> None:
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


def test_b1_all_nodes_learn_the_number_of_consecutive_failures() -> None:
    run = sealed("node1", "node2")
    assert assignment(run.record, 0).failing == 0
    for count in (1, 2, 3):
        run.fail("node2")
        run.rejoin("node1", "node2")
        assert [assignment(run.record, rank).failing for rank in (0, 1)] == [count, count]


def test_b1_steady_round_resets_consecutive_failures() -> None:
    run = sealed("node1", "node2", steady_after_seconds=7.0)
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


def test_b1_explained_failure_is_not_counted_as_consecutive() -> None:
    run = sealed("node1", "node2", "node3")
    run.fail("node1")
    run.rejoin("node1", "node2", "node3")
    run.fail("node1")
    assert run.state.failing == 2
    run.lose("node3")
    assert (run.state.failing, run.state.restarts) == (1, 1)


def test_b1_no_budget_is_no_limit_and_membership_changes_are_free() -> None:
    run = sealed("node1", "node2", "node3")
    for _ in range(5):
        run.fail("node1")
        run.rejoin("node1", "node2", "node3")
    assert run.state.restarts == 5
    run.lose("node3")
    run.rejoin("node1", "node2")
    assert run.state.restarts == 5


def test_b1_leaving_and_rejoining_does_not_refill_the_budget() -> None:
    run = sealed("node1", "node2", least=1, most=2, max_restarts=1)
    run.fail("node1")
    run.leave("node1")
    run.join("node1b")
    run.rejoin("node2")
    run.fail("node1b")
    run.rejoin("node1b", "node2")
    assert run.phase == "Closed"


def test_b1_failures_of_one_round_count_once() -> None:
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


def test_b1_failure_after_a_loss_costs_nothing() -> None:
    run = sealed("node1", "node2", "node3", max_restarts=0)
    run.lose("node3")
    run.fail("node2", a_failure("node2", code=7), number=1)
    assert [(f.round, f.exit_code) for f in run.state.failures] == [(1, 7)]
    assert (run.state.restarts, run.phase) == (0, "Gathering")


def test_b1_failures_of_different_rounds_are_kept_separate() -> None:
    run = sealed("node1", "node2", "node3")
    run.fail("node1", a_failure("node1", code=1))
    run.rejoin("node1", "node2", "node3")
    run.lose("node3")
    run.fail("node2", a_failure("node2", code=7), number=2)
    assert [(f.round, f.exit_code) for f in run.state.failures] == [(2, 7)]
    assert run.state.restarts == 1


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_b1_budget_allows_exactly_its_number_of_failing_rounds(budget: int) -> None:
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
def test_b1_silent_loss_noticed_after_the_failure_costs_nothing(
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


def test_b1_failure_is_charged_once_all_nodes_are_back() -> None:
    run = spent("node1", "node2", "node3")
    run.rejoin("node2", "node3")
    assert run.phase == "Gathering"
    run.rejoin("node1")
    assert_closed_by_the_failure(run)
    for name in ("node1", "node2", "node3"):
        assert run.kinds(name) == ["RunClosed"]


@pytest.mark.parametrize("least", [1, 2, 3])
def test_b1_spent_budget_closes_the_run_even_with_too_few_nodes(least: int) -> None:
    run = spent("node1", "node2", "node3", least=least)
    run.leave("node2")
    run.leave("node3")
    run.rejoin("node1")
    assert_closed_by_the_failure(run)


def test_b1_budget_is_checked_when_all_leave_or_finish() -> None:
    run = spent("node1", "node2")
    run.leave("node1")
    run.do(Finish("node2", 1, 1))
    assert_closed_by_the_failure(run)
    assert run.kinds("node2") == ["RunClosed"]


def test_b1_single_node_gets_another_round_after_a_failure() -> None:
    run = spent("node1")
    run.rejoin("node1")
    assert_closed_by_the_failure(run)


def test_b1_newcomers_do_not_reset_the_budget() -> None:
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
def test_b1_failure_is_charged_until_a_disconnected_participant_is_lost(
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
def test_b1_budget_is_not_checked_while_a_node_is_disconnected(back: bool) -> None:
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
def test_b1_loss_of_a_non_participant_excuses_no_failure(place: str) -> None:
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


def test_b1_restored_connection_does_not_excuse_a_failure() -> None:
    run = sealed("node1", "node2", max_restarts=0)
    run.do(Disconnected("node2"), Reconnected("node2"))
    run.fail("node1")
    run.rejoin("node1", "node2")
    assert run.phase == "Closed"


def test_b1_failure_counts_once_the_disconnected_node_is_back() -> None:
    run = sealed("node1", "node2", max_restarts=0)
    run.do(Disconnected("node2"))
    run.fail("node1")
    run.rejoin("node1")
    run.do(Reconnected("node2"))
    assert run.phase == "Gathering"
    run.rejoin("node2")
    assert run.phase == "Closed"


def test_b1_lower_budget_of_a_new_opener_closes_nothing() -> None:
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
def test_b1_lost_member_refunds_a_restart_once(cause: Cause, gone: str, rejoined: bool) -> None:
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


def test_b1_rejoin_timeout_and_replacement_refund_a_restart() -> None:
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
def test_b1_only_the_loss_of_a_member_refunds_a_restart(gone: str) -> None:
    run = sealed("node1", "node2", "finished", least=1, most=4, max_restarts=1)
    run.join("waited", "spare")
    run.fail("node1")
    run.join("came")
    run.do(Finish("finished", 1, 1))
    run.lose(gone)
    assert run.state.phase == Gathering(round=2, former=3, charged=True)
    assert run.state.restarts == 1


@pytest.mark.parametrize("gone", ["node1", "node2"])
def test_b1_leave_and_late_loss_refund_nothing(gone: str) -> None:
    run = sealed("node1", "node2", "node3", least=1, max_restarts=1)
    run.fail("node1")
    run.leave(gone)
    assert run.state.phase == Gathering(round=2, former=3, lost=True, charged=True)
    run.rejoin(*({"node1", "node2", "node3"} - {gone}))
    run.lose("node3")
    assert run.state.phase == Gathering(round=3, former=2, lost=True)
    assert run.state.restarts == 1


def test_b1_refunded_restart_can_be_used_again() -> None:
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


def test_b1_loss_after_a_spent_budget_opens_no_round() -> None:
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
def test_e1_stale_failure_changes_nothing(fields: dict[str, Any]) -> None:
    run = sealed("node1", "node2")
    unchanged(run, Fail(failure=a_failure(), **fields))


def test_e1_stale_failure_changes_nothing_while_gathering() -> None:
    run = sealed("node1", "node2")
    run.rejoin("node1")
    unchanged(run, Fail("node2", 1, 2, a_failure()))
    unchanged(run, Fail("node1", 1, 1, a_failure()))  # has joined again already


def test_first_join_opens_a_run() -> None:
    run = Drive(1, 1)
    step = run.do(Join(node=run.joining("solo").node, settings=a_settings(1, 1)))
    assert step.state.opened_by == "solo id solo"
    assert run.ranks() == ["solo"]


NAMES = ("node1", "node2", "node3")


def failing(run: Drive, name: str = "node2", times: int = 1, **failure: Any) -> Drive:
    """Let the workers of one node end rounds; the others come back first."""
    for _ in range(times):
        run.fail(name, a_failure(name, **failure))
        run.rejoin(*[n for n in sorted(run.state.participants) if n != name])
        run.rejoin(name)
    return run


def test_h1_node_that_fails_too_often_is_excluded_for_a_time() -> None:
    run = failing(sealed(*NAMES, quarantine_failures=2, quarantine_time_seconds=90.0))
    assert (run.phase, run.number, run.state.exclusions) == ("Sealed", 2, ())
    failing(run, code=3, at="noon")
    (out,) = run.state.exclusions
    assert (out.aspect, out.name, out.by, out.at) == (Aspect.ADDRESS, "node2", BY, "noon")
    assert out.why == (
        "its workers have ended 2 of the last 16 rounds (quarantine_failures=2), "
        "the last one by rank 0 (local 0) on node2: exit code 3 at noon"
    )
    assert (out.seconds, out.nodes) == (90.0, ("node2",))
    assert run.step.reason.startswith(f"node2 pid 2 was excluded by quarantine: {out.why}; round 3")
    assert timer_seconds(run.state, ExclusionOver(1)) == 90.0
    assert run.kinds("node2") == ["Refused"]
    assert (run.phase, run.number, run.ranks()) == ("Sealed", 3, ["node1", "node3"])
    assert run.state.restarts == 2
    assert run.state.strikes == ()
    run.join("node2")
    assert refusal(run, "node2").refusal is Refusal.EXCLUDED
    run.do(ExclusionOver(1))
    run.join("node2")
    assert run.kinds("node2") == ["Parked"]


def test_h1_no_quarantine_without_the_setting() -> None:
    run = failing(sealed(*NAMES), times=6)
    assert (run.number, run.state.exclusions) == (7, ())
    assert len(run.state.strikes) == 6


def test_h1_only_the_node_that_ended_the_round_gets_a_strike() -> None:
    run = sealed(*NAMES, quarantine_failures=2)
    for name, other in (("node1", "node2"), ("node2", "node3"), ("node3", "node1")):
        run.fail(name)
        run.fail(other, number=run.number - 1)  # a consequence
        run.rejoin(*NAMES)
    assert (run.number, run.state.exclusions) == (4, ())
    failing(run, "node1")
    assert [x.name for x in run.state.exclusions] == ["node1"]
    assert [s.name for s in run.state.strikes] == ["node2", "node3"]


def test_h1_only_recent_rounds_count() -> None:
    run = failing(sealed(*NAMES, quarantine_failures=2))
    for _ in range(QUARANTINE_ROUNDS - 2):
        run.rejoin(*NAMES)
    assert run.number == QUARANTINE_ROUNDS
    failing(run)
    assert [x.name for x in run.state.exclusions] == ["node2"]
    run = failing(sealed(*NAMES, quarantine_failures=2))
    for _ in range(QUARANTINE_ROUNDS - 1):
        run.rejoin(*NAMES)
    failing(run)
    assert run.state.exclusions == ()
    assert run.state.strikes == (Strike(Aspect.ADDRESS, "node2", QUARANTINE_ROUNDS + 1),)


def test_h1_b1_failures_caused_by_a_lost_node_are_no_strikes() -> None:
    run = sealed(*NAMES, quarantine_failures=1)
    run.fail("node2")
    run.rejoin("node1", "node2")
    assert run.phase == "Gathering"  # node3 may yet turn out to be lost
    run.lose("node3")
    assert (run.phase, run.state.exclusions, run.state.strikes) == ("Sealed", (), ())
    failing(run)
    assert [x.name for x in run.state.exclusions] == ["node2"]


def test_h1_loss_removes_only_the_last_strike() -> None:
    run = failing(sealed(*NAMES, quarantine_failures=9))
    run.fail("node2")
    run.lose("node3")
    assert run.state.strikes == (Strike(Aspect.ADDRESS, "node2", 1),)


def test_h1_no_strike_while_a_node_is_disconnected() -> None:
    run = sealed(*NAMES, quarantine_failures=1)
    run.fail("node2")
    run.rejoin("node1", "node2")
    run.do(Disconnected("node1"))
    run.rejoin("node3")
    assert (run.phase, run.state.exclusions) == ("Gathering", ())
    run.do(Reconnected("node1"))
    assert run.ranks() == ["node1", "node3"]


def test_h1_departed_node_is_excluded_too() -> None:
    run = sealed(*NAMES, quarantine_failures=1)
    run.fail("node2")
    run.leave("node2")
    run.rejoin("node1", "node3")
    assert run.ranks() == ["node1", "node3"]
    run.join("node4", address="node2")
    assert refusal(run, "node4").refusal is Refusal.EXCLUDED


def test_h1_failure_counts_for_one_round_only() -> None:
    run = failing(sealed(*NAMES, least=1, quarantine_failures=2))
    run.fail("node1")
    run.rejoin(*NAMES)
    run.lose("node1")
    run.rejoin("node2", "node3")
    assert run.state.exclusions == ()


def test_h1_spent_budget_closes_the_run_and_excludes_nobody() -> None:
    run = failing(sealed(*NAMES, quarantine_failures=1, max_restarts=0))
    assert (run.phase, run.state.exclusions) == ("Closed", ())


def test_h1_node_is_identified_by_slot_address_or_id() -> None:
    run = Drive(1, 3)
    run.join("node1", slot="a", address="x")
    run.join("node2", address="y")
    run.join("node3", address="x")
    run.rejoin("node1", "node2", "node3")
    for name in NAMES:
        failing(run, name)
    assert [(s.aspect, s.name) for s in run.state.strikes] == [
        (Aspect.SLOT, "a"),
        (Aspect.ADDRESS, "y"),
        (Aspect.NODE, "node3"),  # another node has its address, too
    ]


def test_h1_new_process_in_the_same_slot_is_the_same_node() -> None:
    run = Drive(1, 2, quarantine_failures=2)
    run.join("node1", slot="a")
    run.join("node2", slot="b")
    run.fail("node2")
    run.join("node3", slot="b")
    run.rejoin("node1")
    assert run.state.strikes == ()  # the one that was replaced counts as lost


@pytest.mark.parametrize("name", ["node1", "node2"])
def test_h1_others_wait_for_a_node_when_below_min_nodes(name: str) -> None:
    run = failing(sealed("node1", "node2", quarantine_failures=1), name)
    assert run.phase == "Gathering"
    assert "1 of at least 2 nodes have joined" in run.step.reason
    run.join("node3")
    assert run.phase == "Sealed"


def test_h1_reopened_run_has_no_strikes() -> None:
    run = failing(sealed(*NAMES, quarantine_failures=5))
    run.close()
    run.do(run.joining("node1", new_incarnation=True))
    assert run.state.strikes == ()


def test_message_names_only_excluded_nodes() -> None:
    once = failing(sealed(*NAMES, quarantine_failures=2))  # round 2 is at work
    assert once.do(Beat("node1")).reason == describe(once.state)
    once.fail("node3")  # another one's first
    assert once.do(Beat("node1")).reason == describe(once.state)
    missing = sealed(*NAMES, quarantine_failures=1)
    missing.fail("node2")
    missing.rejoin("node1")
    assert missing.do(Beat("node1")).reason == describe(missing.state)
