"""A worker of a round, its collectives, and the functions of `rallypoint.worker` that use it.

`rallypoint run` describes this process's worker in the environment; `use` replaces it in a test.

A worker's keys begin with `worker/<incarnation>.<round>/`, so that the keys of an interrupted
round (a worker died in a collective) do not affect the next one.
"""

import os
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from rallypoint.engines.url import is_engine_url, open_engine_store
from rallypoint.errors import ParameterError
from rallypoint.store.api import Store, Value
from rallypoint.store.prefix import PrefixStore
from rallypoint.worker.change import CHANGE_FILE, ChangeReader, PendingChange, no_change
from rallypoint.worker.progress import rest
from rallypoint.worker.reduction import Op, Reductions
from rallypoint.worker.saving import Saving

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rallypoint.net.tls import TLS

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


_given: ContextVar[Worker | None] = ContextVar("rallypoint_worker", default=None)
_lock = threading.Lock()
_from_environment: Worker | None = None


def use(
    store: Store,
    rank: int,
    world_size: int,
    *,
    local_rank: int = 0,
    round_number: int = 1,
    incarnation: int = 1,
    pending: Callable[[], PendingChange | None] = no_change,
) -> Worker:
    """Make this thread (context) a worker from now on; for tests and notebooks.

    Takes the arguments of `Worker`, and returns it.
    """
    worker = Worker(
        store,
        rank,
        world_size,
        local_rank=local_rank,
        round_number=round_number,
        incarnation=incarnation,
        pending=pending,
    )
    _given.set(worker)
    return worker


def current() -> Worker:
    """Return the worker set with `use`, else that of the environment. Raises ParameterError."""
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

    Raises:
        ParameterError: a variable is missing or invalid.
    """
    rank = _number(environ, "RANK")
    world_size = _number(environ, "WORLD_SIZE")
    return Worker(
        open_store(environ),
        rank,
        world_size,
        local_rank=_number(environ, "LOCAL_RANK", 0),
        round_number=_number(environ, "RALLYPOINT_ROUND", 1),
        incarnation=_number(environ, "RALLYPOINT_INCARNATION", 1),
        pending=ChangeReader(path) if (path := environ.get(CHANGE_FILE)) else no_change,
    )


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ParameterError(
            f"{name} is not set in the environment: start this process with rallypoint run, "
            "or call rallypoint.worker.use first"
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


def open_store(environ: Mapping[str, str], tls: "TLS | None" = None) -> Store:
    """Open the run's store that an environment describes.

    Args:
        environ: with RALLYPOINT_STORE, RALLYPOINT_RUN_ID and RALLYPOINT_TOKEN.
        tls: files for TLS; None: those of this process's environment.

    Raises:
        ParameterError: a variable is missing or invalid.
    """
    address = _text(environ, "RALLYPOINT_STORE")
    if is_engine_url(address):
        return PrefixStore(_text(environ, "RALLYPOINT_RUN_ID"), open_engine_store(address))
    wrong = f"RALLYPOINT_STORE={address!r}: must be tcp://host:port or file:///path"
    scheme, _, rest = address.partition("://")
    path = urlsplit(address).path if scheme == "file" else ""
    if path:
        from rallypoint.store.file import FileStore

        return FileStore(unquote(path))
    if scheme != "tcp":
        raise ParameterError(wrong)
    return _tcp_store(rest, environ, wrong, tls)


def _tcp_store(text: str, environ: Mapping[str, str], wrong: str, tls: "TLS | None") -> Store:
    from rallypoint.net.connection import ConnectionConfig
    from rallypoint.net.endpoints import parse_endpoints
    from rallypoint.net.tls import read_tls
    from rallypoint.net.token_sources import read_token
    from rallypoint.store.tcp import TCPStore

    try:
        places = parse_endpoints(text, default_port=0)
    except ParameterError as error:
        raise ParameterError(f"{wrong} ({error})") from error
    if not all(port for _, port in places):
        raise ParameterError(wrong)
    run, token = _text(environ, "RALLYPOINT_RUN_ID"), environ.get("RALLYPOINT_TOKEN")
    return TCPStore.at(
        ConnectionConfig.at(places, run, read_token(token or None), tls or read_tls())
    )


def store() -> Store:
    """Return a store shared by the workers of this round only."""
    return current().store


def rank() -> int:
    """Return this worker's rank, 0 to world_size() - 1."""
    return current().rank


