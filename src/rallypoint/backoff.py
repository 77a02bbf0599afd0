"""How long to wait before what failed is tried again. PURE.

A crash loop costs the cluster more than it brings: each failing round in a row doubles the
pause before the next one's workers are started. The count is the coordinator's and part of
the sealed round, so that all nodes pause alike, and start together.
"""

from collections.abc import Iterator

FIRST_SECONDS, LONGEST_SECONDS = 1.0, 60.0
_DOUBLINGS = 6  # from the first to the longest


def pause_seconds(failures: int) -> float:
    """Return the pause after so many failures in a row: none, 1 s, 2 s, 4 s, ... 60 s."""
    if failures <= 0:
        return 0.0
    return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - 1, _DOUBLINGS))


def pauses() -> Iterator[float]:
    """Yield the pauses of a series of failures, without end."""
    failures = 0
    while True:
        failures += 1
        yield pause_seconds(failures)


def crash_loop(failing: int, seconds: float) -> str:
    """Return why workers are not started at once, for people."""
    times = "the round before was" if failing == 1 else f"{failing} rounds in a row were"
    return f"{times} ended by failing workers; starting the next ones in {seconds:g} s"
