"""Hosts the key/value store of one run: carries calls to the keyspace and answers back.

A call that waits is parked in the keyspace under (client, call) and answered when a change
completes it or its time is up. When a connection is lost its parked calls are cancelled: they
have had no effect, so the client sends them again when it is back. The answers of calls that
did have an effect are kept until the client acknowledges them, so that a call that is sent
again takes effect exactly once.

With a journal, `StoreChanges` learns of every change before anybody is answered.

What clients can make a store keep is limited: keys and bytes by the keyspace, waiting calls by
number and by the bytes of their keys, kept answers by their bytes, and clients that are away by
number.
"""

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, cast

from rallypoint.errors import StoreError, StoreLimitError, StoreTimeoutError, StoreValueError
from rallypoint.net import protocol as p
from rallypoint.server.fault import OnFault, guarded
from rallypoint.server.options import Options
from rallypoint.store.keyspace import PARKED, Keyspace
from rallypoint.store.table import ENTRY_BYTES

AWAY_KEPT = 10_000  # clients that lost their connection; above that the first is forgotten
RESULT_BYTES = 100  # of a kept answer, beside its own bytes
LONGEST_WAIT_SECONDS = 10 * 365 * 86400.0  # what event loops take
SPARE = 64  # entries of removed keys that are not worth clearing away
SOONEST_SECONDS = 0.001  # the resolution of event loops
_WAITING = (p.Get, p.Wait, p.MultiGet, p.QueuePop, p.Watch, p.Gather)
_MAY_WAIT = frozenset(_WAITING)
_NAMES_KEYS = (p.Wait, p.MultiGet)
_record_numbers = itertools.count(1)  # of all stores: one that is made again repeats no number
_REPEATABLE = frozenset(p.REPEATABLE)
K = TypeVar("K", bound=Hashable)


class StoreConnection(Protocol):
    """A client's connection, as the store sees it."""

    def send(self, data: bytes) -> None:
        """Write one frame."""

    def send_at_once(self, data: bytes) -> None:
        """Write one frame that tells nothing about the store, before those that are held."""


class StoreChanges(Protocol):
    """Records what has changed in a store, to be committed (journal/records.py)."""

    clients: dict[bytes, None]
    """The clients whose records have changed."""

    @property
    def trouble(self) -> str:
        """Why nothing can be committed, "" if it can."""

    def mark(self) -> None:
        """Keys or clients have changed."""


