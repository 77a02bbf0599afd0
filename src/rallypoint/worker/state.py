"""The state of a training run, saved and restored across rounds, and the loop that does both.

The workers of each round are new processes. One rank saves. To restore, every rank looks for
its newest checkpoint, and the ranks exchange what they found. A rank without the newest one (a
new node without the folder, or a damaged file) gets it through the store, so that all ranks
resume at the same step.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from rallypoint.errors import ParameterError
from rallypoint.store.memory import MemoryStore
from rallypoint.worker.checkpoint_storage import (
    Checkpoint,
    CheckpointStorage,
    FolderStorage,
    StoreStorage,
    check_size,
    checksum,
    pack,
    part_keys,
    put_parts,
    unpack,
)
from rallypoint.worker.process import Worker, barrier, current, is_member, saved, should_save
from rallypoint.worker.progress import step as report_step

LIMIT_BYTES = 64 * 1024 * 1024

Values = dict[str, Any]


class State:
    """The number of completed steps, and the values needed to resume after them.

    Pass either a dict that the training changes in place, or two functions:

        state = State({"weights": weights}, folder="checkpoints")
        state = State(dump=model.dump, load=model.load, folder="checkpoints")

    Args:
        values: names and values (numbers, str, bytes, None, numpy arrays, lists and dicts of
            these); `restore` updates it.
        dump: returns such a dict; called on the rank that saves.
        load: takes such a dict; called on every rank if there is a checkpoint.
        folder: for the checkpoints, one file per step. None: the run's store, which lasts as
            long as the run's server.
        shared: whether all nodes share the folder. If not, one rank of each node saves.
        keep: number of checkpoints to keep.
        limit_bytes: largest checkpoint that may go through the store.
        name: distinguishes several states of one run in the store.

    Raises:
        ParameterError: the arguments contradict each other.
    """

    def __init__(
        self,
        values: Values | None = None,
        *,
        dump: Callable[[], Values] | None = None,
        load: Callable[[Values], object] | None = None,
        folder: Path | str | None = None,
        shared: bool = True,
        keep: int = 2,
        limit_bytes: int = LIMIT_BYTES,
        name: str = "state",
    ) -> None:
        if (values is None) == (dump is None) or (dump is None) != (load is None):
            raise ParameterError("State: give either values, or both dump and load")
        if keep < 1:
            raise ParameterError(f"State: keep={keep}: must be at least 1")
        self.step = 0
        self.values = {} if values is None else values
        self._dump = dump or (lambda: self.values)
        self._load = load or self.values.update
        self._folder = None if folder is None else Path(folder)
        self._shared = shared
        self._keep = keep
        self._limit_bytes = limit_bytes
        self._name = name

    def save(self) -> None:
        """Save the state of `step`, if this rank is one that saves; it is durable on return.

        Raises:
            ParameterError: a value has an unsupported type, or the state is too large.
            OSError: the folder is not writable.
        """
        member = _member()
        if self._saves(member):
            self._storage(member).put(self.step, pack(self.step, self._dump()))

    def restore(self) -> bool:
        """Load the newest checkpoint that any rank can read; every rank calls this.

        Returns:
            Whether there is a checkpoint.

        Raises:
            ParameterError: on all ranks, if some lack a checkpoint too large to send.
            StoreTimeoutError: not all ranks have called in time.
        """
        member = _member()
        storage = self._storage(member)
        found = storage.newest()
        if self._saves(member):
            storage.clear()
        own = _Summary()
        if found is not None:
            own = _Summary(found.step, len(found.content), checksum(found.content))
        gathered = member.all_gather(msgspec.msgpack.encode(own))
        summaries = [msgspec.msgpack.decode(one, type=_Summary) for one in gathered]
        newest = max(summaries)
        if newest.step < 0:
            return False
        if any(one != newest for one in summaries):
            check_size(newest.size, self._limit_bytes)
            found = _exchange(member, found, summaries, newest)
        if found is None:
            raise ParameterError(f"the state of step {newest.step} arrived damaged")
        self.step = found.step
        self._load(found.values)
        return True

    def _saves(self, member: Worker) -> bool:
        return member.rank == 0 or (not self._shared and member.local_rank == 0)

    def _storage(self, member: Worker) -> CheckpointStorage:
        if self._folder is not None:
            return FolderStorage(self._folder, self._keep)
        writer = f"{member.incarnation}.{member.round}"
        return StoreStorage(member.run_store, self._name, writer, self._keep, self._limit_bytes)


class _Summary(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A rank's newest checkpoint: step (-1 for none), size in bytes and checksum."""

    step: int = -1
    size: int = 0
    sum: bytes = b""


def _exchange(
    member: Worker, found: Checkpoint | None, summaries: list[_Summary], newest: _Summary
) -> Checkpoint | None:
    """Send the newest checkpoint to the ranks that lack it; return this rank's."""
    prefix, source = "state/exchange", summaries.index(newest)
    if member.rank == source and found is not None:
        put_parts(member.store, prefix, found.content)
    elif summaries[member.rank] != newest:
        found = unpack(b"".join(member.store.multi_get(part_keys(prefix, newest.size))))
    member.barrier()
    if member.rank == source:
        for key in part_keys(prefix, newest.size):
            member.store.delete_key(key)
    return found


def _member() -> Worker:
    return current() if is_member() else Worker(MemoryStore(), 0, 1)


def elastic(state: State, steps: int, every: int = 0) -> Iterator[int]:
    """Restore the state, and yield each remaining step, up to `steps` - 1.

        state = worker.State({"weights": weights}, folder="checkpoints")
        for step in worker.elastic(state, 10_000, every=500):
            train(step, state.values["weights"])

    Saves the state before nodes join or leave, at each multiple of `every`, and at the end. A
    step counts as done when the next one is requested. Each step is also reported to the agent
    (`rallypoint.worker.step`).

    Args:
        state: its `step` counts the completed steps.
        steps: number of steps of the whole training.
        every: number of steps between regular saves, for nodes that are lost without notice;
            0 for none.

    Raises:
        ParameterError, OSError, StoreTimeoutError: as `State.save` and `State.restore`.
    """
    state.restore()
    while state.step < steps:
        report_step(state.step)
        yield state.step
        state.step += 1
        if state.step == steps:
            state.save()
        elif should_save(state.step, every):
            state.save()
            saved(state.step)
    if is_member():
        barrier()  # no rank ends before the last state is saved
