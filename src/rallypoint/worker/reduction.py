"""all_reduce through a store.

Each rank stores its array, and rank 0 reads them, adds them in rank order and stores the sum,
so that all ranks get the same bits. For N ranks and S bytes the store receives N*S and sends
2*N*S; an all-gather would send N*N*S. A reduce-scatter would transfer the same bytes through
the one server with more requests, and only spread the additions, which take little time.

The space in the store is bounded: arrays are split into chunks of `CHUNK_BYTES`. Rank 0 deletes
the parts in the request that stores their sum. It deletes a sum once all parts of the next have
arrived, since a rank stores its next part only after it has read the sum.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError, StoreTimeoutError
from rallypoint.store.api import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_BYTES = 8 * 1024 * 1024  # far below a frame's limit, and large enough to need few requests
READ_BYTES = 32 * 1024 * 1024  # rank 0 reads up to this many bytes of parts at once

Op = Literal["sum", "mean", "max", "min"]
_OK, _REFUSED = b"+", b"-"


class Reductions:
    """The numbered reductions of one worker.

    Args:
        store: of the round.
        rank: 0 to world_size - 1.
        world_size: number of workers.
        round_number: of the round, for errors.
    """

    def __init__(self, store: Store, rank: int, world_size: int, round_number: int) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.round = round_number
        self._reductions = 0

    def all_reduce(
        self, array: "NDArray[Any]", op: Op, timeout: float | timedelta | None
    ) -> "NDArray[Any]":
        """Return the arrays of all ranks, combined (see `rallypoint.worker.all_reduce`)."""
        np = numpy_or_error()
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
        self._reductions = step + 1  # last, so that a call that timed out can be repeated
        if answer[:1] == _REFUSED:
            raise ParameterError(answer[1:].decode())
        combined: NDArray[Any] = numpy_or_error().frombuffer(answer, dtype=part.dtype, offset=1)
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
        """Return the error that names the ranks missing in reduction `step`."""
        prefix = _part_key(step, "")
        came = {int(key.removeprefix(prefix)) for key in self.store.list(prefix)}
        absent = [rank for rank in range(1, self.world_size) if rank not in came]
        if self.rank != 0 and not absent:
            absent = [0]
        names = ", ".join(map(str, absent)) or "none (the last one has just arrived)"
        return StoreTimeoutError(
            f"all_reduce number {step} in round {self.round}: rank {self.rank} of "
            f"{self.world_size} waited {deadline.elapsed():.1f} s; missing ranks: {names}"
        )


def _part_key(step: int, rank: int | str) -> str:
    return f"reduce/{step}/part/{rank}"


def _sum_key(step: int) -> str:
    return f"reduce/{step}/sum"


def _mismatch(rank: int, theirs: bytes, kind: bytes) -> str:
    return f"all_reduce: rank {rank} passed {theirs.decode()}, but rank 0 passed {kind.decode()}"


def _combine(total: "NDArray[Any]", body: bytes, op: Op) -> None:
    np = numpy_or_error()
    ufunc = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}[op]
    ufunc(total, np.frombuffer(body, dtype=total.dtype), out=total)


def _check_reducible(array: "NDArray[Any]", op: str) -> None:
    if op not in get_args(Op):
        raise ParameterError(f"op={op!r}: must be one of {', '.join(get_args(Op))}")
    allowed = {"sum": "iufc", "mean": "fc"}.get(op, "iuf")
    if array.dtype.kind not in allowed:
        raise ParameterError(f"all_reduce: {op} of dtype {array.dtype} is not defined")


def numpy_or_error(what: str = "all_reduce") -> Any:
    """Return numpy. Raises ParameterError with the command that installs it."""
    try:
        import numpy
    except ImportError as error:
        raise ParameterError(
            f"{what} needs numpy: pip install 'rallypoint[examples]' (or numpy itself)"
        ) from error
    return numpy
