"""A simulated cluster: the real core, hosts, wire and policy, in one thread, from one seed.

    search(range(1000)).line()     # run seeds
    print(story(shrink(failure)))  # read what failed

See docs/simulation.md for what is real in it, what goes wrong in it, and what is checked.
"""

from rallypoint.testing.simulator.context import Violation
from rallypoint.testing.simulator.hosted_world import HostedWorld
from rallypoint.testing.simulator.plan import Fault, Kind, Plan, plan_from
from rallypoint.testing.simulator.search import (
    Failure,
    Found,
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
    "Failure",
    "Fault",
    "Found",
    "HostedWorld",
    "Kind",
    "Plan",
    "Result",
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
