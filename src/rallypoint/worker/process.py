"""This process's worker: the one that `rallypoint run` describes in the environment.

The functions are those of `Worker`, for that one.
"""

import os
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from rallypoint.engines.url import is_engine_url, open_engine_store
from rallypoint.errors import ParameterError
from rallypoint.store.api import Store, Value
from rallypoint.store.prefix import PrefixStore
from rallypoint.worker.change import CHANGE_FILE, ChangeReader, PendingChange, no_change
from rallypoint.worker.member import Timeout, Worker
from rallypoint.worker.progress import rest
from rallypoint.worker.reduction import Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rallypoint.net.tls import TLS

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
    """Be this worker from now on, in this thread (context) only; for tests and notebooks.

    The arguments are those of `Worker`.
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


def open_store(environ: Mapping[str, str], tls: "TLS | None" = None) -> Store:
    """Open the run's store that an environment describes. Raises ParameterError.

    Args:
        environ: with RALLYPOINT_STORE, RALLYPOINT_RUN_ID and RALLYPOINT_TOKEN.
        tls: files for TLS; None: those of this process's environment.
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
    """Wait until every worker of the round is here: `Worker.barrier` of this process."""
    current().barrier(timeout)


def all_gather(value: Value, timeout: Timeout = None) -> list[bytes]:
    """Return every rank's value, by rank: `Worker.all_gather` of this process."""
    return current().all_gather(value, timeout)


def broadcast(value: Value | None = None, timeout: Timeout = None) -> bytes:
    """Return the value of rank 0: `Worker.broadcast` of this process."""
    return current().broadcast(value, timeout)


def all_reduce(array: "NDArray[Any]", op: Op = "sum", timeout: Timeout = None) -> "NDArray[Any]":
    """Return all ranks' arrays combined: `Worker.all_reduce` of this process."""
    return current().all_reduce(array, op, timeout)


def pending_change() -> PendingChange | None:
    """Return the change of the round that this node's agent has announced, None if none.

    It costs one look at a file of this machine; ask as often as you like. Not all ranks need
    see a change at the same moment: for what all must do alike, see `should_save`.
    """
    return current().pending_change() if is_member() else None


def should_save(step: int, every: int = 0) -> bool:
    """Return whether to save the state now; the same answer for the same step on every rank.

    True where a change of the round pends and the ranks have agreed on this step (see
    `saved`). Ask at the same point of each step, on every rank.

    Args:
        step: number of the step, growing.
        every: True also at each multiple of it; 0 for none.

    Outside `rallypoint run` only `every` counts.
    """
    agreed = current().saving.should_save(step) if is_member() else False
    return agreed or (every > 0 and step > 0 and step % every == 0)


def saved(step: int) -> None:
    """Say that this rank's part of the state of `step` is safe; call it on every rank.

    If the ranks saved for a change, it waits for that: once all ranks have said so, the round
    is over, and the agent ends this process in here. It returns if the change is called off
    or its time is over. Otherwise it does nothing.
    """
    if is_member():
        with rest():  # no hang, however long the change takes
            current().saving.saved(step)


def is_member() -> bool:
    """Return whether this process (or thread: see `use`) is a worker of a run at all."""
    return _given.get() is not None or "RALLYPOINT_STORE" in os.environ
