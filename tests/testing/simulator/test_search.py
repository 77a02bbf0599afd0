"""New seeds each time, all that ever failed, and what is made of one that fails.

`RALLYPOINT_SEED=n pytest tests/testing/simulator/test_search.py` begins with seed n. It goes on
for half a minute, some thousand seeds; with RALLYPOINT_NIGHTLY for a whole one.
"""

import itertools
import os
from pathlib import Path

import msgspec
import pytest
from tests.testing.simulator.planted import CASES

from rallypoint.server import runs
from rallypoint.testing.simulator import (
    FailedPlan,
    Kind,
    Plan,
    attempt,
    first_seed,
    plan_from,
    search,
    shrink,
    story,
)

FRESH_SECONDS = 30.0 if os.environ.get("RALLYPOINT_NIGHTLY") else 15.0  # hosted, and shared
FAILED = Path(__file__).with_name("failed.jsonl")  # plans, one a line, with what was violated


def told(failure: FailedPlan) -> str:
    """Return what a person needs, and the line to add to `FAILED`."""
    small = shrink(failure)
    line = msgspec.json.encode(small).decode()
    return f"{story(small)}\n\nadd this line to {FAILED.name}:\n{line}"


@pytest.mark.search
@pytest.mark.parametrize("shared", [False, True], ids=["hosted", "shared"])
def test_new_seeds_violate_no_rule(shared: bool) -> None:
    first = first_seed()
    print(f"from RALLYPOINT_SEED={first}")
    seeds = itertools.count(first)
    found = search(seeds, lambda seed: plan_from(seed, shared), FRESH_SECONDS)
    print(found.line())
    assert found.failure is None, told(found.failure)


def test_delayed_events_violate_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with thousands of nodes (runs.py), which no simulated run has."""
    monkeypatch.setattr(runs, "AT_ONCE_NODES", 0)
    monkeypatch.setattr(runs, "SECONDS_A_NODE", 0.02)
    first = first_seed()
    found = search(range(first, first + 150), lambda seed: plan_from(seed, False))
    assert found.failure is None, story(shrink(found.failure))


@pytest.mark.parametrize("line", FAILED.read_text("utf-8").splitlines())
def test_former_failures_do_not_return(line: str) -> None:
    again = attempt(msgspec.json.decode(line, type=FailedPlan).plan)
    assert again is None, story(again)


def test_same_seed_gives_the_same_run() -> None:
    for shared in (False, True):
        seeds = range(40, 60)
        one = search(seeds, lambda seed: plan_from(seed, shared))  # noqa: B023
        two = search(seeds, lambda seed: plan_from(seed, shared))  # noqa: B023
        assert (one.steps, one.decisions, one.rounds) == (two.steps, two.decisions, two.rounds)


def only_leaves(seed: int) -> Plan:
    """Return the plan of a seed in which nodes leave, and for no other reason than a signal."""
    plan = plan_from(seed, shared=False)
    faults = tuple(fault for fault in plan.faults if fault.kind is Kind.LEAVE)
    return msgspec.structs.replace(plan, faults=faults, join_seconds=1000.0)


def test_failing_plan_is_shrunk_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.name.startswith("L3"))
    case.plant(monkeypatch)
    failure = search(range(case.seeds), only_leaves).failure
    assert failure is not None
    small = shrink(failure)
    assert small.kind == failure.kind
    assert len(small.plan.faults) == 1
    text = story(small)
    assert "send SIGTERM to a node" in text
    assert "received SIGTERM" in text
    assert f"RALLYPOINT_SEED={failure.plan.seed}" in text


def test_crash_in_the_simulation_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("rallypoint.server.runs.RunHost.flush", crash)
    failure = search([1], lambda seed: plan_from(seed, False)).failure
    assert failure is not None
    assert failure.kind == "ZeroDivisionError"
    assert attempt(failure.plan) is not None


def test_seed_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RALLYPOINT_SEED", "77")
    assert first_seed() == 77
    monkeypatch.delenv("RALLYPOINT_SEED")
    assert first_seed() != first_seed()


def test_plan_round_trip_as_a_line() -> None:
    plan = plan_from(5)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
