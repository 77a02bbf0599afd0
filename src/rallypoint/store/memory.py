"""A store within one process, for the threads of a test or a single-process job.

One `Keyspace` under one lock. The lock is held only while a request is carried out: a waiting
thread sleeps on its own event, which the thread whose change answers it sets. So waiting
threads block no others, and there is no polling.
"""

import threading
from datetime import timedelta
from typing import Any

from rallypoint.net import protocol as p
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS, Store
from rallypoint.store.keyspace import PARKED, Keyspace
from rallypoint.store.table import DEFAULT_LIMIT_BYTES


class _Ticket:
    """A call of one thread: the call's token, with the answer if that comes later."""

    __slots__ = ("answered", "result")

    def __init__(self) -> None:
        self.answered: threading.Event | None = None  # made when the call is parked, which is rare
        self.result: Any = None


class _Shared:
    """The data that all clones of a store share."""

    __slots__ = ("keyspace", "lock")

    def __init__(self, limit_bytes: int) -> None:
        self.lock = threading.Lock()
        self.keyspace = Keyspace(limit_bytes)

    def call(self, request: p.StoreRequest, timeout: float) -> Any:
        """Carry out a request and wait for its answer if necessary."""
        ticket = _Ticket()
        with self.lock:
            result = self.keyspace.execute(request, ticket)
            for other, answer in self.keyspace.completed():
                _answer(other, answer)
            if result is not PARKED:
                return result
            answered = ticket.answered = threading.Event()
        try:
            # The longest wait of the platform is centuries; longer ones are cut to it.
            answered.wait(min(timeout, threading.TIMEOUT_MAX))
            with self.lock:
                error = self.keyspace.expire(ticket)
        finally:
            with self.lock:  # in case the wait was interrupted
                self.keyspace.cancel(ticket)
        if error is not None:
            raise error
        return ticket.result


def _answer(ticket: Any, result: Any) -> None:
    ticket.result = result
    ticket.answered.set()


class MemoryStore(Store):
    """A store that lives in this process; `clone` returns another handle on the same data.

    Args:
        timeout: limit of calls without a timeout, in seconds or a timedelta.
        limit_bytes: most bytes kept (StoreLimitError beyond).
    """

    def __init__(
        self,
        timeout: float | timedelta = DEFAULT_TIMEOUT_SECONDS,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> None:
        self.set_timeout(timeout)
        self._shared = _Shared(limit_bytes)

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        return self._shared.call(request, timeout)

    def clone(self) -> "MemoryStore":
        other = MemoryStore(self._timeout_seconds)
        other._shared = self._shared
        return other


HashStore = MemoryStore
