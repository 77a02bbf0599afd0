"""torch's `Store` over a Rallypoint store, and the TCPStore of a round's workers.

`RoundStore` is used by torch's agent and its barriers. It is on the Rallypoint server, and so
survives the loss of any node. The workers use torch's own protocol, so the first node of a
round runs a real TCPStore for them: every node starts one before it joins, proposes its port,
and closes it if another node becomes the first. So the port in the sealed round is already
listening, and no round sees the keys of another.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from torch import distributed as dist

from rallypoint.errors import RallypointError, StoreConnectionError, StoreTimeoutError
from rallypoint.integrations.agent_round import AgentRound

BACKLOG = 4096
Value = bytes | str


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except StoreTimeoutError as error:
        raise dist.DistStoreError(str(error)) from error
    except StoreConnectionError as error:
        raise dist.DistNetworkError(str(error)) from error
    except RallypointError as error:
        raise dist.DistStoreError(str(error)) from error


class RoundStore(dist.Store):  # type: ignore[misc] # torch is not installed for the check
    """The store of one round; torch's C++ code calls the same methods."""

    def __init__(self, agent_round: AgentRound) -> None:
        super().__init__()
        self._round = agent_round
        self._store = agent_round.store

    def _seconds(self, timeout: timedelta | None = None) -> float:
        limit: timedelta = self.timeout if timeout is None else timeout
        return limit.total_seconds()

    def set(self, key: str, value: Value) -> None:
        """Write a value."""
        with _errors():
            self._round.set(key, value)

    def get(self, key: str) -> bytes:
        """Wait for a value, up to the store's timeout, and return it."""
        with _errors():
            return self._round.get(key, self._seconds())

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return the sum."""
        with _errors():
            return self._round.add(key, amount)

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Write if the value is as expected; return the value afterwards."""
        with _errors():
            return self._store.compare_set(key, expected, desired)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist."""
        with _errors():
            return self._store.check(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait for keys."""
        with _errors():
            self._round.wait(keys, self._seconds(timeout))

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it existed."""
        with _errors():
            return self._store.delete_key(key)

    def num_keys(self) -> int:
        """Return the number of keys."""
        with _errors():
            return self._store.num_keys()

    def list_keys(self) -> list[str]:
        """Return all keys."""
        with _errors():
            return self._store.list()

    def append(self, key: str, value: Value) -> None:
        """Append to a value."""
        with _errors():
            self._store.append(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for several values, and return them."""
        with _errors():
            return self._round.multi_get(keys, self._seconds())

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Write several values in one step."""
        with _errors():
            self._store.multi_set(keys, values)

    def queue_push(self, key: str, value: Value) -> None:
        """Put a value at the end of a queue."""
        with _errors():
            self._store.queue_push(key, value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first value of a queue."""
        with _errors():
            return self._store.queue_pop(key, block, self._seconds())

    def queue_len(self, key: str) -> int:
        """Return the length of a queue."""
        with _errors():
            return self._store.queue_len(key)

    def has_extended_api(self) -> bool:
        """Return True: append, multi_get, multi_set and queues are supported."""
        return True

    def clone(self) -> "RoundStore":
        """Return another store on the same round, which all threads may share."""
        return RoundStore(self._round)

    # torch's C++ side uses these names.
    getNumKeys = num_keys
    deleteKey = delete_key
    hasExtendedApi = has_extended_api


class WorkersStore:
    """The TCPStores that this node runs for workers: of this round, and for the next."""

    def __init__(self) -> None:
        self._next: dist.TCPStore | None = None
        self._serving: dist.TCPStore | None = None

    def propose(self, address: str) -> int:
        """Start a TCPStore for the next round on a free port of `address`; return the port."""
        self._next = None  # the last join failed
        sock = _listening(address)
        port: int = sock.getsockname()[1]
        host = sock.getsockname()[0]
        self._next = dist.TCPStore(
            "127.0.0.1" if host == "0.0.0.0" else host,  # noqa: S104 - the one compared with
            port,
            world_size=None,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=sock.detach(),
        )
        return port

    def settle(self, is_first: bool) -> None:
        """Keep the proposed store if this node is the round's first, or close it."""
        self._serving, self._next = self._next if is_first else None, None

    def close(self) -> None:
        """Close all."""
        self._serving = self._next = None


def _listening(address: str) -> socket.socket:
    """Return a listening socket on that address, on all if it is not this machine's (NAT)."""
    for host in (address, ""):
        kinds = socket.AF_UNSPEC if host else socket.AF_INET
        found = socket.getaddrinfo(
            host or None, 0, kinds, socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, proto, _, where = found[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.bind(where)
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            if not host:
                raise
        else:
            return sock
    raise AssertionError("unreachable: the last attempt returns or raises")
