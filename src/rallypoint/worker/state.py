"""What must outlive a round: workers are new processes in each, and find their state again.

One rank saves, all restore: each looks for the newest state that it can reach, they tell each
other what they found, and those that have less (a newcomer without the folder, a file that
is torn) get the newest through the store. So all ranks go on from the same step.
"""

from collections.abc import Callable
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
    part_keys,
    put_parts,
)
from rallypoint.worker.member import Worker
from rallypoint.worker.process import current, is_member
from rallypoint.worker.snapshot import checksum, pack, unpack

LIMIT_BYTES = 64 * 1024 * 1024

Values = dict[str, Any]


class State:
    """The step that the work has come to, and all that it needs to go on from there.

    Give either a dict that the work changes in storage, or two functions:

        state = State({"weights": weights}, folder="checkpoints")
        state = State(dump=model.dump, load=model.load, folder="checkpoints")

    Args:
        values: names and their values (numbers, texts, bytes, None, numpy arrays, lists and
            dicts of these); `restore` puts what it found into it.
        dump: returns such a dict; called on the rank that saves.
        load: takes over such a dict; called on every rank if there is a state.
        folder: where states are kept, one file a step. None: in the run's store, which lasts
            as long as the run's server.
        shared: whether all nodes see the same folder. If not, one rank of each node saves.
        keep: how many states are kept.
        limit_bytes: size of a state that may go through the store.
        name: tells several states of one run in the store apart.
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
        """Keep the state of `step`, if this rank is one that does.

        When it returns the state is safe. Raises ParameterError for values that cannot be
        kept, and OSError when the folder cannot be written.
        """
        member = _member()
        if self._saves(member):
            self._storage(member).put(self.step, pack(self.step, self._dump()))

    def restore(self) -> bool:
        """Take over the newest state that any rank can reach; return whether there is one.

        A collective: every rank calls it. Raises ParameterError on all ranks when some lack
        a state that is too large to be sent to them.
        """
        member = _member()
        storage = self._storage(member)
        found = storage.newest()
        if self._saves(member):
            storage.clear()
        mine = _Told() if found is None else _Told(found.step, len(found.content), _sum(found))
        given = member.all_gather(msgspec.msgpack.encode(mine))
        told = [msgspec.msgpack.decode(one, type=_Told) for one in given]
        newest = max(told)
        if newest.step < 0:
            return False
        if any(one != newest for one in told):
            check_size(newest.size, self._limit_bytes)
            found = _exchange(member, found, told, newest)
        if found is None:  # what the sum was made of is what was found
            raise ParameterError(f"the state of step {newest.step} did not come whole")
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


class _Told(msgspec.Struct, frozen=True, order=True, array_like=True):
    """What a rank has found: step, size in bytes and checksum; -1 for nothing."""

    step: int = -1
    size: int = 0
    sum: bytes = b""


def _sum(found: Checkpoint) -> bytes:
    return checksum(found.content)


def _exchange(
    member: Worker, found: Checkpoint | None, told: list[_Told], newest: _Told
) -> Checkpoint | None:
    """Give the newest state to those who lack it; return this rank's."""
    prefix, source = "state/exchange", told.index(newest)
    if member.rank == source and found is not None:
        put_parts(member.store, prefix, found.content)
    elif told[member.rank] != newest:
        found = _found(b"".join(member.store.multi_get(part_keys(prefix, newest.size))))
    member.barrier()
    if member.rank == source:
        for key in part_keys(prefix, newest.size):
            member.store.delete_key(key)
    return found


def _found(content: bytes) -> Checkpoint | None:
    read = unpack(content)
    return None if read is None else Checkpoint(*read, content)


def _member() -> Worker:
    return current() if is_member() else Worker(MemoryStore(), 0, 1)