def world_size() -> int:
    """Return the number of workers in this round."""
    return current().world_size


def local_rank() -> int:
    """Return this worker's rank among the workers of its node."""
    return current().local_rank


def round() -> int:
    """Return the number of this worker's round."""
    return current().round


def barrier(timeout: Timeout = None) -> None:
    """Wait until every worker of the round has called this.

    Args:
        timeout: in seconds, or a timedelta; None is the store's timeout.

    Raises:
        StoreTimeoutError: the message names the missing ranks.
    """
    current().barrier(timeout)


def all_gather(value: Value, timeout: Timeout = None) -> list[bytes]:
    """Return the values of all ranks, in rank order.

    Args:
        value: of this rank; bytes, or a str, which is encoded as UTF-8.
        timeout: in seconds, or a timedelta; None is the store's timeout.

    Raises:
        StoreTimeoutError: the message names the missing ranks.
    """
    return current().all_gather(value, timeout)


def broadcast(value: Value | None = None, timeout: Timeout = None) -> bytes:
    """Return rank 0's value on every rank.

    Args:
        value: bytes, or a str, which is encoded as UTF-8; ignored on ranks other than 0.
        timeout: in seconds, or a timedelta; None is the store's timeout.

    Raises:
        StoreTimeoutError: rank 0 did not call in time.
    """
    return current().broadcast(value, timeout)


def all_reduce(array: "NDArray[Any]", op: Op = "sum", timeout: Timeout = None) -> "NDArray[Any]":
    """Return the arrays of all ranks, combined element by element.

    Every rank gets a new array of the same shape and dtype, with the same bits.

    Args:
        array: integers, floats or complex numbers; the same dtype and shape on every rank.
        op: "sum", "mean" (not for integers), "max" or "min" (not for complex numbers).
        timeout: of the whole call in seconds, or a timedelta; None is the store's timeout.

    Raises:
        ParameterError: on every rank, if the dtypes, shapes or ops differ or are unsupported.
        StoreTimeoutError: the message names the missing ranks.
    """
    return current().all_reduce(array, op, timeout)


def pending_change() -> PendingChange | None:
    """Return the membership change that this node's agent has announced, None if there is none.

    A call costs one `stat` of a local file. Different ranks may see a change at different
    moments; use `should_save` for decisions that all ranks must take alike.
    """
    return current().pending_change() if is_member() else None


def should_save(step: int, every: int = 0) -> bool:
    """Return whether to save the state at this step; the same on every rank.

    True if a membership change is pending and the ranks have agreed to save at this step, and
    at each multiple of `every`. Every rank calls it at the same point of each step. Outside
    `rallypoint run` only `every` counts.

    Args:
        step: number of the step; it must not decrease.
        every: number of steps between regular saves; 0 for none.

    Raises:
        StoreTimeoutError: the run's store did not answer.
    """
    agreed = current().saving.should_save(step) if is_member() else False
    return agreed or (every > 0 and step > 0 and step % every == 0)


def saved(step: int) -> None:
    """Report that this rank has saved its part of the state of `step`; every rank calls it.

    If the ranks saved for a membership change, this waits for it: once all ranks have called,
    the round ends, and the agent ends this process during the call. It returns if the change
    is cancelled or its time is over, and at once if the save was a regular one.
    """
    if is_member():
        with rest():  # a long wait is no hang
            current().saving.saved(step)


def is_member() -> bool:
    """Return whether this process, or this thread after `use`, is a worker of a run."""
    return _given.get() is not None or "RALLYPOINT_STORE" in os.environ
