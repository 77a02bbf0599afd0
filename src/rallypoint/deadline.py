"""One time budget for all the steps of a call.

A call that resolves a name, connects, authenticates and waits has one limit, not four: it makes
one `Deadline` from the caller's timeout and passes it on.
"""

import time
from collections.abc import Callable
from datetime import timedelta

Clock = Callable[[], float]


def seconds(duration: float | timedelta) -> float:
    """Return a duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


class Deadline:
    """A moment on this process's monotonic clock after which a call gives up.

    Args:
        timeout: seconds from now, or a timedelta.
        clock: monotonic clock in seconds; tests pass a manual one.
    """

    __slots__ = ("_at", "_clock", "timeout")

    def __init__(self, timeout: float | timedelta, clock: Clock = time.monotonic) -> None:
        self.timeout = timeout = timeout if type(timeout) is float else seconds(timeout)
        self._clock = clock
        self._at = clock() + timeout

    def remaining(self) -> float:
        """Return the seconds left, never below zero."""
        left = self._at - self._clock()
        return left if left > 0.0 else 0.0

    def elapsed(self) -> float:
        """Return the seconds since the deadline was set."""
        return self.timeout - (self._at - self._clock())

    def expired(self) -> bool:
        """Return whether no time is left."""
        return self._clock() >= self._at

    def capped(self, limit: float) -> float:
        """Return the seconds left, at most `limit`."""
        return min(limit, self.remaining())
