"""Every planted fault is caught, and nothing else is: the checkers see, and do not invent."""

import pytest
from tests.testing.simulator.planted import CASES, Case

from rallypoint.testing.simulator import plan_from, search


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_planted_fault_is_caught(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    found = search(range(case.seeds), lambda seed: plan_from(seed, case.shared), 90.0)
    assert found.failure is not None, f"not found: {found.line()}"
    print(f"{case.name}: {found.seeds} seeds, {found.failure.text[:120]}")


def test_at_least_ten_kinds_are_planted() -> None:
    assert len({case.plant for case in CASES}) >= 20
