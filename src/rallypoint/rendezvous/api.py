"""The rendezvous API: the names that users program against.

`RendezvousHandler.next_rendezvous()` blocks until a round is agreed and returns a
`RendezvousInfo`: this node's rank, the number of nodes, a store that the nodes of the round share,
and the address at which their workers meet. The other methods tell whether the round still holds.
Names and meanings are those of torchelastic and TensorPlay.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from rallypoint.core.events import Assignment
from rallypoint.deadline import seconds
from rallypoint.errors import (
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
    StoreConnectionError,
    StoreTimeoutError,
)
from rallypoint.net.addresses import local_address, propose_port
from rallypoint.rendezvous.parameters import RendezvousParameters, RendezvousTimeout, as_int
from rallypoint.store.api import Store

BOOTSTRAP_KEY = "rallypoint/bootstrap"
Lazy = Sequence[Any] | Callable[[], Sequence[Any]] | None


def store_endpoint(store: object) -> tuple[str, int] | None:
    """Return host and port of a store's server, None for a store without one.

    Read from the attribute `master_addr_port` (a pair, or a function that returns it), or
    else from `host` and `port`.
    """
    pair = getattr(store, "master_addr_port", None)
    pair = pair() if callable(pair) else pair
    if pair is None:
        pair = (getattr(store, "host", None), getattr(store, "port", None))
    host, port = pair
    return (str(host), int(port)) if host and port else None


@dataclass(frozen=True)
class RendezvousStoreInfo:
    """Where workers meet: MASTER_ADDR and MASTER_PORT.

    Args:
        master_addr: address of rank 0.
        master_port: port on it.
    """

    master_addr: str
    master_port: int

    @property
    def addr(self) -> str:
        """The same as `master_addr`."""
        return self.master_addr

    @property
    def port(self) -> int:
        """The same as `master_port`."""
        return self.master_port

    @classmethod
    def build(
        cls,
        rank: int,
        store: Store,
        local_addr: str | None = None,
        server_port: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> "RendezvousStoreInfo":
        """Agree on the address through `store`: rank 0 publishes it, all other ranks read it.

        Rank 0 takes `local_addr` and `server_port` where they are given, else the endpoint of the
        store's own server, else this machine's address and a free port.

        Args:
            rank: of this node.
            store: shared by the nodes of one round.
            local_addr: this node's address for its peers.
            server_port: port of a server that the workers use.
            timeout: how long to wait for rank 0, seconds or timedelta; None: the store's own.

        Raises:
            RendezvousTimeoutError: rank 0 published nothing in time.
            RendezvousConnectionError: the store cannot be reached.
            RendezvousStateError: the stored value is no address.
        """
        if as_int("rank", rank, 0) == 0:
            info = cls._own(store, local_addr, server_port)
            record = msgspec.json.encode((info.master_addr, info.master_port))
            try:
                store.set(BOOTSTRAP_KEY, record)
            except StoreConnectionError as error:
                raise RendezvousConnectionError(f"publishing {info} failed: {error}") from error
            return info
        return cls._read(rank, store, timeout)

    @classmethod
    def _own(
        cls, store: Store, local_addr: str | None, server_port: int | None
    ) -> "RendezvousStoreInfo":
        host, port = store_endpoint(store) or ("", 0)
        address = local_addr or host or local_address()
        return cls(address, server_port or port or propose_port(address))

    @classmethod
    def _read(
        cls, rank: int, store: Store, timeout: float | timedelta | None
    ) -> "RendezvousStoreInfo":
        limit = seconds(store.timeout if timeout is None else timeout)
        try:
            record = store.get(BOOTSTRAP_KEY, limit)
            address, port = msgspec.json.decode(record, type=tuple[str, int])
        except StoreTimeoutError as error:
            raise RendezvousTimeoutError(
                f"rank {rank} waited {limit:g} s for rank 0 to publish the bootstrap address "
                f"(key {BOOTSTRAP_KEY!r}); is rank 0 alive? The limit is the argument timeout"
            ) from error
        except StoreConnectionError as error:
            raise RendezvousConnectionError(
                f"rank {rank} could not read the bootstrap address: {error}"
            ) from error
        except msgspec.MsgspecError as error:
            raise RendezvousStateError(
                f"the key {BOOTSTRAP_KEY!r} holds no bootstrap address: {error}"
            ) from error
        return cls(address, port)


class RendezvousInfo:
    """The round that was agreed, as one node sees it.

    Args:
        store: shared by the nodes of this round only.
        rank: of this node among the nodes.
        world_size: number of nodes.
        bootstrap_store_info: where the workers meet.
        participants: in rank order, or a function that fetches them at the first access, by when
            the run may have gone on (see `participants`).
        wait_list: nodes that wait for a later round, or a function that fetches them.
        assignment: the seat with all ranks and sizes, None where the backend has none.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        bootstrap_store_info: RendezvousStoreInfo | None = None,
        participants: Lazy = None,
        wait_list: Lazy = None,
        *,
        assignment: Assignment | None = None,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._bootstrap_store_info = bootstrap_store_info
        self._participants = participants
        self._wait_list = wait_list
        self._assignment = assignment

    @property
    def store(self) -> Store:
        """The store of this round."""
        return self._store

    @property
    def rank(self) -> int:
        """Rank of this node among the nodes."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of nodes in this round."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo | None:
        """The address at which the workers of this round meet."""
        return self._bootstrap_store_info

    @property
    def participants(self) -> list[Any]:
        """The nodes of this round in rank order.

        Read it soon after the join. With a server the first access asks for the round that is
        sealed at that moment: it returns [] while the next round gathers, or the nodes of a later
        round. Without a server it returns the nodes of this node's last round, without a request.

        Raises:
            RendezvousError: the server cannot be reached or gives no answer in time.
        """
        if callable(self._participants):
            self._participants = list(self._participants())
        return list(self._participants or ())

    @property
    def wait_list(self) -> list[Any]:
        """The nodes that wait for a later round; may need one request each time."""
        found = self._wait_list() if callable(self._wait_list) else self._wait_list
        return list(found or ())

    @property
    def assignment(self) -> Assignment | None:
        """The seat with all ranks and sizes, None where the backend has none."""
        return self._assignment

    def __repr__(self) -> str:
        return f"RendezvousInfo(rank={self._rank}, world_size={self._world_size})"


class RendezvousHandler(ABC):
    """One node's part in a run."""

    @abstractmethod
    def get_backend(self) -> str:
        """Return the name of the backend, as given in the parameters."""

    @abstractmethod
    def get_run_id(self) -> str:
        """Return the name of the run."""

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Join, or join again, and block until a round is agreed, within the join timeout.

        Returns:
            This node's rank, the number of nodes, the round's store and bootstrap address.

        Raises:
            RendezvousClosedError: the run is closed.
            RendezvousTimeoutError: the round was not complete in time.
            RendezvousConnectionError: the backend cannot be reached.
            RendezvousStateError: refused, or the stored state cannot be used.
            RendezvousGracefulExitError: the run has finished, and does not need this node.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Return whether the run is known to be closed.

        Raises:
            RendezvousStateError: the background thread of the coordinator failed.
        """

    @abstractmethod
    def set_closed(self) -> None:
        """Close the run: all nodes are told, and later joins are refused.

        Raises:
            RendezvousConnectionError: the backend cannot be reached.
        """

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait for the next round; above zero: join again.

        Raises:
            RendezvousStateError: the background thread of the coordinator failed.
        """

    @abstractmethod
    def shutdown(self) -> bool:
        """Leave the run and release everything; the run goes on.

        Returns:
            With a server, whether this call stopped one that this process hosted; without a
            server, whether leaving succeeded; for a static rendezvous, whether this is rank 0.
        """

    def pre_shutdown(self) -> None:  # noqa: B027 - a hook that may do nothing
        """Called before `shutdown` when an agent ends."""

    @property
    def use_agent_store(self) -> bool:
        """Whether workers may use the agent's store as their bootstrap store."""
        return False

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change of what this handler knows.

        It is called without arguments from a thread of the handler, and must not block: it may
        wake another thread (`threading.Event().set`), which then asks the handler.

        Returns:
            A function that removes the callback.
        """
        return self._callbacks().add(callback)

    def _notify(self) -> None:
        """Call the callbacks; for subclasses, after each change."""
        if (callbacks := self.__dict__.get("_on_change")) is not None:
            callbacks.call()

    def _callbacks(self) -> "_Callbacks":
        # Made here, so that a subclass need not call our __init__.
        found: _Callbacks = self.__dict__.setdefault("_on_change", _Callbacks())
        return found


class _Callbacks:
    """Functions to call after a change, in order of their registration."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[object, Callable[[], None]] = {}

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        key = object()
        with self._lock:
            self._entries[key] = callback

        def remove() -> None:
            with self._lock:
                self._entries.pop(key, None)

        return remove

    def call(self) -> None:
        with self._lock:
            callbacks = list(self._entries.values())
        for callback in callbacks:
            callback()


RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]

__all__ = [
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "store_endpoint",
]
