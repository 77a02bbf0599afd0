"""A call of the store client that is under way (see `tcp`)."""

import threading
from time import monotonic

from rallypoint.errors import StoreConnectionError, StoreError, StoreTimeoutError
from rallypoint.net import protocol as p
from rallypoint.store.failures import error_of

ANSWER_MARGIN_SECONDS = 10.0  # beyond the call's own limit, for a server that is held up


class PendingCall:
    """Its request, its waiting thread and, once there, its answer.

    Args:
        request: what is asked.
        timeout: seconds that the server may take to answer; `ANSWER_MARGIN_SECONDS` are added.
    """

    __slots__ = ("_until", "answer", "id", "leads", "request", "timeout", "woken")

    def __init__(self, request: p.StoreRequest, timeout: float) -> None:
        self.id = 0
        self.request = request
        self.timeout = timeout
        self.answer: p.Reply | p.Failure | StoreConnectionError | None = None
        self.woken: threading.Lock | None = None
        self.leads = False
        self._until = monotonic() + timeout + ANSWER_MARGIN_SECONDS

    def remaining(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self._until - monotonic())

    def expired(self) -> bool:
        """Return whether the time for an answer is over."""
        return monotonic() >= self._until

    def error(self, where: str) -> StoreError:
        """Return the error of a call that has failed, or that nobody has answered."""
        answer = self.answer
        if isinstance(answer, p.Failure):
            return error_of(answer)
        if isinstance(answer, StoreConnectionError):
            return answer
        return StoreTimeoutError(
            f"the server at {where} did not answer {type(self.request).__name__} "
            f"within timeout={self.timeout:g} s and {ANSWER_MARGIN_SECONDS:g} s more"
        )

    def in_doubt(self, where: str, error: StoreConnectionError) -> StoreConnectionError:
        """Return the error of a call that a server may have carried out, and then forgot."""
        return StoreConnectionError(
            f"{error}; the server that answers at {where} now does not know this client: whether "
            f"{type(self.request).__name__} took effect is not known"
        )
