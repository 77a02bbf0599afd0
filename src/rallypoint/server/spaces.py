"""The key/value space of one run, hosted: carries requests to the keyspace and answers back.

A request that waits is parked in the keyspace under (client, call) and answered when a change
completes it or its time is over. When a connection is cut its parked calls are cancelled:
they have had no effect, so the client that comes back just sends them again. The results of
calls that did have an effect are kept until the client has acknowledged them, so that a call
that is sent again takes effect exactly once.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from rallypoint.errors import StoreError, StoreLimitError, StoreTimeoutError, StoreValueError
from rallypoint.store import protocol as p
from rallypoint.store.keyspace import PARKED, Keyspace

Sender = Callable[[bytes], None]
_WAITING = (p.Get, p.Wait, p.MultiGet, p.QueuePop, p.Watch, p.Gather)

class Client:
    """What a space keeps of one client object, across its connections."""

    __slots__ = ("gone_at", "parked", "results", "send")

    def __init__(self) -> None:
        self.send: Sender | None = None
        self.results: dict[int, bytes] = {}
        self.parked: dict[int, asyncio.TimerHandle | None] = {}
        self.gone_at: float | None = None

class Space:
    """One run's keyspace and the clients that use it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_bytes: int) -> None:
        self._loop = loop
        self.keys = Keyspace(limit_bytes=limit_bytes)
        self.clients: dict[bytes, Client] = {}
        self.calls = 0

    def attach(self, client_id: bytes, send: Sender) -> bool:
        """A client's connection is there; return whether its last results are still known."""
        known = self.clients.get(client_id)
        if known is None:
            known = self.clients[client_id] = Client()
            known.send = send
            return False
        self._cancel_parked(client_id, known)
        known.send, known.gone_at = send, None
        return True

    def detach(self, client_id: bytes, send: Sender, for_good: bool) -> None:
        """A client's connection is gone (ignored when another one has replaced it)."""
        client = self.clients.get(client_id)
        if client is None or client.send is not send:
            return
        self._cancel_parked(client_id, client)
        if for_good:
            del self.clients[client_id]
        else:
            client.send, client.gone_at = None, self._loop.time()

    def forget(self, before: float) -> None:
        """Drop what is kept for clients that went away before that loop time."""
        for client_id, client in list(self.clients.items()):
            if client.gone_at is not None and client.gone_at < before:
                del self.clients[client_id]

    def call(self, client_id: bytes, call: p.Call) -> None:
        """Carry out one call and answer it, now or when it is complete."""
        client = self.clients[client_id]
        results = client.results
        while results and (first := next(iter(results))) < call.low:
            del results[first]
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
            data = p.frame(p.Reply(call.id, result))
            if not isinstance(request, p.REPEATABLE):
                results[call.id] = data
            self._answer(client, data)
        self._complete()

    def _park(
        self, client_id: bytes, client: Client, call_id: int, request: p.StoreRequest
    ) -> None:
        if isinstance(request, _WAITING):
            expire = self._loop.call_later(request.timeout, self._expire, client_id, call_id)
            client.parked[call_id] = expire

    def _complete(self) -> None:
        for token, result in self.keys.completed():
            client_id, call_id = cast(tuple[bytes, int], token)
            client = self.clients.get(client_id)
            if client is None:
                continue
            timer = client.parked.pop(call_id, None)
            if timer is not None:
                timer.cancel()
            data = p.frame(p.Reply(call_id, result))
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
        for call_id, timer in client.parked.items():
            if timer is not None:
                timer.cancel()
            self.keys.cancel((client_id, call_id))
        client.parked.clear()

    @staticmethod
    def _answer(client: Client, data: bytes) -> None:
        if client.send is not None:
            client.send(data)

def _failure(call_id: int, error: StoreError) -> bytes:
    codes: dict[type[StoreError], str] = {
        StoreTimeoutError: p.FAIL_TIMEOUT,
        StoreLimitError: p.FAIL_LIMIT,
        StoreValueError: p.FAIL_VALUE,
    }
    return p.frame(p.Failure(call_id, codes.get(type(error), p.FAIL_VALUE), str(error)))

