from rallypoint.rendezvous.settings import least_rejoin
from rallypoint.testing.simulator.plan import STEP_KINDS, Kind, plan_from


def test_same_seed_gives_the_same_plan() -> None:
    assert plan_from(7) == plan_from(7)
    assert plan_from(7) != plan_from(8)


def test_many_seeds_have_every_kind_of_fault() -> None:
    plans = [plan_from(seed) for seed in range(1500)]
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert kinds == set(Kind)
    assert {plan.shared for plan in plans} == {True, False}
    for plan in plans:
        s = plan.settings
        assert s.min_nodes <= plan.nodes
        assert s.disconnect_grace_seconds <= s.lease_seconds
        assert plan.bound_seconds > s.lease_seconds
        assert s.rejoin_timeout_seconds >= least_rejoin(plan.stop_seconds), (
            "as a user could ask for it"
        )


def test_plan_is_readable() -> None:
    plan = next(p for p in map(plan_from, range(99)) if {f.kind for f in p.faults} & STEP_KINDS)
    text = "\n".join(plan.lines())
    assert text.startswith(f"seed {plan.seed}: {plan.nodes} nodes")
    assert "  step " in text
