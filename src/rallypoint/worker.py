"""What a worker process uses: who it is, and collectives over the run's store.

Enough to train small models without torch: `barrier`, `all_gather`, `broadcast` and
`all_reduce` go through the store that `rallypoint run` names in the environment. Every
member of a round calls the same collectives in the same order.

All keys are below `worker/<incarnation>.<round>/`. A round that was left half-way (a worker
died in a collective) leaves keys behind, and the next round never meets them.

`all_reduce` adds on rank 0: each rank puts its array under a key, rank 0 reads them, adds
them in rank order and publishes the sum. For N ranks and S bytes the store carries N*S in
and 2*N*S out, where an all-gather would carry N*N*S out. A reduce-scatter through a store
would carry the same bytes, as all of them pass one server anyway, and need more requests;
it would only spread the additions, which are not what takes time here. One rank adding in
rank order has a merit besides: all ranks get the very same bits, whatever came first.

What is in the store at a time is bounded too: arrays go in chunks of `CHUNK_BYTES`, rank 0
deletes the parts with the same request that publishes the sum, and deletes a sum when all
parts of the next have come, since a rank gives its next part only after it read the sum.
"""

import os
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import unquote, urlsplit

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError, StoreTimeoutError
from rallypoint.store.api import Store, Value
from rallypoint.store.engines import is_engine_url, open_engine_store
from rallypoint.store.prefix import PrefixStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_BYTES = 8 * 1024 * 1024  # far below a frame, large enough to make requests count little
READ_BYTES = 32 * 1024 * 1024  # rank 0 reads parts together up to this many bytes

Op = Literal["sum", "mean", "max", "min"]
Timeout = float | timedelta | None
_OK, _REFUSED = b"+", b"-"


