"""A call of the store client that is under way (see `tcp`)."""

import threading
from time import monotonic

from rallypoint.errors import StoreConnectionError
from rallypoint.store import protocol as p


class Slot:
    """Its request, its waiting thread and, once there, its answer.

    Args:
        request: what is asked.
        seconds: for how long the server may answer.
    """

    __slots__ = ("_until", "answer", "id", "leads", "request", "woken")

    def __init__(self, request: p.StoreRequest, seconds: float) -> None:
        self.id = 0
        self.request = request
        self.answer: p.Reply | p.Failure | StoreConnectionError | None = None
        self.woken: threading.Lock | None = None
        self.leads = False
        self._until = monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self._until - monotonic())

    def waits(self) -> bool:
        """Return whether there is no answer yet, and time for one is left."""
        return self.answer is None and monotonic() < self._until
