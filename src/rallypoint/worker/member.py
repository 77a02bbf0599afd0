"""One worker of a round, and its collectives.

All keys begin with `worker/<incarnation>.<round>/`, so that the keys of an interrupted round (a
worker died in a collective) do not affect the next one.
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
"""Seconds or a timedelta; None is the store's own timeout."""


def round_prefix(incarnation: int, round_number: int) -> str:
    """Return the prefix of the keys of a round's workers in the run's store."""
    return f"worker/{incarnation}.{round_number}"


class Worker:
    """One worker of a round. The functions of `rallypoint.worker` describe its collectives.

    Args:
        store: of the run; the round's keys have the round's prefix.
        rank: 0 to world_size - 1.
        world_size: number of workers in the round.
        local_rank: rank among the workers of this node.
        round_number: number of the round.
        incarnation: of the run.
        pending: returns the membership change that this node's agent has announced, or None.

    Raises:
        ParameterError: the rank is out of range.
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
        """Wait until every worker of the round has called this."""
        self.store.barrier("barrier", self.world_size, timeout, self.rank)

    def all_gather(self, value: Value, timeout: Timeout = None) -> list[bytes]:
        """Return the values of all ranks, in rank order."""
        return self.store.all_gather("gather", value, self.rank, self.world_size, timeout)

    def broadcast(self, value: Value | None = None, timeout: Timeout = None) -> bytes:
        """Return rank 0's `value`; the other ranks' values are ignored."""
        return self.store.broadcast("broadcast", value, self.rank, self.world_size, timeout)

    def all_reduce(
        self, array: "NDArray[Any]", op: Op = "sum", timeout: Timeout = None
    ) -> "NDArray[Any]":
        """Return the arrays of all ranks, combined element by element."""
        return self._reductions.all_reduce(array, op, timeout)
