"""A store in one file on a file system that all processes share; no server.

The file is an append-only log (record_log.py) of the requests that changed something. Each
handle applies new records to its own `Keyspace`: the same requests in the same order give
every process the same keys. A change is made under the file's lock: read to the end, carry the
request out, append it. A request that fails or changes nothing is not written.

Waiting: a shared file system reports no changes, so a waiting call looks at the file (one stat)
at intervals that grow from 1 ms to 50 ms. This is the only polling in Rallypoint.

* get, wait, multi_get and watch wait in their own process and write nothing.
* queue_pop takes a value under the lock, and only when there is one. So a process that dies
  while it waits takes no value along; between handles the order of arrival does not count.
* All must see the members of groups: a member is written to the log when it joins and, if it
  gives up, when it leaves. A call is named by its writer and a number; each writer picks out
  the answers to its own. An answer stays in the state until its writer's next group call says
  that it was fetched; otherwise a process that slept through a compaction could lose it.
* A member whose process was killed is removed by the next member from the same host. One that
  died on another host counts until all others give up: a file cannot tell.

Compaction: when the log is large compared with its content, a writer replaces it by one record
with the whole state; the others notice the new file and load it.

Acknowledged writes survive the death of any process, and with `sync=True` also a power loss.
"""

import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from typing import Any

import msgspec

from rallypoint.deadline import Clock, Deadline
from rallypoint.errors import StoreError, StoreTimeoutError
from rallypoint.net import protocol as p
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS, Store
from rallypoint.store.keyspace import PARKED, Keyspace
from rallypoint.store.record_log import RecordLog

COMPACT_BYTES = 1 << 20
COMPACT_RATIO = 4
FIRST_INTERVAL_SECONDS = 0.001
LAST_INTERVAL_SECONDS = 0.05
GIVE_UP_SECONDS = 5.0  # longest wait for the lock when a member times out
ANSWERS_KEPT = 4096  # bounds the answers of writers that died before fetching them

_READS = (p.Get, p.Peek, p.Check, p.Wait, p.NumKeys, p.List, p.MultiGet, p.QueueLen, p.Watch)
_WAITS = (p.Get, p.Wait, p.MultiGet, p.QueuePop, p.Watch)
_Token = tuple[str, int]


class _NotYet(Enum):
    NOT_YET = "not yet"


class _Do(msgspec.Struct, array_like=True, tag="do"):
    """A request that was carried out; `fetched`: calls whose answers the writer has fetched."""

    writer: str
    call: int
    request: p.StoreRequest
    fetched: list[int]


class _Leave(msgspec.Struct, array_like=True, tag="leave"):
    """A member of a group timed out, or is gone."""

    writer: str
    call: int
    timed_out: bool


class _State(msgspec.Struct, array_like=True, tag="state"):
    """Everything: first record of a compacted log. An answer is an index into `results`."""

    keys: dict[str, Any]
    members: list[tuple[str, int, p.Gather]]
    departed: dict[str, dict[int, str]]
    results: list[list[bytes] | None]
    answers: list[tuple[str, int, int]]


_Record = _Do | _Leave | _State
_decoder: msgspec.msgpack.Decoder[_Record] = msgspec.msgpack.Decoder(_Record)
_encode = msgspec.msgpack.Encoder().encode


