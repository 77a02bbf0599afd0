"""A simulated cluster: the real core, server, client and agent policy in one thread, from a seed.

    search(range(1000)).line()     # run seeds
    print(story(shrink(failure)))  # read a failure

docs/simulation.md says what is real, which faults happen, and what is checked.
"""

from rallypoint.testing.simulator.context import Violation
from rallypoint.testing.simulator.hosted import HostedWorld
from rallypoint.testing.simulator.plan import Fault, Kind, Plan, plan_from
from rallypoint.testing.simulator.search import (
    FailedPlan,
    SearchResult,
    attempt,
    first_seed,
    make_world,
    run,
    search,
    shrink,
    story,
)
from rallypoint.testing.simulator.world import Result, World

__all__ = [
    "FailedPlan",
    "Fault",
    "HostedWorld",
    "Kind",
    "Plan",
    "Result",
    "SearchResult",
    "Violation",
    "World",
    "attempt",
    "first_seed",
    "make_world",
    "plan_from",
    "run",
    "search",
    "shrink",
    "story",
]
