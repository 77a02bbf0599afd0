"""A clock that only moves when it is told to."""

from rallypoint.errors import ParameterError


class ManualClock:
    """A monotonic clock for tests: callable like `time.monotonic`.

    Args:
        start: its first reading in seconds; real ones begin anywhere, too.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(start)

    def __call__(self) -> float:
        """Return the seconds it shows."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on (ParameterError: backwards, which no monotonic clock does)."""
        if not seconds >= 0:
            raise ParameterError(f"seconds={seconds!r}: allowed is 0 or more")
        self._now += seconds