class _Replica:
    """The state after the records so far."""

    def __init__(self) -> None:
        self.keyspace = Keyspace()
        self.members: dict[_Token, p.Gather] = {}
        self.answers: dict[_Token, Any] = {}

    def apply(self, record: _Record) -> Any:
        """Apply one record; return the request's result, or the error of a leaving member."""
        if isinstance(record, _State):
            return self._load(record)
        token = (record.writer, record.call)
        if isinstance(record, _Leave):
            return self._leave(token, record.timed_out)
        result = self.keyspace.execute(record.request, token)
        if result is PARKED and isinstance(record.request, p.Gather):
            self.members[token] = record.request
        for call in record.fetched:
            self.answers.pop((record.writer, call), None)
        for member, answer in self.keyspace.completed():
            del self.members[member]  # type: ignore[arg-type]
            self.answers[member] = answer  # type: ignore[index]
        while len(self.answers) > ANSWERS_KEPT:
            del self.answers[next(iter(self.answers))]
        return result

    def _leave(self, token: _Token, timed_out: bool) -> StoreTimeoutError | None:
        self.members.pop(token, None)
        if timed_out:
            return self.keyspace.expire(token)
        self.keyspace.cancel(token)
        return None

    def state(self) -> _State:
        """Return the whole state as one record; members that share an answer share it here too."""
        index: dict[int, int] = {}
        results: list[Any] = []
        answers: list[tuple[str, int, int]] = []
        for (writer, call), answer in self.answers.items():
            if id(answer) not in index:
                index[id(answer)] = len(results)
                results.append(answer)
            answers.append((writer, call, index[id(answer)]))
        members = [(writer, call, each) for (writer, call), each in self.members.items()]
        departed = self.keyspace.groups.departed()
        return _State(self.keyspace.snapshot(), members, departed, results, answers)

    def _load(self, state: _State) -> None:
        self.keyspace = Keyspace.restore(state.keys)
        self.members = {(writer, call): each for writer, call, each in state.members}
        for token, request in self.members.items():
            self.keyspace.execute(request, token)
        self.keyspace.groups.restore_departed(state.departed)
        self.answers = {
            (writer, call): state.results[index] for writer, call, index in state.answers
        }


def _intervals() -> Iterator[float]:
    interval = FIRST_INTERVAL_SECONDS
    while True:
        yield interval
        interval = min(interval * 1.5, LAST_INTERVAL_SECONDS)


def _host() -> str:
    """Return a name for the scope of process ids: host name and pid namespace."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return os.uname().nodename + namespace


def _is_dead(writer: str, host: str) -> bool:
    """Return whether the writer's process is known to have ended (on this host only)."""
    where, pid, _ = writer.rsplit("|", 2)
    if where != host:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


