"""What was measured of a node, and what it means. PURE.

A finding is the doctor's: a verdict, what was seen, and what to do. A node that fails one
should take no seat; a warning is for people.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from rallypoint.doctor.findings import Finding, Verdict

GIB = 1024**3
STEP_SECONDS = 0.05  # no clock that is slewed drifts so far within a second or two
SLOW_FACTOR = 5.0  # a pair so much slower than the quick quarter (one node can slow half), and
SLOW_SECONDS = 0.005  # slower than this, is told
SHOWN = 5


class Pair(msgspec.Struct, frozen=True):
    """A link from one node to another.

    Args:
        source: label of the node that measured.
        target: label of the other.
        seconds: of a round trip, None if there was none.
        trouble: why, "" if all is well.
    """

    source: str
    target: str
    seconds: float | None
    trouble: str = ""

    @property
    def name(self) -> str:
        """The pair as people read it."""
        return f"{self.source} -> {self.target}"


class Gpu(msgspec.Struct, frozen=True):
    """A GPU: its name, and its memory errors that could not be corrected (None: not counted)."""

    index: int
    name: str
    errors: int | None = None


def disk(path: str, free_bytes: int, least_bytes: int) -> Finding:
    """Judge the room on a disk."""
    text = f"{path} has {_size(free_bytes)} free"
    if free_bytes >= least_bytes:
        return Finding("disk", Verdict.OK, text)
    remedy = f"make room, or ask for less than {_size(least_bytes)} (--min-disk)"
    return Finding("disk", Verdict.FAIL, text, remedy)


def no_disk(path: str, trouble: str) -> Finding:
    """Judge a place that cannot be looked at."""
    return Finding("disk", Verdict.FAIL, f"{path}: {trouble}", "mount it, or give another --path")


def memory(available_bytes: int, least_bytes: int) -> Finding:
    """Judge the free memory."""
    text = f"{_size(available_bytes)} of memory are free"
    if available_bytes >= least_bytes:
        return Finding("memory", Verdict.OK, text)
    remedy = f"end what holds it, or ask for less than {_size(least_bytes)} (--min-memory)"
    return Finding("memory", Verdict.FAIL, text, remedy)


def clock(step_seconds: float, watched_seconds: float) -> Finding:
    """Judge whether the wall clock jumps. Nothing of ours depends on it; logs and TLS do."""
    if abs(step_seconds) < STEP_SECONDS:
        text = f"the wall clock ran evenly for {watched_seconds:g} s"
        return Finding("clock", Verdict.OK, text)
    text = f"the wall clock stepped by {step_seconds:+.2f} s within {watched_seconds:g} s"
    return Finding("clock", Verdict.WARN, text, "let one time service slew it")


def gpus(found: Sequence[Gpu], trouble: str) -> Finding:
    """Judge the GPUs, where nvidia-smi is there."""
    if trouble:
        remedy = "the driver does not answer: reset the GPUs, or take the node out"
        return Finding("gpus", Verdict.FAIL, f"nvidia-smi {trouble}", remedy)
    bad = [gpu for gpu in found if gpu.errors]
    if bad:
        shown = ", ".join(f"GPU {gpu.index} ({gpu.errors})" for gpu in bad)
        text = f"memory errors that could not be corrected: {shown}"
        return Finding("gpus", Verdict.FAIL, text, "reset these GPUs, or take the node out")
    kinds = Counter(gpu.name for gpu in found)
    shown = ", ".join(f"{count} {name}" for name, count in kinds.items()) or "none"
    return Finding("gpus", Verdict.OK if found else Verdict.WARN, f"GPUs: {shown}")


def links(pairs: Sequence[Pair], absent: int = 0) -> Finding:
    """Judge the links between nodes: which are dead or slow, and who is in most of them.

    Args:
        pairs: all that were measured.
        absent: nodes that were waited for and have not come.
    """
    if absent:
        text = f"{absent} of the nodes have not come to be measured"
        return Finding("pairs", Verdict.FAIL, text, "start the check on all nodes at once")
    times = [pair.seconds for pair in pairs if pair.seconds is not None]
    middle = statistics.median(times) if times else 0.0
    quick = sorted(times)[len(times) // 4] if times else 0.0
    limit = max(SLOW_SECONDS, SLOW_FACTOR * quick)
    dead = [pair for pair in pairs if pair.seconds is None]
    slow = [pair for pair in pairs if pair.seconds is not None and pair.seconds > limit]
    if dead:
        text = f"{len(dead)} of {_pairs(pairs)} are dead: {_listed(dead)}{_offender(dead, pairs)}"
        remedy = "open the network between them, or take the node out"
        return Finding("pairs", Verdict.FAIL, text, remedy)
    if not times:
        return Finding("pairs", Verdict.NOTE, "there is no other node to measure")
    worst = max(pairs, key=lambda pair: pair.seconds or 0.0)
    text = f"{_pairs(pairs)}, round trip {_ms(middle)} in the middle, worst {_one(worst)}"
    if slow:
        return Finding(
            "pairs", Verdict.WARN, f"{text}; slow: {_listed(slow)}{_offender(slow, pairs)}"
        )
    return Finding("pairs", Verdict.OK, text)


def offender(bad: Sequence[Pair], pairs: Sequence[Pair]) -> str:
    """Return the node with the largest part of its links bad, "" if several have as many."""
    of_all: Mapping[str, int] = Counter(end for pair in pairs for end in (pair.source, pair.target))
    of_bad = Counter(end for pair in bad for end in (pair.source, pair.target))
    parts = sorted(((count / of_all[node], node) for node, count in of_bad.items()), reverse=True)
    if len(parts) > 1 and parts[0][0] == parts[1][0]:
        return ""
    return parts[0][1] if parts else ""


def _offender(bad: Sequence[Pair], pairs: Sequence[Pair]) -> str:
    node = offender(bad, pairs)
    return f"; worst offender: {node}" if node else ""


def _listed(pairs: Sequence[Pair]) -> str:
    ordered = sorted(pairs, key=lambda pair: -(pair.seconds or 0.0))
    more = len(pairs) - SHOWN
    shown = ", ".join(_one(pair) for pair in ordered[:SHOWN])
    return shown + (f" and {more} more" if more > 0 else "")


def _one(pair: Pair) -> str:
    how = pair.trouble if pair.seconds is None else _ms(pair.seconds)
    return f"{pair.name} ({how})"


def _pairs(pairs: Sequence[Pair]) -> str:
    return "1 pair" if len(pairs) == 1 else f"{len(pairs)} pairs"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms"


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