class TimerQueue(Generic[K]):
    """Many deadlines on one timer of the loop; calls `on_due` with each key whose time is up.

    Nearly all calls that wait are answered long before their time is up. A loop timer for each
    would be made and cancelled for nothing; here each is an entry of a heap, which is skipped
    once its key is removed. There are never more than twice as many entries as keys.

    Args:
        loop: its clock, and its timer.
        on_due: called from the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[K], None]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K, seconds: float) -> None:
        """Set the deadline of a new key to so many seconds from now."""
        due = self._due[key] = self._loop.time() + seconds
        self._count += 1
        heapq.heappush(self._heap, (due, self._count, key))
        if due < self._timer_at:
            self._set_timer(due, seconds)

    def remove(self, key: K) -> None:
        """Remove a key, if it is there."""
        self._due.pop(key, None)
        if not self._due:
            self._heap.clear()
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = None, float("inf")
        elif len(self._heap) > 2 * len(self._due) + SPARE:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def _set_timer(self, due: float, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now, heap = self._loop.time(), self._heap
        while heap and (heap[0][0] <= now or self._due.get(heap[0][2]) != heap[0][0]):
            due, _, key = heapq.heappop(heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._on_due(key)
                heap = self._heap
        if heap and heap[0][0] < self._timer_at:
            self._set_timer(heap[0][0], max(SOONEST_SECONDS, heap[0][0] - now))


@dataclass(slots=True, eq=False)
class ClientRecord:
    """What a store keeps of one client object, across its connections.

    Args:
        since: epoch of the server that made the record.
        record: its number among the records of that server.
    """

    since: int
    record: int
    connection: StoreConnection | None = None
    results: dict[int, bytes] = field(default_factory=dict)
    result_bytes: int = 0
    newest: int = 0
    parked: dict[int, p.StoreRequest] = field(default_factory=dict)
    away_since: float | None = None

    def keep(self, call_id: int, data: bytes) -> None:
        """Keep an answer until it is acknowledged."""
        self.results[call_id] = data
        self.result_bytes += len(data) + RESULT_BYTES
        if call_id > self.newest:
            self.newest = call_id

    def drop_acknowledged(self, call: p.Call) -> None:
        """Drop the answers that the client acknowledges with its next call."""
        if self.newest < call.low:
            self.results.clear()
            self.result_bytes = 0
            return
        for number in [number for number in self.results if number < call.low]:
            self._drop(number)
        for number in call.acked:
            self._drop(number)

    def _drop(self, call_id: int) -> None:
        data = self.results.pop(call_id, None)
        if data is not None:
            self.result_bytes -= len(data) + RESULT_BYTES


class StoreHost:
    """One run's keyspace, and the clients that use it.

    Args:
        loop: its timers.
        options: the limits of the server.
        epoch: the server's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, options: Options, epoch: int = 0) -> None:
        self._loop = loop
        self._options = options
        self._results_limit = options.results_limit
        self._frame_limit = options.frame_limit
        self._epoch = epoch
        self._named_bytes = 0  # of the keys that waiting calls name
        self.keys = Keyspace(
            options.store_limit, limit_keys=options.keys_limit, key_bytes=options.key_limit
        )
        self._deadlines = TimerQueue[tuple[bytes, int]](loop, self._expire)
        self.clients: dict[bytes, ClientRecord] = {}
        self._away: OrderedDict[bytes, None] = OrderedDict()
        self.calls = 0
        self.broken = ""  # why it answers no call any more
        self.on_fault: OnFault | None = None
        self.changes: StoreChanges | None = None

    def connection_of(self, client_id: bytes) -> StoreConnection | None:
        """Return the present connection of a client, None if it has none."""
        client = self.clients.get(client_id)
        return None if client is None else client.connection

    def attach(self, client_id: bytes, connection: StoreConnection) -> bool:
        """A client has connected; return whether its last answers are still known."""
        known = self.clients.get(client_id)
        if known is None:
            known = self.clients[client_id] = ClientRecord(self._epoch, next(_record_numbers))
            known.connection = connection
            self._note(client_id)
            return False
        self._cancel_parked(client_id, known)
        known.connection, known.away_since = connection, None
        self._away.pop(client_id, None)
        return True

    def record(self, client_id: bytes) -> tuple[int, int]:
        """Return epoch and number of a client's record; both differ once it was forgotten."""
        client = self.clients[client_id]
        return client.since, client.record

    def put_back(
        self, client_id: bytes, since: int, record: int, results: dict[int, bytes]
    ) -> None:
        """Restore a client of an earlier server, as if it had just lost its connection."""
        client = self.clients[client_id] = ClientRecord(since, record)
        for call_id, data in results.items():
            client.keep(call_id, data)
        client.away_since = self._loop.time()
        self._away[client_id] = None

    def _note(self, client_id: bytes) -> None:
        """A client's record is to be stored."""
        if self.changes is not None:
            self.changes.clients[client_id] = None
            self.changes.mark()

    def detach(self, client_id: bytes, connection: StoreConnection, for_good: bool) -> None:
        """A client's connection is closed (ignored when another one has replaced it)."""
        client = self.clients.get(client_id)
        if client is None or client.connection is not connection:
            return
        self._cancel_parked(client_id, client)
        if for_good:
            self._forget(client_id)
            return
        client.connection, client.away_since = None, self._loop.time()
        self._away[client_id] = None
        if len(self._away) > AWAY_KEPT:
            self._forget(self._away.popitem(last=False)[0])

    def _forget(self, client_id: bytes) -> None:
        del self.clients[client_id]
        self._note(client_id)

    def forget(self, before: float) -> None:
        """Drop what is kept for clients that are away since before that loop time."""
        while self._away:
            client_id = next(iter(self._away))
            away_since = self.clients[client_id].away_since
            if away_since is not None and away_since >= before:
                break
            del self._away[client_id]
            self._forget(client_id)

    @property
    def is_unused(self) -> bool:
        """Whether nothing would be lost with it: no client, no key."""
        return not self.clients and (self.keys.is_empty or bool(self.broken))

    def call(self, client_id: bytes, call: p.Call) -> None:
        """Carry out one call and answer it, now or when it is complete."""
        client = self.clients.get(client_id)
        if client is None:
            return  # another connection of this client has said goodbye for good
        if client.results:
            client.drop_acknowledged(call)
            known = client.results.get(call.id)
            if known is not None:
                self._answer(client, known)
                return
        if not self.broken:
            self._execute(client_id, client, call)
        if self.broken:
            self._answer(client, p.frame(p.Failure(call.id, p.FAIL_FAULT, self.broken)))

    @guarded
    def _execute(self, client_id: bytes, client: ClientRecord, call: p.Call) -> None:
        self.calls += 1
        request, kind = call.request, type(call.request)
        if self.changes is not None and self.changes.trouble and kind not in _REPEATABLE:
            if client.connection is not None:  # held frames wait for room; this one need not
                refusal = _failure(call.id, StoreLimitError(self.changes.trouble))
                client.connection.send_at_once(refusal)
            return
        try:
            if kind in _MAY_WAIT or client.result_bytes > self._results_limit:
                self._check_room(client, request)
            result = self.keys.execute(request, (client_id, call.id))
        except StoreError as error:
            self._answer(client, _failure(call.id, error))
            return
        if result is PARKED:
            self._park(client_id, client, call.id, request)
        else:
            data = self._reply(call.id, result)
            if kind not in _REPEATABLE:
                client.keep(call.id, data)
                self._note(client_id)
            if client.connection is not None:
                client.connection.send(data)
        if self.keys.done:
            self._complete()

    def fail(self, why: str) -> None:
        """Answer nothing any more, waiting calls included: the contents may be wrong."""
        self.broken = why
        for client_id, client in self.clients.items():
            waiting = list(client.parked)
            self._cancel_parked(client_id, client)
            for call_id in waiting:
                self._answer(client, p.frame(p.Failure(call_id, p.FAIL_FAULT, why)))

    def _check_room(self, client: ClientRecord, request: p.StoreRequest) -> None:
        if client.result_bytes > self._results_limit:
            raise StoreLimitError(
                f"{client.result_bytes} bytes of answers of this client are kept, above the limit "
                f"of {self._results_limit} (results_limit): it has not acknowledged them"
            )
        if not isinstance(request, _WAITING) or not request.timeout > 0:
            return
        options = self._options
        if self.keys.parked >= options.waiters_limit:
            raise StoreLimitError(
                f"the store has its limit of {options.waiters_limit} waiting calls (waiters_limit)"
            )
        if (
            isinstance(request, _NAMES_KEYS)
            and self._named_bytes + _named_bytes(request) > options.store_limit
        ):
            raise StoreLimitError(
                f"the waiting calls name more than {options.store_limit} bytes of keys "
                "(store_limit)"
            )

    def _park(
        self, client_id: bytes, client: ClientRecord, call_id: int, request: p.StoreRequest
    ) -> None:
        if isinstance(request, _WAITING) and call_id not in client.parked:
            wait = min(request.timeout, LONGEST_WAIT_SECONDS)
            self._deadlines.add((client_id, call_id), wait)
            client.parked[call_id] = request
            self._named_bytes += _named_bytes(request)

    def _complete(self) -> None:
        shared: object = None
        for token, result in self.keys.completed():
            client_id, call_id = cast(tuple[bytes, int], token)
            if isinstance(result, list):  # the same for all members of a group: encoded once
                if result is not shared:
                    shared, encoded = result, p.encoded(result)
                result = encoded
            client = self.clients.get(client_id)
            if client is None:
                continue
            data = self._reply(call_id, result)
            parked = client.parked.pop(call_id, None)
            if parked is not None:
                self._deadlines.remove((client_id, call_id))
                self._named_bytes -= _named_bytes(parked)
                if type(parked) not in _REPEATABLE:
                    client.keep(call_id, data)
                    self._note(client_id)
            self._answer(client, data)

    @guarded
    def _expire(self, token: tuple[bytes, int]) -> None:
        client_id, call_id = token
        client = self.clients.get(client_id)
        parked = None if client is None else client.parked.pop(call_id, None)
        if client is None or parked is None:
            return
        self._named_bytes -= _named_bytes(parked)
        error = self.keys.expire(token)
        if error is not None:
            self._answer(client, _failure(call_id, error))

    def _cancel_parked(self, client_id: bytes, client: ClientRecord) -> None:
        for call_id, request in client.parked.items():
            self._deadlines.remove((client_id, call_id))
            self._named_bytes -= _named_bytes(request)
            self.keys.cancel((client_id, call_id))
        client.parked.clear()

    def _reply(self, call_id: int, result: object) -> bytes:
        data = p.frame(p.Reply(call_id, result))
        if len(data) > self._frame_limit:
            text = (
                f"an answer of {len(data)} bytes is above the limit of {self._frame_limit} bytes; "
                "ask for fewer keys at a time"
            )
            return _failure(call_id, StoreLimitError(text))
        return data

    @staticmethod
    def _answer(client: ClientRecord, data: bytes) -> None:
        if client.connection is not None:
            client.connection.send(data)


def _named_bytes(request: p.StoreRequest) -> int:
    """Return the bytes that a waiting call takes for the keys that it names."""
    if isinstance(request, _NAMES_KEYS):
        return sum(map(len, request.keys)) + ENTRY_BYTES * len(request.keys)
    return 0  # a single key has its own limit, a group's value is counted by the keyspace


def _failure(call_id: int, error: StoreError) -> bytes:
    codes: dict[type[StoreError], str] = {
        StoreTimeoutError: p.FAIL_TIMEOUT,
        StoreLimitError: p.FAIL_LIMIT,
        StoreValueError: p.FAIL_VALUE,
    }
    return p.frame(p.Failure(call_id, codes.get(type(error), p.FAIL_VALUE), str(error)))
