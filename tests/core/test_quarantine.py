"""Quarantine, rule H1: nodes whose workers fail again and again are kept out for a while."""

from typing import Any

import pytest
from tests.core.builders import Drive, a_failure, refusal, sealed

from rallypoint.core.advance import timer_seconds
from rallypoint.core.annotations import Aspect, Strike
from rallypoint.core.events import (
    Beat,
    Disconnected,
    ExclusionOver,
    Reconnected,
    Refusal,
)
from rallypoint.core.explain import describe
from rallypoint.core.quarantine import BY
from rallypoint.core.state import QUARANTINE_ROUNDS

NAMES = ("node1", "node2", "node3")


def failing(run: Drive, name: str = "node2", times: int = 1, **failure: Any) -> Drive:
    """Let the workers of one node end rounds; the others come back first."""
    for _ in range(times):
        run.fail(name, a_failure(name, **failure))
        run.rejoin(*[n for n in sorted(run.state.participants) if n != name])
        run.rejoin(name)
    return run


def test_h1_a_node_that_fails_too_often_is_kept_out_for_a_while() -> None:
    run = failing(sealed(*NAMES, quarantine_failures=2, quarantine_seconds=90.0))
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


def test_h1_without_the_setting_nobody_is() -> None:
    run = failing(sealed(*NAMES), times=6)
    assert (run.number, run.state.exclusions) == (7, ())
    assert len(run.state.strikes) == 6


def test_h1_each_node_is_counted_for_itself_and_only_who_ended_the_round() -> None:
    run = sealed(*NAMES, quarantine_failures=2)
    for name, other in (("node1", "node2"), ("node2", "node3"), ("node3", "node1")):
        run.fail(name)
        run.fail(other, number=run.number - 1)  # a consequence
        run.rejoin(*NAMES)
    assert (run.number, run.state.exclusions) == (4, ())
    failing(run, "node1")
    assert [x.name for x in run.state.exclusions] == ["node1"]
    assert [s.name for s in run.state.strikes] == ["node2", "node3"]


def test_h1_only_the_last_rounds_count() -> None:
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


def test_h1_b1_workers_that_failed_because_a_node_was_lost_are_not_to_blame() -> None:
    run = sealed(*NAMES, quarantine_failures=1)
    run.fail("node2")
    run.rejoin("node1", "node2")
    assert run.phase == "Gathering"  # node3 may yet turn out to be lost
    run.lose("node3")
    assert (run.phase, run.state.exclusions, run.state.strikes) == ("Sealed", (), ())
    failing(run)
    assert [x.name for x in run.state.exclusions] == ["node2"]


def test_h1_a_loss_takes_back_the_last_strike_alone() -> None:
    run = failing(sealed(*NAMES, quarantine_failures=9))
    run.fail("node2")
    run.lose("node3")
    assert run.state.strikes == (Strike(Aspect.ADDRESS, "node2", 1),)


def test_h1_nobody_is_judged_while_a_connection_is_cut() -> None:
    run = sealed(*NAMES, quarantine_failures=1)
    run.fail("node2")
    run.rejoin("node1", "node2")
    run.do(Disconnected("node1"))
    run.rejoin("node3")
    assert (run.phase, run.state.exclusions) == ("Gathering", ())
    run.do(Reconnected("node1"))
    assert run.ranks() == ["node1", "node3"]


def test_h1_one_that_has_gone_by_then_is_kept_out_all_the_same() -> None:
    run = sealed(*NAMES, quarantine_failures=1)
    run.fail("node2")
    run.leave("node2")
    run.rejoin("node1", "node3")
    assert run.ranks() == ["node1", "node3"]
    run.join("node4", address="node2")
    assert refusal(run, "node4").refusal is Refusal.EXCLUDED


def test_h1_an_older_failure_is_not_judged_again_by_another_round() -> None:
    run = failing(sealed(*NAMES, least=1, quarantine_failures=2))
    run.fail("node1")
    run.rejoin(*NAMES)
    run.lose("node1")
    run.rejoin("node2", "node3")
    assert run.state.exclusions == ()


def test_h1_a_spent_budget_closes_the_run_and_keeps_nobody_out() -> None:
    run = failing(sealed(*NAMES, quarantine_failures=1, max_restarts=0))
    assert (run.phase, run.state.exclusions) == ("Closed", ())


def test_h1_a_node_is_known_by_its_slot_else_its_address_else_its_id() -> None:
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


def test_h1_a_new_process_in_the_same_place_is_the_same_node() -> None:
    run = Drive(1, 2, quarantine_failures=2)
    run.join("node1", slot="a")
    run.join("node2", slot="b")
    run.fail("node2")
    run.join("node3", slot="b")
    run.rejoin("node1")
    assert run.state.strikes == ()  # the one that was replaced counts as lost


@pytest.mark.parametrize("name", ["node1", "node2"])
def test_h1_below_min_nodes_the_others_wait_for_another_node(name: str) -> None:
    run = failing(sealed("node1", "node2", quarantine_failures=1), name)
    assert run.phase == "Gathering"
    assert "1 of at least 2 nodes have joined" in run.step.reason
    run.join("node3")
    assert run.phase == "Sealed"


def test_h1_a_run_opened_afresh_has_no_strikes() -> None:
    run = failing(sealed(*NAMES, quarantine_failures=5))
    run.close()
    run.do(run.joining("node1", new_incarnation=True))
    assert run.state.strikes == ()


def test_who_is_not_kept_out_is_not_spoken_of() -> None:
    once = failing(sealed(*NAMES, quarantine_failures=2))  # round 2 is at work
    assert once.do(Beat("node1")).reason == describe(once.state)
    once.fail("node3")  # another one's first
    assert once.do(Beat("node1")).reason == describe(once.state)
    missing = sealed(*NAMES, quarantine_failures=1)
    missing.fail("node2")
    missing.rejoin("node1")
    assert missing.do(Beat("node1")).reason == describe(missing.state)
