"""The API of a worker process: its rank, collectives over the run's store, and elastic training.

`barrier`, `all_gather`, `broadcast` and `all_reduce` use the store that `rallypoint run` names
in the environment, and suffice to train small models without torch. All workers of a round call
the same collectives in the same order.

When nodes join or leave, a new round begins and its workers are new processes. `should_save`
tells all ranks to save at the same step before that, `State` saves and restores, and `elastic`
is the training loop that uses both.
"""

from rallypoint.worker.change import ChangeKind, PendingChange
from rallypoint.worker.process import (
    Timeout,
    Worker,
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
from rallypoint.worker.state import State, elastic

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
