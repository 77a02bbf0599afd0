"""The store contract: bytes under string keys, with waiting, counting and comparing.

Guarantees of every store, checked by `rallypoint.testing.StoreSuite`:

* Each call is atomic and linearizable among all clients of the same store.
* No call waits forever: a call without a timeout uses that of the store (`timeout`, 300 s).
* A timeout given to a call holds for that call only.
* A thread that waits in one call does not block the calls of other threads.
* Once a write has returned, every later read sees it.

A key is a str, or bytes that are UTF-8. A value is bytes, or a str, which is encoded as UTF-8;
reads return bytes. A timeout is a number of seconds or a timedelta; None uses the store's own,
0 does not wait.

Every call may raise StoreConnectionError (no answer from the server), AuthenticationError (the
token does not allow it), StoreLimitError (the store or the value is too large) and StoreValueError
(the key is not UTF-8, or it holds a queue instead of a value, or the reverse). The errors named
below come in addition.

A subclass carries out one typed request (`rallypoint.net.protocol`) in `_call`; all public calls
are written once, here.
"""

import builtins
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Self

from rallypoint.deadline import seconds
from rallypoint.errors import ParameterError, StoreTimeoutError, StoreValueError
from rallypoint.net import protocol as p

DEFAULT_TIMEOUT_SECONDS = 300.0  # torch.distributed's default_pg_timeout for stores
Key = str | bytes
Value = bytes | str | bytearray | memoryview
Timeout = float | timedelta | None


def as_key(key: Key) -> str:
    """Return a key as str (StoreValueError: it is of another type, or not UTF-8)."""
    if isinstance(key, str) and key.isascii():
        return key
    if not isinstance(key, (str, bytes, bytearray, memoryview)):
        raise StoreValueError(f"key {key!r} is of type {type(key).__name__}; allowed: str or bytes")
    try:
        text = key if isinstance(key, str) else bytes(key).decode("utf-8")
        text.encode("utf-8")
    except UnicodeError as error:
        raise StoreValueError(f"key {key!r} is not UTF-8: {error}") from error
    return text


