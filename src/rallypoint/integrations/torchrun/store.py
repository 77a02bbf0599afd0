"""torch's `Store` over ours, and the TCPStore in which a round's workers meet.

`RoundStore` is what torch's agent and its barriers use; it lives on the Rallypoint server,
so that no node's death takes it away. The workers speak torch's own protocol, so the first
node of a round hosts a real TCPStore for them: every node opens one on a port of its
own before it joins, proposes that port, and closes it again if it is not the first. So the
sealed record names a port that already listens, and no round ever sees another's keys.
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
    """The store of one round; C++ code reaches the same methods through torch's trampoline."""

    def __init__(self, agent_round: AgentRound) -> None:
        super().__init__()
        self._round = agent_round
        self._store = agent_round.store

    def _limit(self, timeout: timedelta | None = None) -> float:
        limit: timedelta = self.timeout if timeout is None else timeout
        return limit.total_seconds()

    def set(self, key: str, value: Value) -> None:
        """Write a value."""
        with _errors():
            self._round.set(key, value)

    def get(self, key: str) -> bytes:
        """Return a value, waiting for it within the store's timeout."""
        with _errors():
            return self._round.get(key, self._limit())

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return the sum."""
        with _errors():
            return self._round.add(key, amount)

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Write if the value is as expected; return what stands."""
        with _errors():
            return self._store.compare_set(key, expected, desired)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are there."""
        with _errors():
            return self._store.check(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait for keys."""
        with _errors():
            self._round.wait(keys, self._limit(timeout))

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it was there."""
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
        """Return several values, waiting for them."""
        with _errors():
            return self._round.multi_get(keys, self._limit())

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
            return self._store.queue_pop(key, block, self._limit())

    def queue_len(self, key: str) -> int:
        """Return the length of a queue."""
        with _errors():
            return self._store.queue_len(key)

    def has_extended_api(self) -> bool:
        """Return True: append, multi_get, multi_set and queues are here."""
        return True

    def clone(self) -> "RoundStore":
        """Return another handle; ours may be shared by all threads."""
        return RoundStore(self._round)

    # The names under which torch's C++ side looks for the same.
    getNumKeys = num_keys
    deleteKey = delete_key
    hasExtendedApi = has_extended_api


class WorkersStore:
    """The TCPStores that this node hosts for workers: one for the round, one for the next."""

    def __init__(self) -> None:
        self._next: dist.TCPStore | None = None
        self._serving: dist.TCPStore | None = None

    def propose(self, address: str) -> int:
        """Listen on a free port of `address` for the round to come; return the port."""
        self._next = None  # an attempt before this one came to nothing
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
        """The round is agreed: keep serving as its first node, or close."""
        self._serving, self._next = self._next if is_first else None, None

    def close(self) -> None:
        """Close all."""
        self._serving = self._next = None


def _listening(address: str) -> socket.socket:
    """Return a socket on exactly that address, on any if it is not this machine's (NAT)."""
    for host in (address, ""):
        found = socket.getaddrinfo(
            host or None, 0, socket.AF_UNSPEC if host else socket.AF_INET,
            socket.SOCK_STREAM, flags=socket.AI_PASSIVE,
        )  # fmt: skip
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
