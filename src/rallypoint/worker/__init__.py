"""What a worker process uses: who it is, and collectives over the run's store.

Enough to train small models without torch: `barrier`, `all_gather`, `broadcast` and
`all_reduce` go through the store that `rallypoint run` names in the environment. Every
member of a round calls the same collectives in the same order.

A round changes when nodes come and go. `should_save` tells all ranks at the same step that
this is about to happen, `State` keeps what must outlive it, and `elastic` is the loop that
does both.
"""

from rallypoint.worker.change import ChangeKind, PendingChange
from rallypoint.worker.elastic import elastic
from rallypoint.worker.member import Timeout, Worker
from rallypoint.worker.process import (
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    current,
    from_environment,
    local_rank,
    pending_change,
    rank,
    round,
    saved,
    should_save,
    store,
    use,
    world_size,
)
from rallypoint.worker.progress import beat, rest, step
from rallypoint.worker.reduction import Op
from rallypoint.worker.state import State

__all__ = [
    "ChangeKind",
    "Op",
    "PendingChange",
    "State",
    "Timeout",
    "Worker",
    "all_gather",
    "all_reduce",
    "barrier",
    "beat",
    "broadcast",
    "current",
    "elastic",
    "from_environment",
    "local_rank",
    "pending_change",
    "rank",
    "rest",
    "round",
    "saved",
    "should_save",
    "step",
    "store",
    "use",
    "world_size",
]
