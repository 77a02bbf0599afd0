"""A whole store on any engine (a database such as etcd or Redis), by the rules of `Keyspace`.

A request names its keys. They are read and applied to a `Keyspace` of their own; the changes are
committed on condition that the keys are still as read. If not, the answer has the present
entries, and the request is applied again. So each call means the same as on every other store,
errors included, and an engine needs to know nothing of it. A write starts from the entries that
this handle saw last: without a concurrent writer it costs one round trip.

A waiting call waits for one key at a time, and the engine wakes it. Values and queues are entries
`k/KEY`: a byte for the kind, then the bytes or the whole queue (so a long queue is slow: each push
and pop writes all of it). A deleted key leaves a mark `t/KEY` for its watchers, whose version is
that of the deletion; it expires after a while.

groups.py has the groups. Concurrent writes to one key (a counter, a barrier) are decided one
by one, each in a round trip: this is meant for tens of clients a key, not thousands.
"""

import random
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

import msgspec

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Engine, Entries, Entry, version_of
from rallypoint.engines.groups import GroupCalls
from rallypoint.errors import StoreError, StoreTimeoutError, StoreValueError
from rallypoint.net import protocol as p
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS, Store
from rallypoint.store.keyspace import Keyspace

RETRY_SECONDS = 30.0  # for an unreachable engine, in calls that do not wait
MARK_SECONDS = 3600.0  # how long the deletion of a key is remembered
_KNOWN_KEYS, _KNOWN_BYTES = 256, 64 * 1024  # cached by a handle, and the largest value cached
_PAUSE_FIRST_SECONDS, _PAUSE_MOST_SECONDS = 0.0005, 0.05
_VALUE, _QUEUE = b"v", b"q"
_KEYS, _MARKS = "k/", "t/"
_READS = (p.Get, p.Peek, p.Check, p.Wait, p.MultiGet, p.QueueLen)
_WAITS = (p.Get, p.Wait, p.MultiGet, p.QueuePop)


def keys_of(request: Any) -> list[str]:
    """Return the keys of a request, each once."""
    if isinstance(request, p.Pipeline):
        return list(dict.fromkeys(key for each in request.requests for key in keys_of(each)))
    if isinstance(request, p.MultiSet):
        return list(dict.fromkeys(key for key, _ in request.pairs))
    if isinstance(request, p.NumKeys | p.List):
        raise StoreValueError(f"{type(request).__name__} cannot be part of a pipeline here")
    if hasattr(request, "keys"):
        return list(dict.fromkeys(request.keys))
    return [request.key]


def _applied(entries: Mapping[str, Entry | None], where: str) -> Keyspace:
    """Return a keyspace with these entries, before its first change."""
    values: list[Any] = []
    queues: list[Any] = []
    for name, entry in entries.items():
        if entry is None:
            continue
        kind, body = entry.value[:1], entry.value[1:]
        if kind == _VALUE:
            values.append((name, 0, body))
        elif kind == _QUEUE:
            queues.append((name, 0, msgspec.msgpack.decode(body, type=list[bytes])))
        else:
            raise StoreError(f"{where}: the key {name!r} holds a value that no store has written")
    return Keyspace.restore(
        {"change": 0, "forgotten": 0, "values": values, "queues": queues, "deleted": []}
    )


def _changed(space: Keyspace) -> dict[str, bytes | None]:
    """Return what requests changed in a keyspace of `_applied`, as entries."""
    if not space.changes:
        return {}
    data = space.snapshot()
    changes: dict[str, bytes | None] = {key: None for key, _ in data["deleted"]}
    changes |= {key: _VALUE + value for key, version, value in data["values"] if version}
    changes |= {
        key: _QUEUE + msgspec.msgpack.encode(values)
        for key, version, values in data["queues"]
        if version
    }
    return changes


