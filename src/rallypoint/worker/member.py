"""One member of a round: who it is, and the collectives that it can take part in.

All keys are below `worker/<incarnation>.<round>/`. A round that was left half-way (a worker
died in a collective) leaves keys behind, and the next round never meets them.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rallypoint.errors import ParameterError
from rallypoint.store.api import Store, Value
from rallypoint.store.prefix import PrefixStore
from rallypoint.worker.change import PendingChange, no_change
from rallypoint.worker.reduction import Op, Reductions
from rallypoint.worker.saving import Saving

if TYPE_CHECKING:
    from numpy.typing import NDArray

Timeout = float | timedelta | None


def round_prefix(incarnation: int, round_number: int) -> str:
    """Return what the keys of a round's workers begin with, in the run's store."""
    return f"worker/{incarnation}.{round_number}"


class Worker:
    """One member of a round, and the collectives it can take part in.

    Args:
        store: shared by all members of the run; keys are kept below the round's prefix.
        rank: 0 to world_size - 1.
        world_size: number of workers in the round.
        local_rank: rank among the workers of this node.
        round_number: number of the round.
        incarnation: of the run.
        pending: returns the change that this node's agent has announced, None if none.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        *,
        local_rank: int = 0,
        round_number: int = 1,
        incarnation: int = 1,
        pending: Callable[[], PendingChange | None] = no_change,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ParameterError(
                f"rank={rank}: must be from 0 to world_size - 1 = {world_size - 1}"
            )
        self.run_store = store
        self.store: Store = PrefixStore(round_prefix(incarnation, round_number), store)
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.round = round_number
        self.incarnation = incarnation
        self.pending_change = pending
        self.saving = Saving(self.store, world_size, pending)
        self._reductions = Reductions(self.store, rank, world_size, round_number)

    def barrier(self, timeout: Timeout = None) -> None:
        """Wait for all members; a timeout (StoreTimeoutError) names the missing ranks."""
        self.store.barrier("barrier", self.world_size, timeout, self.rank)

    def all_gather(self, value: Value, timeout: Timeout = None) -> list[bytes]:
        """Give `value`; return the values of all members, in rank order."""
        return self.store.all_gather("gather", value, self.rank, self.world_size, timeout)

    def broadcast(self, value: Value | None = None, timeout: Timeout = None) -> bytes:
        """Return rank 0's `value` on every member; what the others give is ignored."""
        return self.store.broadcast("broadcast", value, self.rank, self.world_size, timeout)

    def all_reduce(
        self, array: "NDArray[Any]", op: Op = "sum", timeout: Timeout = None
    ) -> "NDArray[Any]":
        """Return the members' arrays combined element by element, the same bits on all.

        Args:
            array: numbers (integer, float or complex); the same dtype and shape everywhere.
            op: "sum", "mean" (not of integers), "max" or "min" (not of complex numbers).
            timeout: for the whole call, in seconds or a timedelta; None is the store's own.

        Raises ParameterError on every member when one of them gave another dtype, shape or
        op, and StoreTimeoutError with the ranks that have not come.
        """
        return self._reductions.all_reduce(array, op, timeout)
