"""The key/value space of one run, hosted: carries requests to the keyspace and answers back.

A request that waits is parked in the keyspace under (client, call) and answered when a change
completes it or its time is over. When a connection is cut its parked calls are cancelled:
they have had no effect, so the client that comes back just sends them again. The results of
calls that did have an effect are kept until the client has acknowledged them, so that a call
that is sent again takes effect exactly once.
"""

import asyncio
from typing import Protocol, cast

from rallypoint.errors import StoreError, StoreLimitError, StoreTimeoutError, StoreValueError
from rallypoint.store import protocol as p
from rallypoint.store.keyspace import PARKED, Keyspace

LONGEST_WAIT_SECONDS = 10 * 365 * 86400.0  # what event loops take; who asks for more waits so
_WAITING = (p.Get, p.Wait, p.MultiGet, p.QueuePop, p.Watch, p.Gather)


class Peer(Protocol):
    """A client's connection, as the space sees it."""

    def send(self, data: bytes) -> None:
        """Write one frame."""


class Client:
    """What a space keeps of one client object, across its connections."""

    __slots__ = ("gone_at", "parked", "peer", "record", "results")

    def __init__(self, record: int) -> None:
        self.record = record
        self.peer: Peer | None = None
        self.results: dict[int, bytes] = {}
        self.parked: dict[int, tuple[asyncio.TimerHandle, p.StoreRequest]] = {}
        self.gone_at: float | None = None


class Space:
    """One run's keyspace and the clients that use it.

    Args:
        loop: its timers.
        limit_bytes: most bytes of the keyspace.
        frame_limit: longest answer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit_bytes: int,
        frame_limit: int = p.FRAME_LIMIT,
    ) -> None:
        self._loop = loop
        self._frame_limit = frame_limit
        self.keys = Keyspace(limit_bytes=limit_bytes)
        self.clients: dict[bytes, Client] = {}
        self.calls = 0
        self._records = 0

    def peer(self, client_id: bytes) -> Peer | None:
        """Return the present connection of a client, None if it has none."""
        client = self.clients.get(client_id)
        return None if client is None else client.peer

    def attach(self, client_id: bytes, peer: Peer) -> bool:
        """A client's connection is there; return whether its last results are still known."""
        known = self.clients.get(client_id)
        if known is None:
            self._records += 1
            known = self.clients[client_id] = Client(self._records)
            known.peer = peer
            return False
        self._cancel_parked(client_id, known)
        known.peer, known.gone_at = peer, None
        return True

    def record(self, client_id: bytes) -> int:
        """Return the number of what is kept of a client: another one, once it was forgotten."""
        client = self.clients.get(client_id)
        return 0 if client is None else client.record

    def detach(self, client_id: bytes, peer: Peer, for_good: bool) -> None:
        """A client's connection is gone (ignored when another one has replaced it)."""
        client = self.clients.get(client_id)
        if client is None or client.peer is not peer:
            return
        self._cancel_parked(client_id, client)
        if for_good:
            del self.clients[client_id]
        else:
            client.peer, client.gone_at = None, self._loop.time()

    def forget(self, before: float) -> None:
        """Drop what is kept for clients that went away before that loop time."""
        for client_id, client in list(self.clients.items()):
            if client.gone_at is not None and client.gone_at < before:
                del self.clients[client_id]

    @property
    def is_unused(self) -> bool:
        """Whether nothing would be lost with it: no client, no key."""
        return not self.clients and self.keys.is_empty

    def call(self, client_id: bytes, call: p.Call) -> None:
        """Carry out one call and answer it, now or when it is complete."""
        client = self.clients.get(client_id)
        if client is None:
            return  # another connection of this client has said goodbye for good
        results = client.results
        for answered in [number for number in results if number < call.low]:
            del results[answered]
        for answered in call.acked:
            results.pop(answered, None)
        known = results.get(call.id)
        if known is not None:
            self._answer(client, known)
            return
        self.calls += 1
        request = call.request
        try:
            result = self.keys.execute(request, (client_id, call.id))
        except StoreError as error:
            self._answer(client, _failure(call.id, error))
            return
        if result is PARKED:
            self._park(client_id, client, call.id, request)
        else:
            data = self._reply(call.id, result)
            if not isinstance(request, p.REPEATABLE):
                results[call.id] = data
            self._answer(client, data)
        self._complete()

    def _park(
        self, client_id: bytes, client: Client, call_id: int, request: p.StoreRequest
    ) -> None:
        if isinstance(request, _WAITING) and call_id not in client.parked:
            wait = min(request.timeout, LONGEST_WAIT_SECONDS)
            expire = self._loop.call_later(wait, self._expire, client_id, call_id)
            client.parked[call_id] = (expire, request)

    def _complete(self) -> None:
        for token, result in self.keys.completed():
            client_id, call_id = cast(tuple[bytes, int], token)
            client = self.clients.get(client_id)
            if client is None:
                continue
            data = self._reply(call_id, result)
            parked = client.parked.pop(call_id, None)
            if parked is not None:
                parked[0].cancel()
                if not isinstance(parked[1], p.REPEATABLE):
                    client.results[call_id] = data
            self._answer(client, data)

    def _expire(self, client_id: bytes, call_id: int) -> None:
        client = self.clients.get(client_id)
        if client is None or client.parked.pop(call_id, None) is None:
            return
        error = self.keys.expire((client_id, call_id))
        if error is not None:
            self._answer(client, _failure(call_id, error))

    def _cancel_parked(self, client_id: bytes, client: Client) -> None:
        for call_id, (timer, _request) in client.parked.items():
            timer.cancel()
            self.keys.cancel((client_id, call_id))
        client.parked.clear()

    def _reply(self, call_id: int, result: object) -> bytes:
        data = p.frame(p.Reply(call_id, result))
        if len(data) <= self._frame_limit:
            return data
        text = (
            f"an answer of {len(data)} bytes is above the limit of {self._frame_limit} bytes; "
            "ask for fewer keys at a time"
        )
        return _failure(call_id, StoreLimitError(text))

    @staticmethod
    def _answer(client: Client, data: bytes) -> None:
        if client.peer is not None:
            client.peer.send(data)


def _failure(call_id: int, error: StoreError) -> bytes:
    codes: dict[type[StoreError], str] = {
        StoreTimeoutError: p.FAIL_TIMEOUT,
        StoreLimitError: p.FAIL_LIMIT,
        StoreValueError: p.FAIL_VALUE,
    }
    return p.frame(p.Failure(call_id, codes.get(type(error), p.FAIL_VALUE), str(error)))
