"""The model check: every order of events, complete, with two faults of each choice."""

import itertools
from collections.abc import Callable

import pytest
from tests.testing.simulator.planted import (
    leaving_closes,
    no_guard,
    round_numbers_stay,
    rule,
)

from rallypoint.core import rounds
from rallypoint.core.events import LastCallOver
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.state import LastCall, Settings
from rallypoint.testing.simulator.model import FAULTS, Broken, ModelCheck, explore

RUNS = {
    "min 2, max 3": Settings(2, 3),
    "min 1, max 2, no restarts": Settings(1, 2, max_restarts=0),
    "min 1, max 3, target 2, replacement": Settings(
        1, 3, target_nodes=2, replacement_wait_seconds=1.0
    ),
    "min 1, max 2, quarantine": Settings(1, 2, quarantine_failures=1),
}


SOME = {  # what tells these runs from the first: the pairs with one of these faults
    "min 1, max 2, quarantine": {"fail", "exclude"},
    "min 1, max 3, target 2, replacement": set(FAULTS) - {"notify", "exclude"},
}
BY_FIRST = [
    (name, first, [pair for pair in itertools.combinations(FAULTS, 2)
                   if pair[0] == first and set(pair) & SOME.get(name, set(FAULTS))])
    for name in RUNS for first in FAULTS
]  # fmt: skip


@pytest.mark.search
@pytest.mark.parametrize(
    ("name", "pairs"),
    [pytest.param(name, pairs, id=f"{name}: {first}") for name, first, pairs in BY_FIRST if pairs],
)
def test_all_orders_of_events(name: str, pairs: list[tuple[str, ...]]) -> None:
    whole = ModelCheck()
    for faults in pairs:
        one = explore(RUNS[name], faults)
        assert one.complete
        whole.states += one.states
        whole.steps += one.steps
        whole.seconds += one.seconds
    print(f"{name}: {whole.line()}")
    assert whole.states > 200 * len(pairs)


def test_incomplete_search_says_so() -> None:
    report = explore(Settings(2, 3), limit_seconds=0.05)
    assert not report.complete
    assert "not complete" in report.line()


def any_last_call_counts(patch: pytest.MonkeyPatch) -> None:
    def over(d: MutableState, e: LastCallOver) -> None:
        if isinstance(d.phase, LastCall):
            now = LastCallOver(d.incarnation, d.phase.round, d.phase.call)
            rounds.last_call_over(d, now)

    rule(patch, LastCallOver, over)


PLANTED = [any_last_call_counts, leaving_closes, no_guard, round_numbers_stay]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_faults_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Broken) as found:
        explore(Settings(1, 3, replacement_wait_seconds=1.0), ("leave", "fail", "late timer"))
    assert len(found.value.path) <= 12
