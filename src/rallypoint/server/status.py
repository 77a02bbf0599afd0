"""What a server says of itself: its counters, and the list of its runs.

The counters are plain numbers, cheap to add to. They need no metrics library, so a server
without the extra `web` counts the same.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Reversible

import msgspec

from rallypoint.core import explain
from rallypoint.core.state import PLACES, round_number
from rallypoint.net.tokens import Rights
from rallypoint.rendezvous.reports.history import Noted
from rallypoint.rendezvous.reports.status import RunLine, ServerStatus
from rallypoint.server.runs import RunHost

SEAL_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DETECT_BOUNDS = (0.1, 0.5, 1.0, 1.1, 1.5, 2.0, 5.0, 10.0, 15.0, 16.0, 30.0, 60.0)


class Histogram:
    """How often a duration was at most each of some bounds (seconds)."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (bound, how many were at most that), ending with +Inf."""
        seen, rows = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            rows.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(seen)))
        return rows


class Counters:
    """What one server has counted, over all its runs."""

    def __init__(self) -> None:
        self.rounds = 0
        self.seal = Histogram(SEAL_BOUNDS)
        self.detect = Histogram(DETECT_BOUNDS)
        self.losses: Counter[str] = Counter()

    def note(self, noted: Noted) -> None:
        """Count what a step of a run brought about."""
        entry = noted.sealed
        if entry is not None and entry.sealed_at is not None:
            self.rounds += 1
            self.seal.add(entry.sealed_at - entry.opened_at)
        for loss in noted.losses:
            self.losses[loss.cause] += 1
            self.detect.add(loss.seconds)


def visible(status: ServerStatus, rights: Rights) -> ServerStatus:
    """Leave out the runs that a client's token does not reach."""
    if rights.run is None:
        return status
    runs = tuple(run for run in status.runs if rights.reaches(run.run_id))
    return msgspec.structs.replace(status, runs=runs, run_count=len(runs))


def newest_runs(runs: Reversible[RunHost], limit: int) -> list[RunHost]:
    """Return the runs that were made last, open ones first.

    Args:
        runs: in the order in which they were made.
        limit: most to return.
    """
    newest = list(reversed(runs))
    newest.sort(key=lambda run: explain.phase_name(run.state) == "closed")  # stable
    return newest[:limit]


def run_line(run: RunHost, now: float) -> RunLine:
    """Return a run's line in the list."""
    state, at = run.state, run.history.phase_at
    return RunLine(
        run_id=state.run_id,
        phase=explain.phase_name(state),
        round=round_number(state.phase),
        nodes=sum(len(getattr(state, place)) for place in PLACES),
        reason=explain.describe(state),
        since_seconds=None if at is None else now - at,
    )