def as_value(value: Value, key: Key) -> bytes:
    """Return a value as bytes (StoreValueError: it is of another type; it names the key)."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise StoreValueError(
        f"the value of key {key!r} is of type {type(value).__name__}; allowed: bytes or str"
    )


class Store(ABC):
    """A key/value store shared by the members of a run (see the module's guarantees)."""

    _timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS

    @abstractmethod
    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        """Carry out one request; see the request's class for its result.

        Args:
            request: the request; a timeout in it is `timeout`.
            timeout: longest wait in seconds.
        """

    @abstractmethod
    def clone(self) -> "Store":
        """Return an independent handle on the same data, with a connection of its own."""

    def close(self) -> None:  # noqa: B027 - not every store holds something
        """Release the connection or file of this handle; the data stays."""

    @property
    def timeout(self) -> timedelta:
        """The timeout of calls that are given none."""
        return timedelta(seconds=self._timeout_seconds)

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Set the timeout of calls that are given none (ParameterError: not above zero).

        Args:
            timeout: seconds or timedelta.
        """
        value = seconds(timeout)
        if not value > 0:
            raise ParameterError(f"timeout={timeout!r}: must be above zero seconds")
        self._timeout_seconds = value

    def _limit(self, timeout: Timeout) -> float:
        return self._timeout_seconds if timeout is None else max(0.0, seconds(timeout))

    # -- one key ----------------------------------------------------------------------

    def set(self, key: Key, value: Value) -> None:
        """Write a value."""
        self._call(p.Set(as_key(key), as_value(value, key)), self._timeout_seconds)

    def get(self, key: Key, timeout: Timeout = None) -> bytes:
        """Return the value; wait for the key at most `timeout` seconds (StoreTimeoutError)."""
        limit = self._limit(timeout)
        result: bytes = self._call(p.Get(as_key(key), limit), limit)
        return result

    def get_nowait(self, key: Key, default: bytes | None = None) -> bytes | None:
        """Return the value, or `default` without the key; does not wait for it."""
        value: bytes | None = self._call(p.Peek(as_key(key)), self._timeout_seconds)
        return default if value is None else value

    def add(self, key: Key, amount: int) -> int:
        """Add to a decimal number, which is 0 without the key; return the sum.

        Raises StoreValueError if the value is no number, or the sum exceeds 64 bits.
        """
        result: int = self._call(p.Add(as_key(key), int(amount)), self._timeout_seconds)
        return result

    def compare_set(self, key: Key, expected: Value, desired: Value) -> bytes:
        """Write `desired` if the value is `expected`, or if the key is missing and that is empty.

        Returns the value afterwards. If the key is missing and `expected` is not empty, nothing
        is written and `expected` is returned, as by torch's stores.
        """
        wanted = as_value(expected, key)
        request = p.CompareSet(as_key(key), wanted, as_value(desired, key))
        result: bytes | None = self._call(request, self._timeout_seconds)
        return wanted if result is None else result

    def compare_and_swap(
        self, key: Key, expected: Value | None, desired: Value
    ) -> tuple[bool, bytes | None]:
        """Write `desired` if the value is exactly `expected`; None expects no key.

        Returns whether it was written, and the value afterwards (None: no key).
        """
        wanted = None if expected is None else as_value(expected, key)
        request = p.CompareSwap(as_key(key), wanted, as_value(desired, key))
        swapped, current = self._call(request, self._timeout_seconds)
        return swapped, current

    def delete_key(self, key: Key) -> bool:
        """Delete a key; return whether it existed."""
        return bool(self._call(p.Delete(as_key(key)), self._timeout_seconds))

    def append(self, key: Key, value: Value) -> None:
        """Append to the value, which is empty without the key."""
        self._call(p.Append(as_key(key), as_value(value, key)), self._timeout_seconds)

    def watch(self, key: Key, since: int = 0, timeout: Timeout = None) -> tuple[int, bytes | None]:
        """Wait until the version of a key is above `since`; return (version, value or None).

        A version grows with every change of the key, also when it is deleted; that of a key that
        was never written is 0.

        Args:
            key: what to watch.
            since: the last version seen.
            timeout: longest wait in seconds (StoreTimeoutError).
        """
        limit = self._limit(timeout)
        version, value = self._call(p.Watch(as_key(key), since, limit), limit)
        return version, value

    # -- many keys --------------------------------------------------------------------

    def check(self, keys: Iterable[Key]) -> bool:
        """Return whether all keys exist."""
        return bool(self._call(p.Check([as_key(k) for k in keys]), self._timeout_seconds))

    def wait(self, keys: Iterable[Key], timeout: Timeout = None) -> None:
        """Wait until all keys exist, at most `timeout` seconds.

        Raises StoreTimeoutError, which names the missing keys.
        """
        limit = self._limit(timeout)
        self._call(p.Wait([as_key(k) for k in keys], limit), limit)

    def num_keys(self) -> int:
        """Return the number of keys, queues and counters included."""
        result: int = self._call(p.NumKeys(""), self._timeout_seconds)
        return result

    def list(self, prefix: Key = "") -> list[str]:
        """Return the keys that begin with `prefix`, sorted."""
        result: list[str] = self._call(p.List(as_key(prefix)), self._timeout_seconds)
        return result

    def multi_get(self, keys: Sequence[Key], timeout: Timeout = None) -> builtins.list[bytes]:
        """Return the values in the order of the keys.

        Waits for missing keys at most `timeout` seconds in all (StoreTimeoutError names them).
        """
        limit = self._limit(timeout)
        result: list[bytes] = self._call(p.MultiGet([as_key(k) for k in keys], limit), limit)
        return result

    def multi_set(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        """Write all pairs in one step (ParameterError: not as many values as keys)."""
        if len(keys) != len(values):
            raise ParameterError(f"multi_set: {len(keys)} keys but {len(values)} values")
        pairs = [(as_key(k), as_value(v, k)) for k, v in zip(keys, values, strict=True)]
        self._call(p.MultiSet(pairs), self._timeout_seconds)

    # -- queues -----------------------------------------------------------------------

    def queue_push(self, key: Key, value: Value) -> None:
        """Append a value to a queue."""
        self._call(p.QueuePush(as_key(key), as_value(value, key)), self._timeout_seconds)

    def queue_pop(self, key: Key, block: bool = True, timeout: Timeout = None) -> bytes:
        """Remove the first value of a queue and return it.

        Args:
            key: name of the queue.
            block: whether to wait for a value.
            timeout: longest wait in seconds.

        Raises StoreTimeoutError; without `block`, at once if the queue is empty.
        """
        limit = self._limit(timeout) if block else 0.0
        result: bytes = self._call(p.QueuePop(as_key(key), limit), limit)
        return result

    def queue_len(self, key: Key) -> int:
        """Return the number of values in a queue."""
        result: int = self._call(p.QueueLen(as_key(key)), self._timeout_seconds)
        return result

    # -- groups -----------------------------------------------------------------------

    def barrier(self, name: Key, n: int, timeout: Timeout = None, rank: int | None = None) -> None:
        """Wait until `n` members have called it. The name can be used again afterwards.

        Args:
            name: of the barrier.
            n: number of members.
            timeout: longest wait in seconds (StoreTimeoutError names the missing ranks).
            rank: of this member; None: members are only counted.
        """
        limit = self._limit(timeout)
        self._call(p.Gather("b:" + as_key(name), n, rank, b"", False, limit), limit)

    def all_gather(
        self, name: Key, value: Value, rank: int, n: int, timeout: Timeout = None
    ) -> builtins.list[bytes]:
        """Return the values of all `n` members, in rank order.

        Args:
            name: of the group; can be used again afterwards.
            value: of this member.
            rank: of this member, 0 to n - 1.
            n: number of members.
            timeout: longest wait in seconds (StoreTimeoutError names the missing ranks).
        """
        limit = self._limit(timeout)
        request = p.Gather("g:" + as_key(name), n, rank, as_value(value, name), True, limit)
        result: list[bytes] = self._call(request, limit)
        return result

    def broadcast(
        self, name: Key, value: Value | None, rank: int, n: int, timeout: Timeout = None
    ) -> bytes:
        """Return rank 0's value to all members.

        Args:
            name: of the group; can be used again afterwards.
            value: of rank 0 (ParameterError: None); that of other ranks is ignored.
            rank: of this member, 0 to n - 1.
            n: number of members.
            timeout: longest wait in seconds (StoreTimeoutError names the missing ranks).
        """
        limit = self._limit(timeout)
        own = as_value(value, name) if rank == 0 and value is not None else b""
        if rank == 0 and value is None:
            raise ParameterError("broadcast: rank 0 must give a value, got None")
        request = p.Gather("c:" + as_key(name), n, rank, own, True, limit, only_first=True)
        result: list[bytes] = self._call(request, limit)
        return result[0]

    # -- many calls, one round trip ---------------------------------------------------

    def pipeline(self) -> "Pipeline":
        """Return a `Pipeline`, which sends several calls in one request."""
        return Pipeline(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Pipeline:
    """Calls that are sent in one request and carried out in order, as one step.

    As a context manager (`with store.pipeline() as pipe: pipe.set("a", b"1")`) it sends them at
    the end of the block, and `pipe.results` has the results. It has no calls that wait.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._requests: list[p.PlainRequest] = []
        self.results: list[Any] = []

    def _add(self, request: p.PlainRequest) -> Self:
        self._requests.append(request)
        return self

    def set(self, key: Key, value: Value) -> Self:
        """Add a `set`."""
        return self._add(p.Set(as_key(key), as_value(value, key)))

    def get_nowait(self, key: Key) -> Self:
        """Add a `get_nowait`; its result is the value or None."""
        return self._add(p.Peek(as_key(key)))

    def add(self, key: Key, amount: int) -> Self:
        """Add a `add`; its result is the sum."""
        return self._add(p.Add(as_key(key), int(amount)))

    def append(self, key: Key, value: Value) -> Self:
        """Add a `append`."""
        return self._add(p.Append(as_key(key), as_value(value, key)))

    def check(self, keys: Iterable[Key]) -> Self:
        """Add a `check`."""
        return self._add(p.Check([as_key(k) for k in keys]))

    def compare_and_swap(self, key: Key, expected: Value | None, desired: Value) -> Self:
        """Add a `compare_and_swap`; its result is (swapped, current)."""
        wanted = None if expected is None else as_value(expected, key)
        return self._add(p.CompareSwap(as_key(key), wanted, as_value(desired, key)))

    def delete_key(self, key: Key) -> Self:
        """Add a `delete_key`."""
        return self._add(p.Delete(as_key(key)))

    def queue_push(self, key: Key, value: Value) -> Self:
        """Add a `queue_push`."""
        return self._add(p.QueuePush(as_key(key), as_value(value, key)))

    def execute(self) -> list[Any]:
        """Send the calls; return their results in order."""
        requests, self._requests = self._requests, []
        if requests:
            results = self._store._call(p.Pipeline(requests), self._store._timeout_seconds)
            # msgpack has no tuples: make a pair what the local stores return.
            self.results = [
                tuple(result) if isinstance(request, p.CompareSwap) else result
                for request, result in zip(requests, results, strict=True)
            ]
        return self.results

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        if kind is None:
            self.execute()


__all__ = [
    "DEFAULT_TIMEOUT_SECONDS",
    "Pipeline",
    "Store",
    "StoreTimeoutError",
    "as_key",
    "as_value",
]