class Worker:
    """One member of a round, and the collectives it can take part in.

    Args:
        store: shared by all members of the run; keys are kept below the round's prefix.
        rank: 0 to world_size - 1.
        world_size: number of workers in the round.
        local_rank: rank among the workers of this node.
        round_number: number of the round.
        incarnation: of the run.
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
    ) -> None:
        if not 0 <= rank < world_size:
            raise ParameterError(
                f"rank={rank}: must be from 0 to world_size - 1 = {world_size - 1}"
            )
        self.store: Store = PrefixStore(f"worker/{incarnation}.{round_number}", store)
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.round = round_number
        self._reductions = 0

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
        np = _numpy()
        given = np.ascontiguousarray(array).reshape(np.shape(array))
        _check_reducible(given, op)
        if self.world_size == 1:
            alone: NDArray[Any] = given.copy()
            return alone
        deadline = Deadline(self.store.timeout if timeout is None else timeout)
        kind = f"{op} of {given.dtype.str} {given.shape}".encode()
        flat = given.reshape(-1)
        result = np.empty_like(flat)
        step = max(1, CHUNK_BYTES // given.itemsize)
        for start in range(0, max(1, flat.size), step):
            part = flat[start : start + step]
            result[start : start + step] = self._reduce_chunk(part, op, kind, deadline)
        combined: NDArray[Any] = result.reshape(given.shape)
        return combined

    def _reduce_chunk(
        self, part: "NDArray[Any]", op: Op, kind: bytes, deadline: Deadline
    ) -> "NDArray[Any]":
        step = self._reductions
        if self.rank == 0:
            answer = self._lead_chunk(part, op, kind, deadline)
        else:
            self.store.set(_part_key(step, self.rank), kind + b"\n" + part.tobytes())
            try:
                answer = self.store.get(_sum_key(step), deadline.remaining())
            except StoreTimeoutError as error:
                raise self._missing(step, deadline) from error
        self._reductions = step + 1  # only now: a call that timed out can be made again
        if answer[:1] == _REFUSED:
            raise ParameterError(answer[1:].decode())
        combined: NDArray[Any] = _numpy().frombuffer(answer, dtype=part.dtype, offset=1)
        return combined

    def _lead_chunk(self, part: "NDArray[Any]", op: Op, kind: bytes, deadline: Deadline) -> bytes:
        step = self._reductions
        total, refusal = part.copy(), ""
        group = max(1, READ_BYTES // max(1, part.nbytes))
        for first in range(1, self.world_size, group):
            ranks = range(first, min(first + group, self.world_size))
            keys = [_part_key(step, rank) for rank in ranks]
            try:
                values = self.store.multi_get(keys, deadline.remaining())
            except StoreTimeoutError as error:
                raise self._missing(step, deadline) from error
            for rank, value in zip(ranks, values, strict=True):
                theirs, _, body = value.partition(b"\n")
                if theirs == kind:
                    _combine(total, body, op)
                else:
                    refusal = refusal or _mismatch(rank, theirs, kind)
        if op == "mean":
            total /= self.world_size
        answer = _REFUSED + refusal.encode() if refusal else _OK + total.tobytes()
        with self.store.pipeline() as pipe:
            pipe.set(_sum_key(step), answer).delete_key(_sum_key(step - 1))
            for rank in range(1, self.world_size):
                pipe.delete_key(_part_key(step, rank))
        return answer

    def _missing(self, step: int, deadline: Deadline) -> StoreTimeoutError:
        """Return the error that says which ranks have not come to reduction `step`."""
        prefix = _part_key(step, "")
        came = {int(key.removeprefix(prefix)) for key in self.store.list(prefix)}
        absent = [rank for rank in range(1, self.world_size) if rank not in came]
        if self.rank != 0 and not absent:
            absent = [0]
        names = ", ".join(map(str, absent)) or "none (the last one came just now)"
        return StoreTimeoutError(
            f"all_reduce number {step} in round {self.round}: rank {self.rank} of "
            f"{self.world_size} waited {deadline.elapsed():.1f} s; missing ranks: {names}"
        )


def _part_key(step: int, rank: int | str) -> str:
    return f"reduce/{step}/part/{rank}"


def _sum_key(step: int) -> str:
    return f"reduce/{step}/sum"


def _mismatch(rank: int, theirs: bytes, kind: bytes) -> str:
    return f"all_reduce: rank {rank} gave {theirs.decode()}, but rank 0 gave {kind.decode()}"


def _combine(total: "NDArray[Any]", body: bytes, op: Op) -> None:
    np = _numpy()
    ufunc = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}[op]
    ufunc(total, np.frombuffer(body, dtype=total.dtype), out=total)


def _check_reducible(array: "NDArray[Any]", op: str) -> None:
    if op not in get_args(Op):
        raise ParameterError(f"op={op!r}: must be one of {', '.join(get_args(Op))}")
    allowed = {"sum": "iufc", "mean": "fc"}.get(op, "iuf")
    if array.dtype.kind not in allowed:
        raise ParameterError(f"all_reduce: {op} of dtype {array.dtype} is not defined")


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ParameterError(
            "all_reduce needs numpy: pip install 'rallypoint[examples]' (or numpy itself)"
        ) from error
    return numpy


# -- this process's worker ----------------------------------------------------------------

_given: ContextVar[Worker | None] = ContextVar("rallypoint_worker", default=None)
_lock = threading.Lock()
_from_environment: Worker | None = None


def use(store: Store, rank: int, world_size: int, **where: int) -> Worker:
    """Be this worker from now on, in this thread (context) only; for tests and notebooks.

    `where` takes `local_rank`, `round_number` and `incarnation` (see `Worker`).
    """
    worker = Worker(store, rank, world_size, **where)
    _given.set(worker)
    return worker


def current() -> Worker:
    """Return the worker given with `use`, else the one that the environment describes."""
    global _from_environment
    given = _given.get()
    if given is not None:
        return given
    with _lock:
        if _from_environment is None:
            _from_environment = from_environment(os.environ)
        return _from_environment


def from_environment(environ: Mapping[str, str]) -> Worker:
    """Return the worker that `rallypoint run` describes in the environment.

    Raises ParameterError naming the variable that is missing or wrong.
    """
    rank = _number(environ, "RANK")
    world_size = _number(environ, "WORLD_SIZE")
    return Worker(
        _open_store(environ),
        rank,
        world_size,
        local_rank=_number(environ, "LOCAL_RANK", 0),
        round_number=_number(environ, "RALLYPOINT_ROUND", 1),
        incarnation=_number(environ, "RALLYPOINT_INCARNATION", 1),
    )


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ParameterError(
            f"{name} is not set in the environment: start me with rallypoint run "
            f"(or call rallypoint.worker.use first)"
        )
    return value


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and not environ.get(name):
        return default
    text = _text(environ, name)
    try:
        return int(text)
    except ValueError:
        raise ParameterError(f"{name}={text!r} in the environment: must be an integer") from None


def _open_store(environ: Mapping[str, str]) -> Store:
    address = _text(environ, "RALLYPOINT_STORE")
    if is_engine_url(address):
        return PrefixStore(_text(environ, "RALLYPOINT_RUN_ID"), open_engine_store(address))
    wrong = f"RALLYPOINT_STORE={address!r}: must be tcp://host:port or file:///path"
    try:
        url = urlsplit(address)
        host, port = url.hostname, url.port
    except ValueError as error:
        raise ParameterError(f"{wrong} ({error})") from error
    if url.scheme == "file" and url.path:
        from rallypoint.store.file import FileStore

        return FileStore(unquote(url.path))
    if url.scheme == "tcp" and host and port:
        from rallypoint.store.tcp import TCPStore

        run = _text(environ, "RALLYPOINT_RUN_ID")
        return TCPStore(host, port, run=run, token=environ.get("RALLYPOINT_TOKEN") or None)
    raise ParameterError(wrong)


def store() -> Store:
    """Return a store shared by the members of this round, and only of this round."""
    return current().store


def rank() -> int:
    """Return this worker's rank, 0 to world_size() - 1."""
    return current().rank


def world_size() -> int:
    """Return the number of workers in this round."""
    return current().world_size


def local_rank() -> int:
    """Return this worker's rank among those of its node."""
    return current().local_rank


def round() -> int:
    """Return the number of the round that this worker takes part in."""
    return current().round


def barrier(timeout: Timeout = None) -> None:
    """See `Worker.barrier`."""
    current().barrier(timeout)


def all_gather(value: Value, timeout: Timeout = None) -> list[bytes]:
    """See `Worker.all_gather`."""
    return current().all_gather(value, timeout)


def broadcast(value: Value | None = None, timeout: Timeout = None) -> bytes:
    """See `Worker.broadcast`."""
    return current().broadcast(value, timeout)


def all_reduce(array: "NDArray[Any]", op: Op = "sum", timeout: Timeout = None) -> "NDArray[Any]":
    """See `Worker.all_reduce`."""
    return current().all_reduce(array, op, timeout)
