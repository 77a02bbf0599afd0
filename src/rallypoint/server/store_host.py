"""The key/value space of one run, hosted: carries requests to the keyspace and answers back.

A request that waits is parked in the keyspace under (client, call) and answered when a change
completes it or its time is over. When a connection is cut its parked calls are cancelled:
they have had no effect, so the client that comes back just sends them again. The results of
calls that did have an effect are kept until the client has acknowledged them, so that a call
that is sent again takes effect exactly once.

With a journal, a `StoreChanges` is told what has changed before anybody is answered.

What clients can make a space keep is limited: keys and bytes by the keyspace, waiting calls
by number and by the bytes of their keys, kept answers by their bytes, and clients that went
without a word by number.
"""

import asyncio
import itertools
from collections import OrderedDict
from typing import Protocol, cast

from rallypoint.errors import StoreError, StoreLimitError, StoreTimeoutError, StoreValueError
from rallypoint.net import protocol as p
from rallypoint.rendezvous import defaults
from rallypoint.server.fault import OnFault, guarded
from rallypoint.server.timer_queue import TimerQueue
from rallypoint.store.keyspace import PARKED, Keyspace
from rallypoint.store.table import ENTRY_BYTES

GONE_KEPT = 10_000  # clients that went without a word; more than that, and the first is let go
RESULT_BYTES = 100  # of a kept answer, beside its own bytes
LONGEST_WAIT_SECONDS = 10 * 365 * 86400.0  # what event loops take; who asks for more waits so
_WAITING = (p.Get, p.Wait, p.MultiGet, p.QueuePop, p.Watch, p.Gather)
_MAY_WAIT = frozenset(_WAITING)
_NAMES_KEYS = (p.Wait, p.MultiGet)
_records = itertools.count(1)  # of all spaces: one that is made anew gives no number again
_REPEATABLE = frozenset(p.REPEATABLE)


class ClientConnection(Protocol):
    """A client's connection, as the space sees it."""

    def send(self, data: bytes) -> None:
        """Write one frame."""

    def send_at_once(self, data: bytes) -> None:
        """Write one frame that tells nothing of the space, before those that are held."""


class StoreChanges(Protocol):
    """Whoever stores a space (ledger.py)."""

    clients: dict[bytes, None]
    """The clients whose kept answers have changed, or who came or went."""

    @property
    def trouble(self) -> str:
        """Why nothing can be stored, "" if that is not so."""

    def mark(self) -> None:
        """Keys or clients have changed."""


