"""Every planted fault is caught, and nothing else is: the checkers see, and do not invent."""

from collections.abc import Iterable

import pytest
from tests.testing.simulator.planted import CASES, Case
from tests.testing.simulator.test_world import a_serverless_world

from rallypoint.core.advance import advance
from rallypoint.core.events import Beat, Cause, Join, Lost
from rallypoint.core.state import Node, RunState, Settings
from rallypoint.testing.simulator import Kind, Plan, Violation, plan_from, search


def has_any(plan: Plan, kinds: tuple[Kind, ...]) -> bool:
    return any(fault.kind in kinds for fault in plan.faults)


@pytest.mark.search
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_planted_fault_is_detected(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    seeds: Iterable[int] = range(case.seeds)
    if case.about:
        seeds = (seed for seed in seeds if has_any(plan_from(seed, case.shared), case.about))
    found = search(seeds, lambda seed: plan_from(seed, case.shared), 90.0)
    assert found.failure is not None, f"not found: {found.line()}"
    print(f"{case.name}: {found.seeds} seeds, {found.failure.text[:120]}")


def test_at_least_ten_kinds_are_planted() -> None:
    assert len({case.plant for case in CASES}) >= 20


def test_loss_comes_only_after_a_silent_lease() -> None:
    world = a_serverless_world()
    checker, settings = world.checker, Settings(1, 2, lease_seconds=3.0)
    state = RunState("simulated")

    def happens(at: float, *events: object) -> None:
        nonlocal state
        world.clock.run_until(at)
        step = advance(state, *events)  # type: ignore[arg-type] # events of the core
        before, state = state, step.state
        checker.stored(before, step)

    for name in ("a", "b"):
        happens(0.0, Join(Node(name, "h"), settings))
    happens(2.0, Beat("a"))
    happens(4.0, Lost("b", Cause.LEASE))
    with pytest.raises(Violation, match=r"a was lost after 2\.10 s"):
        happens(4.1, Lost("a", Cause.LEASE, 1))
