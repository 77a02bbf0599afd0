"""The meaning of every store request: the one implementation behind all stores. PURE.

A host (the server, MemoryStore, FileStore) calls `execute` with a request and a token of its
choice. A request that must wait is *parked* under its token. Changes made by later requests
answer parked ones, and the host fetches the answers with `completed`. The host has the clock:
when its timer fires it calls `expire`, when a client is gone `cancel`.

table.py has the requests that never wait, groups.py barriers and gathers; this module has the
waiting. Each key has its own tables of waiting requests, so a change looks only at those:

* Readers (get, wait, multi_get) are registered under *one* missing key. When it is written
  they move on to the next missing one, cyclically; a full turn without a missing key answers
  them. So n keys cost about 2n steps in whatever order they are written, a deletion in between
  is seen, and keys that exist from the start cost nothing.
* Poppers get values in the order of their arrival; a push looks at the first one only.
* Every watcher sees each change.

Parked requests are checked after a request (a whole pipeline, for example) has taken effect, so
they never see an intermediate state.
"""

from collections import deque
from collections.abc import Hashable
from enum import Enum
from operator import itemgetter
from typing import Any, Final, Literal

from rallypoint.errors import StoreTimeoutError, StoreValueError
from rallypoint.net import protocol as p
from rallypoint.store.groups import DISCONNECTED, TIMED_OUT, Groups, group_title, shown
from rallypoint.store.table import DEFAULT_LIMIT_BYTES, ENTRY_BYTES, Table


class _Sentinel(Enum):
    PARKED = "parked"


PARKED: Final[Literal[_Sentinel.PARKED]] = _Sentinel.PARKED
"""Result of a request that waits; `completed` or `expire` has its answer later."""


class _Waiter:
    """A parked request; `key` and `table` say where it is registered (a group: nowhere)."""

    __slots__ = ("at", "key", "order", "request", "table", "token")

    def __init__(self, request: Any, token: Hashable, order: int) -> None:
        self.request = request
        self.token = token
        self.order = order
        self.at = 0  # readers: index of the key they are registered under
        self.key = ""
        self.table: dict[Hashable, _Waiter] | None = None


class _Waiting:
    """The requests that wait for one key."""

    __slots__ = ("poppers", "readers", "watchers")

    def __init__(self) -> None:
        self.readers: dict[Hashable, _Waiter] = {}
        self.poppers: dict[Hashable, _Waiter] = {}
        self.watchers: dict[Hashable, _Waiter] = {}

    def is_empty(self) -> bool:
        return not (self.readers or self.poppers or self.watchers)


def _wanted(request: Any) -> list[str]:
    """Return the keys that a reader waits for."""
    keys: list[str] = [request.key] if isinstance(request, p.Get) else request.keys
    return keys


def _member_bytes(request: p.Gather) -> int:
    return len(request.name) + len(request.value) + ENTRY_BYTES


