"""The store contract: bytes under string keys, with waiting, counting and comparing.

Guarantees of every store, checked by `rallypoint.testing.StoreSuite`:

* each call is atomic and linearizable among all clients of the same store;
* no call waits for ever: a call without a timeout uses the store's own (`timeout`, 300 s);
* a call's own timeout holds for that call alone;
* a thread that waits in one call holds up no other thread's call;
* a value that was acknowledged is seen by every later read.

Keys are str (or UTF-8 bytes); values are bytes (a str is encoded as UTF-8). Values come
back as bytes. Durations are seconds or timedelta.

The subclass says how one typed request (`rallypoint.net.protocol`) is carried out, in
`_call` and `_pipeline`; all public calls are written once, here.
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
    """Return a key as str; bytes are read as UTF-8 (StoreValueError if they are not)."""
    if isinstance(key, str) and key.isascii():
        return key
    try:
        text = key if isinstance(key, str) else bytes(key).decode("utf-8")
        text.encode("utf-8")
    except UnicodeError as error:
        raise StoreValueError(f"key {key!r} is not UTF-8: {error}") from error
    return text


def as_value(value: Value) -> bytes:
    """Return a value as bytes; str is encoded as UTF-8."""
    if isinstance(value, bytes):
        return value
    return value.encode("utf-8") if isinstance(value, str) else bytes(value)


class Store(ABC):
    """A key/value store shared by the members of a run (see the module's guarantees)."""

    _timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS

    @abstractmethod
    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        """Carry out one request; block at most `timeout` seconds where it waits.

        Returns the result described on the request's class. Raises StoreTimeoutError when
        the wait reached its limit, StoreValueError, StoreLimitError, StoreConnectionError.
        """

    @abstractmethod
    def clone(self) -> "Store":
        """Return an independent handle on the same data (its own connection, same keys)."""

    def close(self) -> None:  # noqa: B027 - not every store holds something
        """Release what this handle holds (connection, file); the data stays."""

    @property
    def timeout(self) -> timedelta:
        """The limit of calls that name none."""
        return timedelta(seconds=self._timeout_seconds)

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Set the limit of calls that name none (seconds or timedelta, above zero)."""
        value = seconds(timeout)
        if not value > 0:
            raise ParameterError(f"timeout={timeout!r}: must be above zero seconds")
        self._timeout_seconds = value

    def _limit(self, timeout: Timeout) -> float:
        return self._timeout_seconds if timeout is None else max(0.0, seconds(timeout))

    # -- one key ----------------------------------------------------------------------

    def set(self, key: Key, value: Value) -> None:
        """Write `value`; returns once every later read will see it."""
        self._call(p.Set(as_key(key), as_value(value)), self._timeout_seconds)

    def get(self, key: Key, timeout: Timeout = None) -> bytes:
        """Return the value, waiting for the key at most `timeout` (StoreTimeoutError)."""
        limit = self._limit(timeout)
        result: bytes = self._call(p.Get(as_key(key), limit), limit)
        return result

    def get_nowait(self, key: Key, default: bytes | None = None) -> bytes | None:
        """Return the value, or `default` when the key is missing; never waits."""
        value: bytes | None = self._call(p.Peek(as_key(key)), self._timeout_seconds)
        return default if value is None else value

    def add(self, key: Key, amount: int) -> int:
        """Add to the integer (decimal text) under `key`, 0 when missing; return the sum."""
        result: int = self._call(p.Add(as_key(key), int(amount)), self._timeout_seconds)
        return result

    def compare_set(self, key: Key, expected: Value, desired: Value) -> bytes:
        """Write `desired` if the value equals `expected`, or is missing and that is empty.

        Returns the value that stands afterwards; when the key is missing and `expected`
        is not empty, nothing is written and `expected` is returned (torch's meaning).
        """
        wanted = as_value(expected)
        request = p.CompareSet(as_key(key), wanted, as_value(desired))
        result: bytes | None = self._call(request, self._timeout_seconds)
        return wanted if result is None else result

    def compare_and_swap(
        self, key: Key, expected: Value | None, desired: Value
    ) -> tuple[bool, bytes | None]:
        """Write `desired` if the value is exactly `expected`; None expects no key at all.

        Returns whether it was written, and the value that stands afterwards (None: no key).
        """
        wanted = None if expected is None else as_value(expected)
        request = p.CompareSwap(as_key(key), wanted, as_value(desired))
        swapped, current = self._call(request, self._timeout_seconds)
        return swapped, current

    def delete_key(self, key: Key) -> bool:
        """Delete a key; return whether it was there."""
        return bool(self._call(p.Delete(as_key(key)), self._timeout_seconds))

    def append(self, key: Key, value: Value) -> None:
        """Append to the value under `key` (empty when missing)."""
        self._call(p.Append(as_key(key), as_value(value)), self._timeout_seconds)

    def watch(self, key: Key, since: int = 0, timeout: Timeout = None) -> tuple[int, bytes | None]:
        """Wait until the key's version is above `since`; return (version, value or None).

        Versions grow with every change of the key, deletion included; 0 is "never written".
        """
        limit = self._limit(timeout)
        version, value = self._call(p.Watch(as_key(key), since, limit), limit)
        return version, value

    # -- many keys --------------------------------------------------------------------

    def check(self, keys: Iterable[Key]) -> bool:
        """Return whether all keys are there."""
        return bool(self._call(p.Check([as_key(k) for k in keys]), self._timeout_seconds))

    def wait(self, keys: Iterable[Key], timeout: Timeout = None) -> None:
        """Wait until all keys are there (StoreTimeoutError names the missing ones)."""
        limit = self._limit(timeout)
        self._call(p.Wait([as_key(k) for k in keys], limit), limit)

    def num_keys(self) -> int:
        """Return how many keys the store holds (queues and counters included)."""
        result: int = self._call(p.NumKeys(""), self._timeout_seconds)
        return result

    def list(self, prefix: Key = "") -> list[str]:
        """Return the keys that begin with `prefix`, sorted."""
        result: list[str] = self._call(p.List(as_key(prefix)), self._timeout_seconds)
        return result

    def multi_get(self, keys: Sequence[Key], timeout: Timeout = None) -> builtins.list[bytes]:
        """Return the values of all keys, waiting for those that are missing."""
        limit = self._limit(timeout)
        result: list[bytes] = self._call(p.MultiGet([as_key(k) for k in keys], limit), limit)
        return result

    def multi_set(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        """Write all pairs in one step; no reader sees a part of them."""
        if len(keys) != len(values):
            raise ParameterError(f"multi_set: {len(keys)} keys but {len(values)} values")
        pairs = [(as_key(k), as_value(v)) for k, v in zip(keys, values, strict=True)]
        self._call(p.MultiSet(pairs), self._timeout_seconds)

    # -- queues -----------------------------------------------------------------------

    def queue_push(self, key: Key, value: Value) -> None:
        """Put a value at the end of the queue `key`."""
        self._call(p.QueuePush(as_key(key), as_value(value)), self._timeout_seconds)

    def queue_pop(self, key: Key, block: bool = True, timeout: Timeout = None) -> bytes:
        """Take the first value of the queue; wait for one at most `timeout` if `block`.

        Raises StoreTimeoutError, at once when `block` is false and the queue is empty.
        """
        limit = self._limit(timeout) if block else 0.0
        result: bytes = self._call(p.QueuePop(as_key(key), limit), limit)
        return result

    def queue_len(self, key: Key) -> int:
        """Return the number of values in the queue (0 when there is none)."""
        result: int = self._call(p.QueueLen(as_key(key)), self._timeout_seconds)
        return result

    # -- groups -----------------------------------------------------------------------

    def barrier(self, name: Key, n: int, timeout: Timeout = None, rank: int | None = None) -> None:
        """Wait until `n` members have called it; a timeout names the ranks that are missing.

        The name may be used again once a barrier is complete. Without `rank` members are
        only counted.
        """
        limit = self._limit(timeout)
        self._call(p.Gather("b:" + as_key(name), n, rank, b"", False, limit), limit)

    def all_gather(
        self, name: Key, value: Value, rank: int, n: int, timeout: Timeout = None
    ) -> builtins.list[bytes]:
        """Give `value` and return the values of all `n` members, in rank order."""
        limit = self._limit(timeout)
        request = p.Gather("g:" + as_key(name), n, rank, as_value(value), True, limit)
        result: list[bytes] = self._call(request, limit)
        return result

    def broadcast(
        self, name: Key, value: Value | None, rank: int, n: int, timeout: Timeout = None
    ) -> bytes:
        """Rank 0 gives `value`; all `n` members return it (the others' values are ignored)."""
        limit = self._limit(timeout)
        own = as_value(value) if rank == 0 and value is not None else b""
        if rank == 0 and value is None:
            raise ParameterError("broadcast: rank 0 must give a value, got None")
        request = p.Gather("c:" + as_key(name), n, rank, own, True, limit, only_first=True)
        result: list[bytes] = self._call(request, limit)
        return result[0]

    # -- many calls, one round trip ---------------------------------------------------

    def pipeline(self) -> "Pipeline":
        """Collect calls and send them in one request (see `Pipeline`)."""
        return Pipeline(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Pipeline:
    """Calls that are sent together and carried out in order, without others in between.

    Usable as a context manager: `with store.pipeline() as pipe: pipe.set("a", b"1")`;
    the results are in `pipe.results` after the block. Calls that wait cannot be part of it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._requests: list[p.PlainRequest] = []
        self.results: list[Any] = []

    def _add(self, request: p.PlainRequest) -> Self:
        self._requests.append(request)
        return self

    def set(self, key: Key, value: Value) -> Self:
        """Queue `Store.set`."""
        return self._add(p.Set(as_key(key), as_value(value)))

    def get_nowait(self, key: Key) -> Self:
        """Queue `Store.get_nowait`; its result is the value or None."""
        return self._add(p.Peek(as_key(key)))

    def add(self, key: Key, amount: int) -> Self:
        """Queue `Store.add`; its result is the sum."""
        return self._add(p.Add(as_key(key), int(amount)))

    def append(self, key: Key, value: Value) -> Self:
        """Queue `Store.append`."""
        return self._add(p.Append(as_key(key), as_value(value)))

    def check(self, keys: Iterable[Key]) -> Self:
        """Queue `Store.check`."""
        return self._add(p.Check([as_key(k) for k in keys]))

    def compare_and_swap(self, key: Key, expected: Value | None, desired: Value) -> Self:
        """Queue `Store.compare_and_swap`; its result is (swapped, current)."""
        wanted = None if expected is None else as_value(expected)
        return self._add(p.CompareSwap(as_key(key), wanted, as_value(desired)))

    def delete_key(self, key: Key) -> Self:
        """Queue `Store.delete_key`."""
        return self._add(p.Delete(as_key(key)))

    def queue_push(self, key: Key, value: Value) -> Self:
        """Queue `Store.queue_push`."""
        return self._add(p.QueuePush(as_key(key), as_value(value)))

    def execute(self) -> list[Any]:
        """Send what was collected; return one result a call, in order."""
        requests, self._requests = self._requests, []
        if requests:
            results = self._store._call(p.Pipeline(requests), self._store._timeout_seconds)
            # The wire has no tuples; a pair from afar is made what the local stores return.
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
