"""At which step to save: agreed by all ranks exactly, at one request for each half second.

The agents announce a change to their workers at slightly different moments, and no two ranks
are at the same step then. So the ranks agree on records, all under one key that only
compare-and-swap changes:

    Record(next, saves, wanted)

A record answers for all steps below `next`: those in `saves` are saved at, no others. A rank
that comes to a step at or above `next` proposes the record that follows: a block of steps,
`next` being its end, with its own step added to `saves` if it knows of a change. The first
proposal wins and the others follow it. As no rank has been told anything about a step at or
above `next` before that, the answer for a step is the same on all ranks, whatever the order
in which they come. A rank that loses while it alone knows of a change sets `wanted`, so that
the next record has the save.

Blocks are about `BLOCK_SECONDS` long by the proposer's own pace, and grow at most twofold; with
more than a thousand ranks they are longer, so that a server has no more than
`REQUESTS_PER_SECOND` of them. A rank that cannot reach the store waits for it: alone it could
not know what the others do.

Saved by all: each rank counts itself in under `saved_count`; the last one writes the step
under `SAVED`, which the agents watch. Then the agents change the round, or, when the change
was called off, let the workers go on (`release_key`).
"""

import time
from collections.abc import Callable

import msgspec

from rallypoint.errors import StoreTimeoutError
from rallypoint.store.api import Store
from rallypoint.worker.change import PendingChange

BLOCK_SECONDS = 0.5
REQUESTS_PER_SECOND = 2000
MIN_WAIT_SECONDS = 1.0  # for the change, once all have saved, however little time it had
PLAN = "save/plan"
SAVED = "save/saved"


def saved_count(step: int) -> str:
    """Return the key that counts the ranks which have saved at `step`."""
    return f"save/{step}/count"


def release_key(step: int) -> str:
    """Return the key that agents set when the change that `step` was saved for is off."""
    return f"save/{step}/go-on"


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What is agreed.

    Args:
        next: the first step that nothing is agreed about.
        saves: steps to save at, with the seconds that a rank then waits for the change.
        wanted: such seconds, where a rank wants a save that is not agreed yet; else 0.
    """

    next: int
    saves: dict[int, float] = {}
    wanted: float = 0.0


class Saving:
    """One rank's side of the agreement.

    Args:
        store: of the round.
        world_size: number of ranks.
        pending: returns the change that this rank knows of, None if none.
        clock: monotonic seconds.
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
        self._raw: bytes | None = None  # the record as it is stored
        self._record: Record | None = None
        self._begun: tuple[int, float] | None = None  # step and time of the last agreement
        self._served = 0  # number of the change that a save has been agreed for
        self._told: set[int] = set()

    def should_save(self, step: int) -> bool:
        """Return whether all ranks save at `step`."""
        record = self._record
        if record is None or step >= record.next:
            record = self._agree(step)
        return step in record.saves

    def saved(self, step: int) -> None:
        """Count this rank in, and wait for the change (see `rallypoint.worker.saved`)."""
        if self._record is None or step not in self._record.saves or step in self._told:
            return
        self._told.add(step)
        self._serve()
        if self._store.add(saved_count(step), 1) == self._world_size:
            self._store.set(SAVED, str(step))
        try:
            self._store.get(release_key(step), self._record.saves[step])
        except StoreTimeoutError:
            return  # the change has not come in its time; the work goes on

    def _agree(self, step: int) -> Record:
        size = self._block(step)
        record = self._record or Record(step)
        while step >= record.next:
            record = self._propose(self._following(record, step, size))
        while (seconds := self._wish()) and not record.wanted:
            record = self._propose(msgspec.structs.replace(record, wanted=seconds))
        self._begun = (step, self._clock())
        return record

    def _following(self, record: Record, step: int, size: int) -> Record:
        seconds = max(record.wanted, self._wish())
        return Record(step + size, record.saves | {step: seconds} if seconds else record.saves)

    def _propose(self, record: Record) -> Record:
        """Store the record if nobody was faster; return the one that stands."""
        before = self._record
        proposed = msgspec.msgpack.encode(record)
        _swapped, current = self._store.compare_and_swap(PLAN, self._raw, proposed)
        if current is None:  # the store has lost it: the same once more, as the first
            self._raw = None
            return self._propose(record)
        self._raw = current
        self._record = stands = msgspec.msgpack.decode(current, type=Record)
        if len(stands.saves) > (0 if before is None else len(before.saves)):
            self._serve()
        return stands

    def _block(self, step: int) -> int:
        """Return how many steps of this rank's pace make a block."""
        if self._begun is None:
            return 1
        steps, elapsed = step - self._begun[0], self._clock() - self._begun[1]
        if steps <= 0 or elapsed <= 0:
            return max(1, 2 * steps)
        return max(1, min(2 * steps, round(self._block_seconds * steps / elapsed)))

    def _wish(self) -> float:
        """Return the seconds of a change that no save has been agreed for; 0 for none."""
        change = self._pending()
        if change is None or change.number == self._served:
            return 0.0
        return max(MIN_WAIT_SECONDS, change.seconds_left)

    def _serve(self) -> None:
        change = self._pending()
        self._served = 0 if change is None else change.number