class EngineStore(Store):
    """A store on an engine.

    Args:
        engine: the database; closed with the store.
        timeout: limit of calls without a timeout, in seconds or a timedelta.
    """

    def __init__(
        self, engine: Engine, timeout: float | timedelta = DEFAULT_TIMEOUT_SECONDS
    ) -> None:
        self.set_timeout(timeout)
        self.engine = engine
        self._groups = GroupCalls(engine)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Entry | None] = OrderedDict()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.engine.where!r})"

    def clone(self) -> Self:
        twin = type(self).__new__(type(self))
        EngineStore.__init__(twin, self.engine.clone(), self._timeout_seconds)
        return twin

    def close(self) -> None:
        self.engine.close()

    # -- requests -------------------------------------------------------------------------

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        if isinstance(request, p.Gather):
            return self._groups.gather(request, Deadline(timeout))
        if isinstance(request, p.Watch):
            return self._watch(request, Deadline(timeout))
        if isinstance(request, _WAITS):
            return self._wait_for(request, Deadline(timeout))
        deadline = Deadline(min(timeout, RETRY_SECONDS))
        if isinstance(request, p.NumKeys | p.List):
            return self._scan(request, deadline)
        return self._carry_out(request, deadline, None)

    def _scan(self, request: p.NumKeys | p.List, deadline: Deadline) -> Any:
        keys = self.engine.scan(_KEYS + request.prefix, deadline)
        if isinstance(request, p.NumKeys):
            return len(keys)
        return sorted(key[len(_KEYS) :] for key in keys)

    def _carry_out(self, request: Any, deadline: Deadline, fresh: Entries | None) -> Any:
        """Apply a request to the values of its keys, and commit the changes."""
        keys = keys_of(request)
        if fresh is None and isinstance(request, _READS):
            fresh = self._read(keys, deadline)
        entries, certain = (fresh, True) if fresh is not None else self._guess(keys)
        for pause in _pauses():
            space = _applied({key: entries.get(key) for key in keys}, self.engine.where)
            try:
                result = space.execute(request, None)
                changes = _changed(space)
            except StoreError:
                if certain:
                    raise
                changes = {}
            if changes:
                done, entries = self._commit(keys, entries, changes, deadline)
                if done:
                    return result
                self._pause(pause, deadline, request)
            elif certain:
                return result
            else:
                entries = self._read(keys, deadline)
            certain = True
        raise AssertionError("unreachable")

    def _commit(
        self,
        keys: Sequence[str],
        entries: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
    ) -> tuple[bool, Entries]:
        """Write changes; return whether that succeeded, and if not the present entries."""
        expected = {_KEYS + key: entries.get(key) for key in keys}
        writes = {_KEYS + key: value for key, value in changes.items()}
        marks = [_MARKS + key for key, value in changes.items() if value is None]
        if marks:
            expected |= self._marks(marks, deadline)
            writes |= dict.fromkeys(marks, b"")
        commit = self.engine.commit(expected, writes, deadline, dict.fromkeys(marks, MARK_SECONDS))
        if not commit.done:
            present = _named(commit.present)
            self._remember(keys, present)
            return False, present
        now: dict[str, Entry | None] = {
            key: None
            if value is None
            else Entry(commit.version, value, commit.details.get(_KEYS + key))
            for key, value in changes.items()
        }
        self._remember(list(now), now)
        return True, {}

    def _marks(self, marks: Sequence[str], deadline: Deadline) -> dict[str, Entry | None]:
        found = self.engine.read(marks, deadline)
        return {mark: found.get(mark) for mark in marks}

    def _read(self, keys: Sequence[str], deadline: Deadline) -> Entries:
        found = _named(self.engine.read([_KEYS + key for key in keys], deadline))
        self._remember(keys, found)
        return found

    # -- a cache of entries, which every commit verifies ------------------------------------

    def _guess(self, keys: Sequence[str]) -> tuple[Entries, bool]:
        with self._lock:
            known = {key: self._known.get(key) for key in keys}
        return {key: entry for key, entry in known.items() if entry is not None}, not keys

    def _remember(self, keys: Sequence[str], found: Mapping[str, Entry | None]) -> None:
        with self._lock:
            for key in keys:
                entry = found.get(key)
                self._known.pop(key, None)
                if entry is not None and len(entry.value) <= _KNOWN_BYTES:
                    self._known[key] = entry
            while len(self._known) > _KNOWN_KEYS:
                self._known.popitem(last=False)

    def _pause(self, seconds: float, deadline: Deadline, request: Any) -> None:
        if deadline.expired():
            raise StoreTimeoutError(
                f"{type(request).__name__.lower()} on {keys_of(request)[:3]}: others wrote first "
                f"all the time for {deadline.timeout:g} s"
            )
        threading.Event().wait(deadline.capped(seconds))

    # -- waiting --------------------------------------------------------------------------

    def _wait_for(self, request: Any, deadline: Deadline) -> Any:
        keys = keys_of(request)
        at_once = msgspec.structs.replace(request, timeout=0.0)
        at = 0
        while True:
            patient = Deadline(max(deadline.remaining(), min(1.0, deadline.timeout)))
            found = self._read(keys, patient)
            try:
                return self._carry_out(at_once, patient, found)
            except StoreTimeoutError:
                space = _applied({key: found.get(key) for key in keys}, self.engine.where)
                if deadline.expired():
                    raise space.timeout_error(request) from None
            order = (i % len(keys) for i in range(at, at + len(keys)))
            at = next((i for i in order if keys[i] not in found), at)
            self.engine.wait(_KEYS + keys[at], found.get(keys[at]), deadline)

    def _watch(self, request: p.Watch, deadline: Deadline) -> tuple[int, bytes | None]:
        key, mark = _KEYS + request.key, _MARKS + request.key
        while True:
            found = self.engine.read([key, mark], deadline)
            entry = found.get(key)
            version = version_of(entry or found.get(mark))
            if version == 0 < request.since:
                # The deletion of a key that was seen is no longer recorded: record it again.
                self.engine.commit(
                    {key: None, mark: None}, {mark: b""}, deadline, {mark: MARK_SECONDS}
                )
                continue
            if version > request.since:
                is_value = entry is not None and entry.value[:1] == _VALUE
                return version, entry.value[1:] if is_value and entry else None
            if deadline.expired():
                raise _applied({}, self.engine.where).timeout_error(request)
            self.engine.wait(key, entry, deadline)


def _named(found: Entries) -> Entries:
    """Return entries by the store's own keys, without marks."""
    return {key[len(_KEYS) :]: entry for key, entry in found.items() if key.startswith(_KEYS)}


def _pauses() -> Iterator[float]:
    most = _PAUSE_FIRST_SECONDS
    while True:
        yield random.uniform(0, most)  # noqa: S311 - jitter
        most = min(_PAUSE_MOST_SECONDS, most * 2)
