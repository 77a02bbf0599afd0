"""Every planted fault is caught, and nothing else is: the checkers see, and do not invent."""

from collections.abc import Iterable

import pytest
from tests.testing.simulator.planted import CASES, Case

from rallypoint.testing.simulator import Kind, Plan, plan_from, search


def has_any(plan: Plan, kinds: tuple[Kind, ...]) -> bool:
    return any(fault.kind in kinds for fault in plan.faults)


@pytest.mark.search
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_planted_fault_is_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    seeds: Iterable[int] = range(case.seeds)
    if case.about:
        seeds = (seed for seed in seeds if has_any(plan_from(seed, case.shared), case.about))
    found = search(seeds, lambda seed: plan_from(seed, case.shared), 90.0)
    assert found.failure is not None, f"not found: {found.line()}"
    print(f"{case.name}: {found.seeds} seeds, {found.failure.text[:120]}")


def test_at_least_ten_kinds_are_planted() -> None:
    assert len({case.plant for case in CASES}) >= 20