class ClientRecord:
    """What a space keeps of one client object, across its connections.

    `record` numbers it among those that the server of epoch `since` has made.
    """

    __slots__ = (
        "connection",
        "gone_at",
        "newest",
        "parked",
        "record",
        "result_bytes",
        "results",
        "since",
    )

    def __init__(self, since: int, record: int) -> None:
        self.since, self.record = since, record
        self.connection: ClientConnection | None = None
        self.results: dict[int, bytes] = {}
        self.result_bytes = self.newest = 0
        self.parked: dict[int, p.StoreRequest] = {}
        self.gone_at: float | None = None

    def keep(self, call_id: int, data: bytes) -> None:
        """Keep an answer until it is acknowledged."""
        self.results[call_id] = data
        self.result_bytes += len(data) + RESULT_BYTES
        if call_id > self.newest:
            self.newest = call_id

    def let_go(self, call: p.Call) -> None:
        """Let go of the answers that the client has, as it says with its next call."""
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
    """One run's keyspace and the clients that use it.

    Args:
        loop: its timers.
        limit_bytes: most bytes of the keyspace, and of the keys that waiting calls name.
        frame_limit: longest answer.
        epoch: the server's.
        waiters_limit: most calls that wait.
        results_limit: most bytes of answers kept for one client.
        **limits: see `Keyspace`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit_bytes: int,
        frame_limit: int = p.FRAME_LIMIT,
        *,
        epoch: int = 0,
        waiters_limit: int = int(defaults.value("waiters_limit")),
        results_limit: int = int(defaults.value("results_limit")),
        **limits: int,
    ) -> None:
        self._loop = loop
        self._frame_limit, self._limit_bytes = frame_limit, limit_bytes
        self._waiters_limit, self._results_limit = waiters_limit, results_limit
        self._named_bytes = 0
        self.keys = Keyspace(limit_bytes, **limits)
        self._deadlines = TimerQueue[tuple[bytes, int]](loop, self._expire)
        self.clients: dict[bytes, ClientRecord] = {}
        self._gone: OrderedDict[bytes, None] = OrderedDict()
        self.calls = 0
        self.broken = ""  # why it answers no call any more
        self.on_fault: OnFault | None = None
        self.changes: StoreChanges | None = None
        self._epoch = epoch

    def connection_of(self, client_id: bytes) -> ClientConnection | None:
        """Return the present connection of a client, None if it has none."""
        client = self.clients.get(client_id)
        return None if client is None else client.connection

    def attach(self, client_id: bytes, connection: ClientConnection) -> bool:
        """A client's connection is there; return whether its last results are still known."""
        known = self.clients.get(client_id)
        if known is None:
            known = self.clients[client_id] = ClientRecord(self._epoch, next(_records))
            known.connection = connection
            self._note(client_id)
            return False
        self._cancel_parked(client_id, known)
        known.connection, known.gone_at = connection, None
        self._gone.pop(client_id, None)
        return True

    def record(self, client_id: bytes) -> tuple[int, int]:
        """Return epoch and number of a client's record: others, once it was forgotten."""
        client = self.clients[client_id]
        return client.since, client.record

    def put_back(
        self, client_id: bytes, since: int, record: int, results: dict[int, bytes]
    ) -> None:
        """Know a client of a server that was; as if its connection had just been cut."""
        client = self.clients[client_id] = ClientRecord(since, record)
        for call_id, data in results.items():
            client.keep(call_id, data)
        client.gone_at = self._loop.time()
        self._gone[client_id] = None

    def _note(self, client_id: bytes) -> None:
        """A client's record is to be stored."""
        if self.changes is not None:
            self.changes.clients[client_id] = None
            self.changes.mark()

    def detach(self, client_id: bytes, connection: ClientConnection, for_good: bool) -> None:
        """A client's connection is gone (ignored when another one has replaced it)."""
        client = self.clients.get(client_id)
        if client is None or client.connection is not connection:
            return
        self._cancel_parked(client_id, client)
        if for_good:
            self._let_go(client_id)
            return
        client.connection, client.gone_at = None, self._loop.time()
        self._gone[client_id] = None
        if len(self._gone) > GONE_KEPT:
            self._let_go(self._gone.popitem(last=False)[0])

    def _let_go(self, client_id: bytes) -> None:
        del self.clients[client_id]
        self._note(client_id)

    def forget(self, before: float) -> None:
        """Drop what is kept for clients that went away before that loop time."""
        while self._gone:
            client_id = next(iter(self._gone))
            gone_at = self.clients[client_id].gone_at
            if gone_at is not None and gone_at >= before:
                break
            del self._gone[client_id]
            self._let_go(client_id)

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
            client.let_go(call)
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
            if client.connection is not None:  # what is held waits for room; this need not
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
        """Answer nothing any more, those who wait included: what is kept may be wrong."""
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
        if self.keys.parked >= self._waiters_limit:
            raise StoreLimitError(
                f"the store has its limit of {self._waiters_limit} waiting calls (waiters_limit)"
            )
        if (
            isinstance(request, _NAMES_KEYS)
            and self._named_bytes + _named_bytes(request) > self._limit_bytes
        ):
            raise StoreLimitError(
                f"the waiting calls name more than {self._limit_bytes} bytes of keys (store_limit)"
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
            if isinstance(result, list):  # all members of a group get the same: encoded once
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
    """Return what a waiting call takes for the keys that it names."""
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
