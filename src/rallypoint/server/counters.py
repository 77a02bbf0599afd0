"""What a server counts: plain numbers, cheap to add to, read by `/metrics` and nobody else.

Kept free of any metrics library, so that a server without the extra `web` counts the same.
"""

from bisect import bisect_left
from collections import Counter

from rallypoint.rendezvous.reports.history import Noted

SEAL_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DETECT_BOUNDS = (0.1, 0.5, 1.0, 1.1, 1.5, 2.0, 5.0, 10.0, 15.0, 16.0, 30.0, 60.0)


class Histogram:
    """How often a duration was at most each of some bounds (seconds)."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Take in one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (bound, how many were at most that), ending with +Inf."""
        seen, rows = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            rows.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(seen)))
        return rows


class Tally:
    """Counters of one server, over all its runs."""

    def __init__(self) -> None:
        self.rounds = 0
        self.seal = Histogram(SEAL_BOUNDS)
        self.detect = Histogram(DETECT_BOUNDS)
        self.losses: Counter[str] = Counter()

    def note(self, noted: Noted) -> None:
        """Take in what a step of a run brought about."""
        entry = noted.sealed
        if entry is not None and entry.sealed_at is not None:
            self.rounds += 1
            self.seal.add(entry.sealed_at - entry.opened_at)
        for loss in noted.losses:
            self.losses[loss.cause] += 1
            self.detect.add(loss.seconds)
