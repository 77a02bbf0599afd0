"""The pause before a failed round is tried again. PURE.

A crash loop wastes the cluster's time: each consecutive failed round doubles the pause before
the next round starts its workers. The coordinator counts, and the count is part of the sealed
round, so that all nodes pause for the same time and start together.
"""

from collections.abc import Iterator

FIRST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
_DOUBLINGS = 6  # from the first to the longest


def pause_seconds(failures: int) -> float:
    """Return the seconds to wait after consecutive failures: 0, 1, 2, 4, ... 60."""
    if failures <= 0:
        return 0.0
    return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, _DOUBLINGS))


def pauses() -> Iterator[float]:
    """Yield the pauses, in seconds, after each of a series of failures."""
    failures = 0
    while True:
        failures += 1
        yield pause_seconds(failures)


def crash_loop(failing: int, seconds: float) -> str:
    """Return why workers are not started at once, for people."""
    which = "the previous round" if failing == 1 else f"{failing} rounds in a row"
    return f"{which} failed; restarting workers in {seconds:g} s"