class FileStore(Store):
    """A store in the file `path`, shared by all processes that open it.

    Args:
        path: the file; created if missing. All users need read and write access.
        world_size: ignored; torch's FileStore has this parameter.
        timeout: limit of calls without a timeout, in seconds or a timedelta.
        sync: write each change through to the disk, so that it survives a power loss.
        clock: monotonic clock in seconds, for tests.
        sleep: waits for a number of seconds, for tests.

    Raises StoreError if the file cannot be used, naming it and why.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        world_size: int | None = None,
        timeout: float | timedelta = DEFAULT_TIMEOUT_SECONDS,
        *,
        sync: bool = False,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.set_timeout(timeout)
        self._path = os.fspath(path)
        self._sync = sync
        self._clock = clock
        self._sleep = sleep
        self._mutex = threading.Lock()
        self._log = RecordLog(self._path, sync, sleep)
        self._replica = _Replica()
        self._compact_at = COMPACT_BYTES
        self._host = _host()
        self._unique = uuid.uuid4().hex[:12]
        self._calls = itertools.count(1)
        self._fetched: list[int] = []

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._path

    def clone(self) -> "FileStore":
        return FileStore(
            self._path,
            timeout=self._timeout_seconds,
            sync=self._sync,
            clock=self._clock,
            sleep=self._sleep,
        )

    def close(self) -> None:
        """Close the file; later calls of this handle raise StoreError."""
        with self._mutex:
            self._log.close()

    # -- calls ----------------------------------------------------------------------------

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        deadline = Deadline(timeout, self._clock)
        if isinstance(request, p.Gather):
            return self._gather(request, deadline)
        if not isinstance(request, _WAITS):
            return self._attempt(request, deadline)
        at_once = msgspec.structs.replace(request, timeout=0.0)
        for interval in _intervals():
            result = self._attempt(at_once, deadline)
            if result is not _NotYet.NOT_YET:
                return result
            if deadline.expired():
                break
            self._sleep(deadline.capped(interval))
        with self._mutex:
            raise self._replica.keyspace.timeout_error(request)

    def _attempt(self, request: p.StoreRequest, deadline: Deadline) -> Any:
        """Carry out a request now; `NOT_YET` if it has to wait."""
        with self._mutex:
            if isinstance(request, _READS):
                self._catch_up()
                try:
                    return self._replica.keyspace.execute(request, None)
                except StoreTimeoutError:
                    return _NotYet.NOT_YET
            if isinstance(request, p.QueuePop):
                self._catch_up()  # an empty queue needs no lock
                if not self._replica.keyspace.execute(p.QueueLen(request.key), None):
                    return _NotYet.NOT_YET
            with self._log.locked(deadline):
                self._catch_up()
                return self._commit(request)

    def _commit(self, request: p.StoreRequest) -> Any:
        """Carry out a request and write it, under the lock; `NOT_YET` for an empty queue."""
        record = _Do(self._writer(), 0, request, [])
        changes = self._replica.keyspace.changes
        try:
            result = self._replica.apply(record)
        except StoreTimeoutError:
            return _NotYet.NOT_YET
        if self._replica.keyspace.changes != changes:
            self._write(record)
        return result

    def _writer(self) -> str:
        return f"{self._host}|{os.getpid()}|{self._unique}"

    # -- the log --------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Apply the records written since; under the lock, these are all."""
        restarted, bodies = self._log.read()
        if restarted:
            self._replica = _Replica()
        try:
            for body in bodies:
                self._replica.apply(_decoder.decode(body))
        except (msgspec.DecodeError, StoreError) as error:
            self._log.rewind()
            raise StoreError(f"{self._path}: a record cannot be carried out: {error}") from error

    def _write(self, record: _Record) -> None:
        """Append a record that has been applied, under the lock."""
        try:
            self._log.append(_encode(record))
        except StoreError:
            self._log.rewind()  # the applied change is not in the file: load it again
            raise
        if self._log.size > self._compact_at:
            self._compact()

    def _compact(self) -> None:
        if self._log.size <= COMPACT_RATIO * self._replica.keyspace.stored_bytes:
            return
        # If it fails, the call has been written all the same, and the old file stays in use.
        with suppress(StoreError):
            self._log.replace(_encode(self._replica.state()))
        self._compact_at = max(COMPACT_BYTES, COMPACT_RATIO * self._log.size)

    # -- groups ---------------------------------------------------------------------------

    def _gather(self, request: p.Gather, deadline: Deadline) -> Any:
        token = (self._writer(), next(self._calls))
        with self._mutex, self._log.locked(deadline):
            self._catch_up()
            self._remove_dead(request.name)
            record = _Do(*token, request, self._fetched)
            result = self._replica.apply(record)
            self._write(record)
            self._fetched = []
        if result is not PARKED:
            return result
        try:
            return self._await_answer(token, deadline)
        finally:
            if token in self._replica.members:  # interrupted: neither answered nor timed out
                self._leave(token, timed_out=False)

    def _await_answer(self, token: _Token, deadline: Deadline) -> Any:
        for interval in _intervals():
            with self._mutex:
                self._catch_up()
                if token in self._replica.answers:
                    return self._fetch(token)
                if token not in self._replica.members:
                    raise StoreError(f"{self._path}: another member considered this one dead")
            if deadline.expired():
                break
            self._sleep(deadline.capped(interval))
        return self._leave(token, timed_out=True)

    def _fetch(self, token: _Token) -> Any:
        self._fetched.append(token[1])
        return self._replica.answers.pop(token)

    def _leave(self, token: _Token, timed_out: bool) -> Any:
        """Remove our member; return its answer if that came at the last moment."""
        with self._mutex, self._log.locked(Deadline(GIVE_UP_SECONDS, self._clock)):
            self._catch_up()
            if token in self._replica.answers:
                return self._fetch(token)
            record = _Leave(*token, timed_out)
            error = self._replica.apply(record)
            self._write(record)
        if error is not None:
            raise error
        return None

    def _remove_dead(self, name: str) -> None:
        members: list[Any] = self._replica.keyspace.groups.members(name)
        for writer, call in members:
            if _is_dead(writer, self._host):
                record = _Leave(writer, call, False)
                self._replica.apply(record)
                self._write(record)