class Keyspace(Table):
    """The keys, queues, groups and parked requests of one store.

    `groups` is for reading only: members join and leave through requests.

    Args:
        limit_bytes: most bytes kept; keys, values and `ENTRY_BYTES` for each are counted.
        **limits: see `Table`.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES, **limits: int) -> None:
        super().__init__(limit_bytes, **limits)
        self._waiting: dict[str, _Waiting] = {}
        self._waited = self._waiting
        self._parked: dict[Hashable, _Waiter] = {}
        self._arrivals = 0
        self.groups = Groups()
        self.done: list[tuple[int, Hashable, Any]] = []  # for `completed` to fetch
        self._methods |= {
            p.Get: self._get,
            p.Wait: self._wait,
            p.MultiGet: self._multi_get,
            p.QueuePop: self._queue_pop,
            p.Watch: self._watch,
            p.Gather: self._gather,
        }

    # -- the host's side ------------------------------------------------------------------

    def execute(self, request: Any, token: Hashable) -> Any:
        """Carry out a request; return its result, or `PARKED` when it has to wait.

        A token that is parked already (a call that was sent again) stays parked once. The host
        must call `completed` afterwards. Raises StoreValueError, StoreLimitError (nothing was
        changed), and StoreTimeoutError for a wait with timeout 0.
        """
        result = self._methods[type(request)](request, token)
        if self._touched:
            self._settle()
        return result

    def completed(self) -> list[tuple[Hashable, Any]]:
        """Return (token, result) of the parked requests answered since the last call."""
        if not self.done:
            return []
        done, self.done = self.done, []
        done.sort(key=itemgetter(0))
        return [(token, result) for _, token, result in done]

    def expire(self, token: Hashable) -> StoreTimeoutError | None:
        """Remove a parked request; return its timeout error, None if it is not parked."""
        waiter = self._parked.get(token)
        if waiter is None:
            return None
        error = self.timeout_error(waiter.request)
        self._remove(waiter, TIMED_OUT)
        return error

    def cancel(self, token: Hashable) -> None:
        """Remove a parked request, if there is one, because its client is gone.

        A member of a group no longer counts; the timeout errors of the others name it.
        """
        waiter = self._parked.get(token)
        if waiter is not None:
            self._remove(waiter, DISCONNECTED)

    def timeout_error(self, request: Any) -> StoreTimeoutError:
        """Return the error of a request whose time is over, with what it waited for."""
        kind = type(request)
        if kind is p.Gather:
            what, seen = group_title(request.name), self.groups.describe(request)
        elif kind is p.QueuePop:
            what, seen = f"queue_pop {request.key!r}", "the queue is empty"
        elif kind is p.Watch:
            what = f"watch {request.key!r}"
            seen = f"no change after version {request.since}"
        else:
            keys = _wanted(request)
            missing = [repr(key) for key in keys if self._lacks(kind, key)]
            name = "get" if kind is p.Get else "multi_get" if kind is p.MultiGet else "wait"
            what = f"{name} {keys[0]!r}" if len(keys) == 1 else name
            seen = f"{len(missing)} of {len(keys)} keys missing: {shown(missing)}"
        return StoreTimeoutError(
            f"{what}: timed out after {request.timeout:g} s; {seen} "
            "(limit: the call's timeout, else the store's, see set_timeout)"
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is no key and no parked request."""
        return not self._values and not self._parked

    @property
    def parked(self) -> int:
        """Number of parked requests."""
        return len(self._parked)

    # -- requests that may wait -----------------------------------------------------------

    def _get(self, request: p.Get, token: Hashable) -> Any:
        value = self._value(request.key)
        if value is None:
            return self._park(request, token, request.key, "readers")
        return value

    def _wait(self, request: p.Wait, token: Hashable) -> Any:
        missing = self._first_missing(p.Wait, request.keys, 0)
        if missing is None:
            return None
        return self._park(request, token, request.keys[missing], "readers", missing)

    def _multi_get(self, request: p.MultiGet, token: Hashable) -> Any:
        for key in request.keys:
            self._value(key)
        missing = self._first_missing(p.MultiGet, request.keys, 0)
        if missing is None:
            return self._answer(request)
        return self._park(request, token, request.keys[missing], "readers", missing)

    def _queue_pop(self, request: p.QueuePop, token: Hashable) -> Any:
        key = request.key
        queue = self._queue(key)
        if queue is None:
            return self._park(request, token, key, "poppers")
        return self._take(key, queue)

    def _watch(self, request: p.Watch, token: Hashable) -> Any:
        key, since = request.key, request.since
        if self._version(key, since) > since:
            return self._answer(request)
        return self._park(request, token, key, "watchers")

    def _gather(self, request: p.Gather, token: Hashable) -> Any:
        if token in self._parked:
            return PARKED
        self._check_key(request.name)
        self._take_room(request.name, _member_bytes(request))
        try:
            answers = self.groups.join(request, token)
        except StoreValueError:
            self._bytes -= _member_bytes(request)
            raise
        if answers is not None:
            return self._complete(answers, request, token)
        waiter = self._new_waiter(request, token)
        if not request.timeout > 0:
            error = self.timeout_error(request)
            self._remove(waiter, TIMED_OUT)
            raise error
        return PARKED

    def _complete(
        self, answers: list[tuple[Hashable, Any]], request: p.Gather, token: Hashable
    ) -> Any:
        """Answer the parked members of a group; return the last member's own answer."""
        self._bytes -= _member_bytes(request)
        own = None
        for member, answer in answers:
            if member == token:
                own = answer
                continue
            waiter = self._parked[member]
            self._bytes -= _member_bytes(waiter.request)
            self._finish(waiter, answer)
        return own

    # -- parking --------------------------------------------------------------------------

    def _park(self, request: Any, token: Hashable, key: str, table: str, at: int = 0) -> Any:
        """Register a request as one of the `table` of a key; raise if it must not wait."""
        if token in self._parked:
            return PARKED
        if not request.timeout > 0:
            raise self.timeout_error(request)
        self._check_key(key)
        waiter = self._new_waiter(request, token)
        waiter.at = at
        self._register(waiter, key, getattr(self._waiting_for(key), table))
        return PARKED

    def _new_waiter(self, request: Any, token: Hashable) -> _Waiter:
        self._arrivals += 1
        waiter = self._parked[token] = _Waiter(request, token, self._arrivals)
        return waiter

    def _waiting_for(self, key: str) -> _Waiting:
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
        return waiting

    @staticmethod
    def _register(waiter: _Waiter, key: str, table: dict[Hashable, _Waiter]) -> None:
        waiter.key, waiter.table = key, table
        table[waiter.token] = waiter

    def _remove(self, waiter: _Waiter, why: str) -> None:
        del self._parked[waiter.token]
        if waiter.table is None:
            self.groups.leave(waiter.request, waiter.token, why)
            self._bytes -= _member_bytes(waiter.request)
            return
        del waiter.table[waiter.token]
        if self._waiting[waiter.key].is_empty():
            del self._waiting[waiter.key]

    # -- answering ------------------------------------------------------------------------

    def _settle(self) -> None:
        """Answer the requests that wait for a key in `_touched`."""
        while self._touched:
            key = next(iter(self._touched))
            del self._touched[key]
            waiting = self._waiting.get(key)
            if waiting is None:
                continue
            if waiting.readers and key in self._values:
                readers, waiting.readers = waiting.readers, {}
                for reader in readers.values():
                    self._advance(reader)
            while waiting.poppers and isinstance(queue := self._values.get(key), deque):
                popper = waiting.poppers.pop(next(iter(waiting.poppers)))
                self._finish(popper, self._take(key, queue))
            if waiting.watchers:
                self._answer_watchers(waiting)
            if waiting.is_empty():
                del self._waiting[key]

    def _advance(self, reader: _Waiter) -> None:
        """Answer a reader, or register it under the next key that it misses."""
        keys = _wanted(reader.request)
        missing = self._first_missing(type(reader.request), keys, reader.at)
        if missing is None:
            self._finish(reader, self._answer(reader.request))
        else:
            reader.at = missing
            self._register(reader, keys[missing], self._waiting_for(keys[missing]).readers)

    def _answer_watchers(self, waiting: _Waiting) -> None:
        for watcher in list(waiting.watchers.values()):
            request = watcher.request
            if self._version(request.key, request.since) > request.since:
                del waiting.watchers[watcher.token]
                self._finish(watcher, self._answer(request))

    def _finish(self, waiter: _Waiter, result: Any) -> None:
        del self._parked[waiter.token]
        self.done.append((waiter.order, waiter.token, result))

    def _lacks(self, kind: type, key: str) -> bool:
        value = self._values.get(key)
        return value is None or (kind is not p.Wait and isinstance(value, deque))

    def _first_missing(self, kind: type, keys: list[str], start: int) -> int | None:
        """Return the index of the first missing key, looking from `start` round to it."""
        count = len(keys)
        for step in range(count):
            index = (start + step) % count
            if self._lacks(kind, keys[index]):
                return index
        return None

    def _answer(self, request: Any) -> Any:
        """Return the result of a reader or watcher whose wait is over."""
        values = self._values
        if isinstance(request, p.Get):
            return values[request.key]
        if isinstance(request, p.MultiGet):
            return [values[key] for key in request.keys]
        if isinstance(request, p.Watch):
            value = values.get(request.key)
            version = self._version(request.key, request.since)
            return version, None if isinstance(value, deque) else value
        return None
