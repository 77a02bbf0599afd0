"""Runs many seeds, and shrinks a plan that fails.

A failing plan is shrunk as long as the same kind of violation remains: first by removing
faults, then nodes, store clients and time. `story` prints the smallest plan and the transcript of
its run; the seed alone reproduces the original plan.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from rallypoint.testing.simulator.context import Violation
from rallypoint.testing.simulator.hosted import HostedWorld
from rallypoint.testing.simulator.plan import Plan, plan_from
from rallypoint.testing.simulator.serverless import ServerlessWorld
from rallypoint.testing.simulator.world import Result, World

SEED_VARIABLE = "RALLYPOINT_SEED"
LINES_SHOWN = 120
TRIES = 200

Planner = Callable[[int], Plan]


def make_world(plan: Plan, trace: bool = False) -> World:
    """Return the world of a plan, with or without a server; it has not started yet."""
    return ServerlessWorld(plan, trace) if plan.shared else HostedWorld(plan, trace)


def run(plan: Plan, trace: bool = False) -> Result:
    """Run a plan; raise Violation if something is wrong."""
    return make_world(plan, trace).run()


class FailedPlan(msgspec.Struct, frozen=True):
    """A plan that ends in a violation.

    Args:
        plan: that was run.
        kind: of the violation.
        text: its message.
    """

    plan: Plan
    kind: str
    text: str


class SearchResult(msgspec.Struct):
    """The result of a search.

    Args:
        seeds: number of seeds run.
        seconds: duration.
        steps: callbacks run.
        decisions: steps of the core.
        rounds: sealed rounds.
        failure: the first failure, None without one.
    """

    seeds: int = 0
    seconds: float = 0.0
    steps: int = 0
    decisions: int = 0
    rounds: int = 0
    failure: FailedPlan | None = None

    def line(self) -> str:
        """Return the figures as text."""
        return (
            f"{self.seeds} seeds in {self.seconds:.1f} s: {self.steps} callbacks, "
            f"{self.decisions} decisions, {self.rounds} rounds"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Disable logging: thousands of runs would flood it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def attempt(plan: Plan) -> FailedPlan | None:
    """Run a plan; return its failure, None without one."""
    try:
        run(plan)
    except Violation as violation:
        return FailedPlan(plan, violation.kind, str(violation))
    except Exception as error:  # a crash of the product is a finding, too
        return FailedPlan(plan, type(error).__name__, repr(error))
    return None


def search(
    seeds: Iterable[int], planner: Planner = plan_from, limit_seconds: float = float("inf")
) -> SearchResult:
    """Run seeds until one fails or the time limit is reached."""
    found, began = SearchResult(), time.monotonic()
    with quiet():
        for seed in seeds:
            plan = planner(seed)
            try:
                result = run(plan)
            except Violation as violation:
                found.failure = FailedPlan(plan, violation.kind, str(violation))
            except Exception as error:  # as in `attempt`
                found.failure = FailedPlan(plan, type(error).__name__, repr(error))
            else:
                found.steps += result.steps
                found.decisions += result.decisions
                found.rounds += result.rounds
            found.seeds += 1
            found.seconds = time.monotonic() - began
            if found.failure is not None or found.seconds > limit_seconds:
                break
    return found


def shrink(failure: FailedPlan, tries: int = TRIES) -> FailedPlan:
    """Return the smallest plan with the same kind of failure that is found."""
    best, left = failure, tries
    with quiet():
        smaller = True
        while smaller and left > 0:
            smaller = False
            for plan in _smaller(best.plan):
                left -= 1
                again = attempt(plan)
                if again is not None and again.kind == failure.kind:
                    best, smaller = again, True
                    break
                if left <= 0:
                    break
    return best


def _smaller(plan: Plan) -> Iterator[Plan]:
    change = msgspec.structs.replace
    count = len(plan.faults)
    if count > 3:
        yield change(plan, faults=plan.faults[: count // 2])
        yield change(plan, faults=plan.faults[count // 2 :])
    for i in range(count):
        yield change(plan, faults=plan.faults[:i] + plan.faults[i + 1 :])
    if plan.stores:
        yield change(plan, stores=0)
        yield change(plan, stores=plan.stores - 1)
    if plan.nodes > max(1, plan.settings.min_nodes):
        yield change(plan, nodes=plan.nodes - 1)
    if plan.work_seconds:
        yield change(plan, work_seconds=0.0)


def story(failure: FailedPlan, lines: int = LINES_SHOWN) -> str:
    """Return a failing plan and the transcript of its run."""
    world = make_world(failure.plan, trace=True)
    with quiet():
        try:
            world.run()
            end = "no violation in this run"
        except Exception as error:  # printed in the story
            end = f"{type(error).__name__}: {error}"
    happened = world.lines or []
    cut = [f"... {len(happened) - lines} earlier lines"] if len(happened) > lines else []
    again = f"to reproduce the original plan: {SEED_VARIABLE}={failure.plan.seed}"
    return "\n".join([*failure.plan.lines(), "", *cut, *happened[-lines:], "", end, again])


def first_seed() -> int:
    """Return the first seed: the given one (RALLYPOINT_SEED), else a new one from the time."""
    given = os.environ.get(SEED_VARIABLE)
    return int(given) if given else time.time_ns() // 1_000 % 1_000_000_000_000
