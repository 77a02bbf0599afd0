"""A few chaos runs, other ones each time; `tests/chaos/run.py` does any number.

`RALLYPOINT_SEED=n pytest tests/chaos` runs those from seed n on.
"""

import pytest
from tests.chaos.plans import Do, Kind, plan_from
from tests.chaos.run import has_disk, run_plan

from rallypoint.testing.simulator import first_seed

RUNS = {Kind.HOSTED: 3, Kind.SHARED: 2, Kind.WRITERS: 2, Kind.DESCRIPTORS: 1, Kind.MEMORY: 1}
CASES = [(kind, number) for kind, count in RUNS.items() for number in range(count)]


@pytest.mark.integration
@pytest.mark.parametrize(("kind", "number"), CASES)
def test_no_fault_breaks_a_rule(kind: Kind, number: int) -> None:
    durable = has_disk()
    outcome = run_plan(plan_from(first_seed() + number, kind, durable), durable)
    print(outcome.line())
    assert not outcome.wrong, f"{outcome.line()}\n{outcome.told}"


def test_same_seed_gives_the_same_plan() -> None:
    assert plan_from(7) == plan_from(7)
    assert len({plan_from(seed, Kind.HOSTED).acts for seed in range(20)}) == 20


def test_plans_use_every_fault_and_leave_a_survivor() -> None:
    plans = [plan_from(seed) for seed in range(400)]
    assert {plan.kind for plan in plans} == set(Kind)
    assert {act.do for plan in plans for act in plan.acts} == set(Do)
    for plan in plans:
        ended = {act.who for act in plan.acts if act.do in (Do.KILL, Do.TERM)}
        assert len(ended) < plan.nodes
        harmful = [act.who for act in plan.acts if not act.harmless]
        assert len(harmful) == len(set(harmful))  # each agent once


def test_the_server_is_killed_only_if_it_has_a_disk() -> None:
    plans = [plan_from(seed, Kind.HOSTED, server_kills=False) for seed in range(100)]
    assert Do.SERVER_KILL not in {act.do for plan in plans for act in plan.acts}


def test_plan_is_described_in_words() -> None:
    text = plan_from(102, Kind.HOSTED).text()
    assert text.startswith("seed 102 hosted of ")
    assert " s " in text
