"""The keys of a store and the requests that do not wait. PURE.

`Table` is the half of `Keyspace` (keyspace.py) that never waits: values, queues, versions, the
byte count, and one method for each `PlainRequest`. `_waited` has the keys for which requests
wait; a change of one of them is noted in `_touched`.

Versions. One counter counts the changes of the whole store; a key's version is its value at the
key's last change. So it grows over deletion and re-creation without a memory of its own. The
versions of the last `DELETED_KEPT` deleted keys are kept; a watcher with the older version of a
key dropped since is told that the key was deleted.

A key holds a value or a queue; a call for the other kind is refused. A queue exists while it
holds a value. Its values are numbered from the change that created it, so no number of a key
is used twice: a host that stores values one by one can tell the new ones and the removed ones.

A host that stores changes sets `unsaved` to a dict and takes the keys that it finds there; a
key that a failing pipeline restored may be among them.

Every request takes effect as a whole or not at all: whatever can fail is checked before the
first change, and a failing pipeline undoes its earlier calls.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Self

from rallypoint.errors import StoreError, StoreLimitError, StoreValueError
from rallypoint.net import protocol as p

DEFAULT_LIMIT_BYTES = 1 << 30
DEFAULT_LIMIT_KEYS = 1 << 40  # no limit of its own
ENTRY_BYTES = 64  # counted for each key, queued value and member, beyond its bytes
DELETED_KEPT = 4096
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1  # what a msgpack reply can carry
_INT_CHARS = len(str(INT_MIN))
_READS = (p.Peek, p.Check, p.NumKeys, p.List, p.QueueLen)


def _written(request: Any) -> list[str]:
    """Return the keys that a request may change."""
    if isinstance(request, p.MultiSet):
        return [key for key, _ in request.pairs]
    return [] if isinstance(request, _READS) else [request.key]


def _decimal(key: str, text: bytes) -> int:
    """Return the integer that `add` finds under a key (ASCII decimal, 64 bits)."""
    if text.isdigit() and len(text) < _INT_CHARS:
        return int(text)
    digits = text[1:] if text[:1] in (b"-", b"+") else text
    if not digits.isdigit() or len(text) > _INT_CHARS:
        raise StoreValueError(f"add: key {key!r} holds {text[:40]!r}, which is no 64-bit integer")
    return int(text)


class Table:
    """The keys of one store, and every request that does not wait.

    Args:
        limit_bytes: most bytes kept; keys, values and `ENTRY_BYTES` for each are counted.
        limit_keys: most keys; an entry takes more memory than its counted bytes.
        key_bytes: longest key, in bytes.
    """

    def __init__(
        self,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        *,
        limit_keys: int = DEFAULT_LIMIT_KEYS,
        key_bytes: int = p.KEY_LIMIT,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._limit_keys = limit_keys
        self._key_bytes = key_bytes
        self._bytes = 0
        self._values: dict[str, bytes | deque[bytes]] = {}
        self._change = 0
        self._versions: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self._forgotten = 0  # the newest version among deleted keys no longer kept
        self._waited: dict[str, Any] = {}
        self._touched: dict[str, None] = {}
        self._first: dict[str, int] = {}  # number of the first value of each queue
        self.unsaved: dict[str, None] | None = None
        self._methods: dict[type, Callable[[Any, Hashable], Any]] = {
            p.Set: self._set, p.Peek: self._peek, p.Add: self._add, p.Check: self._check,
            p.CompareSet: self._compare_set, p.CompareSwap: self._compare_swap,
            p.Delete: self._delete, p.NumKeys: self._num_keys, p.List: self._list,
            p.MultiSet: self._multi_set, p.Append: self._append,
            p.QueuePush: self._queue_push, p.QueueLen: self._queue_len,
            p.Pipeline: self._pipeline,
        }  # fmt: skip

    @property
    def stored_bytes(self) -> int:
        """Bytes counted against the limit."""
        return self._bytes

    @property
    def changes(self) -> int:
        """Number of changes of keys; equal numbers mean equal keys."""
        return self._change

    def snapshot(self) -> dict[str, Any]:
        """Return all keys as plain data, without parked requests and groups."""
        plain: list[Any] = []
        queues: list[Any] = []
        for key, value in self._values.items():
            version = self._versions[key]
            if isinstance(value, deque):
                queues.append([key, version, list(value)])
            else:
                plain.append([key, version, value])
        return {
            "change": self._change,
            "forgotten": self._forgotten,
            "values": plain,
            "queues": queues,
            "deleted": [[key, version] for key, version in self._deleted.items()],
        }

    @classmethod
    def restore(cls, data: dict[str, Any], limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Self:
        """Return a keyspace with the keys of a `snapshot`."""
        space = cls(limit_bytes)
        space.resume(data["change"], data["forgotten"])
        space._deleted = dict(data["deleted"])
        for key, version, value in data["values"]:
            space.put_back(key, version, value)
        for key, version, values in data["queues"]:
            space.put_back(key, version, deque(values))
        return space

    def resume(self, change: int, forgotten: int) -> None:
        """Continue the count of an earlier store; must come first.

        Args:
            change: its `changes`.
            forgotten: the newest version of a deleted key that it no longer kept.
        """
        self._change, self._forgotten = change, forgotten

    def put_back(self, key: str, version: int, value: bytes | deque[bytes], first: int = 0) -> None:
        """Restore a key of an earlier store; checks no limit and answers no watcher."""
        self._values[key], self._versions[key] = value, version
        size = len(value)
        if isinstance(value, deque):
            self._first[key] = first
            size = sum(len(each) + ENTRY_BYTES for each in value)
        self._bytes += len(key) + ENTRY_BYTES + size

    def entry(self, key: str) -> tuple[int, bytes | deque[bytes], int] | None:
        """Return version, value and number of the first value of a key, as `put_back` needs.

        None: the key does not exist.
        """
        value = self._values.get(key)
        return None if value is None else (self._versions[key], value, self._first.get(key, 0))

    def names(self) -> list[str]:
        """Return all keys."""
        return list(self._values)

    # -- keys and room --------------------------------------------------------------------

    def _value(self, key: str) -> bytes | None:
        value = self._values.get(key)
        if isinstance(value, deque):
            raise StoreValueError(f"key {key!r} holds a queue of {len(value)}, not a value")
        return value

    def _queue(self, key: str) -> deque[bytes] | None:
        value = self._values.get(key)
        if isinstance(value, bytes):
            raise StoreValueError(f"key {key!r} holds a value ({value[:40]!r}), not a queue")
        return value

    def _take_room(self, key: str, growth: int) -> None:
        total = self._bytes + growth
        if total > self._limit_bytes and growth > 0:
            raise StoreLimitError(
                f"key {key!r}: would bring the store to {total} bytes, over its limit of "
                f"{self._limit_bytes} (setting: limit_bytes; of a server: store_limit)"
            )
        self._bytes = total

    def _check_key(self, key: str) -> None:
        # A character has at most 4 bytes, so most keys pass without being encoded.
        limit = self._key_bytes
        if len(key) * 4 > limit and len(key.encode()) > limit:
            raise StoreLimitError(
                f"key {key[:40]!r}... has {len(key.encode())} bytes, "
                f"over the limit of {limit} (key_limit)"
            )

    def _check_new(self, key: str, more: int = 1) -> None:
        """Check that a new key fits; `more` new keys in all."""
        self._check_key(key)
        if len(self._values) + more > self._limit_keys:
            raise StoreLimitError(
                f"key {key!r}: the store has its limit of {self._limit_keys} keys (keys_limit)"
            )

    def _write(self, key: str, old: bytes | None, value: bytes) -> None:
        if old is None:
            self._check_new(key)
            self._take_room(key, len(key) + ENTRY_BYTES + len(value))
        else:
            self._take_room(key, len(value) - len(old))
        self._values[key] = value
        self._changed(key)

    def _changed(self, key: str) -> None:
        self._change = self._versions[key] = self._change + 1
        if self._deleted:
            self._deleted.pop(key, None)
        if key in self._waited:
            self._touched[key] = None
        if self.unsaved is not None:
            self.unsaved[key] = None

    def _drop(self, key: str) -> bool:
        value = self._values.pop(key, None)
        if value is None:
            return False
        size = len(value)
        if isinstance(value, deque):
            del self._first[key]
            size = sum(len(each) + ENTRY_BYTES for each in value)
        self._bytes -= len(key) + ENTRY_BYTES + size
        self._changed(key)
        self._deleted[key] = self._versions.pop(key)
        if len(self._deleted) > DELETED_KEPT:
            self._forgotten = self._deleted.pop(next(iter(self._deleted)))
        return True

    def _version(self, key: str, since: int) -> int:
        version = self._versions.get(key) or self._deleted.get(key)
        if version is None:
            # A client that knows a version has seen the key: it was deleted and dropped since.
            return self._forgotten if since > 0 else 0
        return version

    # -- plain requests -------------------------------------------------------------------

    def _set(self, request: p.Set, _token: Hashable) -> None:
        key = request.key
        self._write(key, self._value(key), request.value)

    def _peek(self, request: p.Peek, _token: Hashable) -> bytes | None:
        return self._value(request.key)

    def _add(self, request: p.Add, _token: Hashable) -> int:
        key = request.key
        old = self._value(key)
        total = request.amount if old is None else _decimal(key, old) + request.amount
        if not INT_MIN <= total <= INT_MAX:
            raise StoreValueError(f"add: key {key!r} would become {total}, beyond 64 bits")
        self._write(key, old, b"%d" % total)
        return total

    def _compare_set(self, request: p.CompareSet, _token: Hashable) -> bytes | None:
        key, expected = request.key, request.expected
        old = self._value(key)
        if old == expected or (old is None and not expected):
            self._write(key, old, request.desired)
            return request.desired
        return old

    def _compare_swap(self, request: p.CompareSwap, _token: Hashable) -> tuple[bool, bytes | None]:
        old = self._value(request.key)
        if old != request.expected:
            return False, old
        self._write(request.key, old, request.desired)
        return True, request.desired

    def _check(self, request: p.Check, _token: Hashable) -> bool:
        values = self._values
        for key in request.keys:  # noqa: SIM110 - all() costs twice as much, and this is hot
            if key not in values:
                return False
        return True

    def _delete(self, request: p.Delete, _token: Hashable) -> bool:
        return self._drop(request.key)

    def _num_keys(self, request: p.NumKeys, _token: Hashable) -> int:
        prefix = request.prefix
        if not prefix:
            return len(self._values)
        return sum(key.startswith(prefix) for key in self._values)

    def _list(self, request: p.List, _token: Hashable) -> list[str]:
        return sorted(key for key in self._values if key.startswith(request.prefix))

    def _multi_set(self, request: p.MultiSet, _token: Hashable) -> None:
        final = dict(request.pairs)
        growth = new = 0
        for key, value in final.items():
            old = self._value(key)
            if old is None:
                new += 1
                self._check_new(key, new)
                growth += len(key) + ENTRY_BYTES + len(value)
            else:
                growth += len(value) - len(old)
        self._take_room(next(iter(final), ""), growth)
        for key, value in final.items():
            self._values[key] = value
            self._changed(key)

    def _append(self, request: p.Append, _token: Hashable) -> None:
        key = request.key
        old = self._value(key)
        self._write(key, old, request.value if old is None else old + request.value)

    def _queue_push(self, request: p.QueuePush, _token: Hashable) -> None:
        key, value = request.key, request.value
        queue = self._queue(key)
        if queue is None:
            self._check_new(key)
            self._take_room(key, len(key) + len(value) + 2 * ENTRY_BYTES)
            self._values[key], self._first[key] = deque((value,)), self._change
        else:
            self._take_room(key, len(value) + ENTRY_BYTES)
            queue.append(value)
        self._changed(key)

    def _take(self, key: str, queue: deque[bytes]) -> bytes:
        if len(queue) == 1:
            self._drop(key)
            return queue[0]
        value = queue.popleft()
        self._first[key] += 1
        self._bytes -= len(value) + ENTRY_BYTES
        self._changed(key)
        return value

    def _queue_len(self, request: p.QueueLen, _token: Hashable) -> int:
        return len(self._queue(request.key) or ())

    # -- pipelines ------------------------------------------------------------------------

    def _pipeline(self, request: p.Pipeline, token: Hashable) -> list[Any]:
        undo: list[Callable[[], None]] = []
        results: list[Any] = []
        size, change = self._bytes, self._change
        for each in request.requests:
            undo.extend(self._undo(key) for key in _written(each))
            try:
                results.append(self._methods[type(each)](each, token))
            except StoreError as error:
                for restore in reversed(undo):
                    restore()
                self._bytes, self._change = size, change
                self._touched.clear()
                where = f"call {len(results) + 1} of {len(request.requests)} in the pipeline"
                raise type(error)(f"{where} (none took effect): {error}") from error
        return results

    def _undo(self, key: str) -> Callable[[], None]:
        """Return a function that restores the present state of a key."""
        value = self._values.get(key)
        length = len(value) if isinstance(value, deque) else 0
        version, deleted = self._versions.get(key), self._deleted.get(key)
        first = self._first.get(key)

        def restore() -> None:
            # A pipeline only pushes: without its new tail, a queue is as before.
            while isinstance(value, deque) and len(value) > length:
                value.pop()
            entries: tuple[tuple[dict[str, Any], Any], ...] = (
                (self._values, value),
                (self._versions, version),
                (self._deleted, deleted),
                (self._first, first),
            )
            for table, entry in entries:
                if entry is None:
                    table.pop(key, None)
                else:
                    table[key] = entry

        return restore
