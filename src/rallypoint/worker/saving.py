"""How the ranks agree at which step to save, with one request per half second.

The agents announce a change at slightly different moments, and the ranks are at different steps
then. So the ranks agree on a plan, stored under one key that only compare-and-swap changes:

    Plan(next, saves, wanted)

A plan decides all steps below `next`: all ranks save at the steps in `saves`, and at no other. A
rank that reaches `next` or a later step proposes the next plan: `next` moves to the end of a
block of steps, and its own step is added to `saves` if it knows of a change. The first proposal
wins, and the other ranks follow it. No rank has yet been told about any step at or after `next`,
so all ranks get the same answer for a step, in whatever order they ask. A rank whose proposal
lost and that alone knows of a change sets `wanted`, so that the next plan contains a save.

A block lasts about `BLOCK_SECONDS` at the proposer's pace, and at most twice as long as the last
one; with more than a thousand ranks it is longer, to stay below `REQUESTS_PER_SECOND` at the
server. A rank that cannot reach the store waits for it, since alone it cannot know the plan.

Each rank that has saved increments `saved_count`; the last one writes the step to `SAVED`, which
the agents watch. They then end the round, or, if the change was cancelled, release the workers
(`release_key`).
"""

import time
from collections.abc import Callable

import msgspec

from rallypoint.errors import StoreTimeoutError
from rallypoint.store.api import Store
from rallypoint.worker.change import PendingChange

BLOCK_SECONDS = 0.5
REQUESTS_PER_SECOND = 2000
MIN_WAIT_SECONDS = 1.0  # for the change after all have saved, even if its time is over
PLAN_KEY = "save/plan"
SAVED = "save/saved"


def saved_count(step: int) -> str:
    """Return the key that counts the ranks that have saved at `step`."""
    return f"save/{step}/count"


def release_key(step: int) -> str:
    """Return the key that an agent sets when the change that caused the save is cancelled."""
    return f"save/{step}/go-on"


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """What the ranks have agreed on.

    Args:
        next: the first undecided step.
        saves: steps to save at -> seconds that a rank then waits for the change.
        wanted: such seconds, if a rank wants a save that is not planned yet; else 0.
    """

    next: int
    saves: dict[int, float] = {}
    wanted: float = 0.0


class Saving:
    """One rank's part in the agreement.

    Args:
        store: of the round.
        world_size: number of ranks.
        pending: returns the change that this rank knows of, or None.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self,
        store: Store,
        world_size: int,
        pending: Callable[[], PendingChange | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._world_size = world_size
        self._pending = pending
        self._clock = clock
        self._block_seconds = max(BLOCK_SECONDS, world_size / REQUESTS_PER_SECOND)
        self._raw: bytes | None = None  # the plan as stored
        self._plan: Plan | None = None
        self._begun: tuple[int, float] | None = None  # step and time of the last agreement
        self._served = 0  # number of the change that a save is planned for
        self._reported: set[int] = set()

    def should_save(self, step: int) -> bool:
        """Return whether all ranks save at `step`.

        Asks the store at the first step of a block only; waits for it at most its timeout.

        Raises:
            StoreConnectionError, StoreTimeoutError: the store gave no answer.
        """
        plan = self._plan
        if plan is None or step >= plan.next:
            plan = self._agree(step)
        return step in plan.saves

    def saved(self, step: int) -> None:
        """Report a save, and wait for the change (see `rallypoint.worker.saved`).

        Blocks for the seconds that the plan gives for the change at most.

        Raises:
            StoreConnectionError, StoreTimeoutError: the store did not take the report.
        """
        if self._plan is None or step not in self._plan.saves or step in self._reported:
            return
        self._reported.add(step)
        self._mark_served()
        if self._store.add(saved_count(step), 1) == self._world_size:
            self._store.set(SAVED, str(step))
        try:
            self._store.get(release_key(step), self._plan.saves[step])
        except StoreTimeoutError:
            return  # the change did not happen in its time; training continues

    def _agree(self, step: int) -> Plan:
        size = self._block(step)
        plan = self._plan or Plan(step)
        while step >= plan.next:
            plan = self._propose(self._following(plan, step, size))
        while (seconds := self._wanted_seconds()) and not plan.wanted:
            plan = self._propose(msgspec.structs.replace(plan, wanted=seconds))
        self._begun = (step, self._clock())
        return plan

    def _following(self, plan: Plan, step: int, size: int) -> Plan:
        seconds = max(plan.wanted, self._wanted_seconds())
        return Plan(step + size, plan.saves | {step: seconds} if seconds else plan.saves)

    def _propose(self, plan: Plan) -> Plan:
        """Store the plan unless another rank was first; return the stored one."""
        before = self._plan
        proposed = msgspec.msgpack.encode(plan)
        _swapped, current = self._store.compare_and_swap(PLAN_KEY, self._raw, proposed)
        if current is None:  # the store has lost the plan: propose it as the first one
            self._raw = None
            return self._propose(plan)
        self._raw = current
        self._plan = agreed = msgspec.msgpack.decode(current, type=Plan)
        if len(agreed.saves) > (0 if before is None else len(before.saves)):
            self._mark_served()
        return agreed

    def _block(self, step: int) -> int:
        """Return the number of steps of a block at this rank's pace."""
        if self._begun is None:
            return 1
        steps, elapsed = step - self._begun[0], self._clock() - self._begun[1]
        if steps <= 0 or elapsed <= 0:
            return max(1, 2 * steps)
        return max(1, min(2 * steps, round(self._block_seconds * steps / elapsed)))

    def _wanted_seconds(self) -> float:
        """Return the seconds left for a change without a planned save; 0 for none."""
        change = self._pending()
        if change is None or change.number == self._served:
            return 0.0
        return max(MIN_WAIT_SECONDS, change.seconds_left)

    def _mark_served(self) -> None:
        change = self._pending()
        self._served = 0 if change is None else change.number
