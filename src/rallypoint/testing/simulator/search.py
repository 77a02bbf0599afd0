"""Runs many seeds, and makes what fails small enough to read.

A failing plan is shrunk while the same kind of violation remains: first by taking faults
away, then nodes, store clients and time. What is printed is the smallest plan and the
transcript of its run; the seed alone brings the whole plan back.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from rallypoint.testing.simulator.context import Violation
from rallypoint.testing.simulator.hosted_world import HostedWorld
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


class Failure(msgspec.Struct, frozen=True):
    """A plan that violates something.

    Args:
        plan: as its seed gives it.
        kind: of the violation.
        text: what it says.
    """

    plan: Plan
    kind: str
    text: str


class Found(msgspec.Struct):
    """What a search has come to.

    Args:
        seeds: how many were run.
        seconds: how long that took.
        steps: callbacks that ran in all of them.
        decisions: steps of the core.
        rounds: rounds sealed.
        failure: the first that failed, None if none did.
    """

    seeds: int = 0
    seconds: float = 0.0
    steps: int = 0
    decisions: int = 0
    rounds: int = 0
    failure: Failure | None = None

    def line(self) -> str:
        """Return it as a line for people."""
        return (
            f"{self.seeds} seeds in {self.seconds:.1f} s: {self.steps} callbacks, "
            f"{self.decisions} decisions, {self.rounds} rounds"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the hosts' log out of the way: thousands of runs would flood it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def attempt(plan: Plan) -> Failure | None:
    """Run a plan; return what it violates, None if nothing."""
    try:
        run(plan)
    except Violation as violation:
        return Failure(plan, violation.kind, str(violation))
    except Exception as error:  # a crash of what is simulated is a finding, too
        return Failure(plan, type(error).__name__, repr(error))
    return None


def search(
    seeds: Iterable[int], planner: Planner = plan_from, limit_seconds: float = float("inf")
) -> Found:
    """Run seeds until one fails or the time is over."""
    found, began = Found(), time.monotonic()
    with quiet():
        for seed in seeds:
            plan = planner(seed)
            try:
                result = run(plan)
            except Violation as violation:
                found.failure = Failure(plan, violation.kind, str(violation))
            except Exception as error:  # as in `attempt`
                found.failure = Failure(plan, type(error).__name__, repr(error))
            else:
                found.steps += result.steps
                found.decisions += result.decisions
                found.rounds += result.rounds
            found.seeds += 1
            found.seconds = time.monotonic() - began
            if found.failure is not None or found.seconds > limit_seconds:
                break
    return found


def shrink(failure: Failure, tries: int = TRIES) -> Failure:
    """Return the smallest failing plan that can be found from one."""
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


def story(failure: Failure, lines: int = LINES_SHOWN) -> str:
    """Return a failing plan with the transcript of its run."""
    world = make_world(failure.plan, trace=True)
    with quiet():
        try:
            world.run()
            end = "this time nothing was violated"
        except Exception as error:  # printed, whatever it is
            end = f"{type(error).__name__}: {error}"
    happened = world.lines or []
    cut = [f"... {len(happened) - lines} lines before"] if len(happened) > lines else []
    again = f"the whole plan again: {SEED_VARIABLE}={failure.plan.seed}"
    return "\n".join([*failure.plan.lines(), "", *cut, *happened[-lines:], "", end, again])


def first_seed() -> int:
    """Return the seed to begin with: a given one, else one that nobody has run before."""
    given = os.environ.get(SEED_VARIABLE)
    return int(given) if given else time.time_ns() // 1_000 % 1_000_000_000_000
