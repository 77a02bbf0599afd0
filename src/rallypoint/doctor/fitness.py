"""Judges the measurements of a node. PURE.

A node with a failed finding should not take part; a warning is for people.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from rallypoint.doctor.findings import Finding, Verdict

GIB = 1024**3
STEP_SECONDS = 0.05  # a slewed clock does not drift this far within two seconds
SLOW_FACTOR = 5.0  # slow: by this factor slower than the fastest quarter (one node can slow half)
SLOW_SECONDS = 0.005  # and slower than this
SHOWN = 5


class Pair(msgspec.Struct, frozen=True):
    """A link from one node to another.

    Args:
        source: label of the node that measured.
        target: label of the other node.
        seconds: round-trip time, None if there was no answer.
        trouble: why, "" if there is none.
    """

    source: str
    target: str
    seconds: float | None
    trouble: str = ""

    @property
    def name(self) -> str:
        """The pair for people."""
        return f"{self.source} -> {self.target}"


class Gpu(msgspec.Struct, frozen=True):
    """A GPU and its number of uncorrected memory errors (None: not counted)."""

    index: int
    name: str
    errors: int | None = None


def disk(path: str, free_bytes: int, least_bytes: int) -> Finding:
    """Judge the free space on a disk."""
    text = f"{path} has {_size(free_bytes)} free"
    if free_bytes >= least_bytes:
        return Finding("disk", Verdict.OK, text)
    remedy = f"free some space, or require less than {_size(least_bytes)} (--min-disk)"
    return Finding("disk", Verdict.FAIL, text, remedy)


def no_disk(path: str, trouble: str) -> Finding:
    """Judge a path that cannot be read."""
    return Finding("disk", Verdict.FAIL, f"{path}: {trouble}", "mount it, or give another --path")


def memory(available_bytes: int, least_bytes: int) -> Finding:
    """Judge the free memory."""
    text = f"{_size(available_bytes)} of memory is free"
    if available_bytes >= least_bytes:
        return Finding("memory", Verdict.OK, text)
    remedy = f"free some memory, or require less than {_size(least_bytes)} (--min-memory)"
    return Finding("memory", Verdict.FAIL, text, remedy)


def clock(step_seconds: float, watched_seconds: float) -> Finding:
    """Judge whether the wall clock jumps. Only logs and TLS depend on it."""
    if abs(step_seconds) < STEP_SECONDS:
        text = f"the wall clock ran evenly for {watched_seconds:g} s"
        return Finding("clock", Verdict.OK, text)
    text = f"the wall clock stepped by {step_seconds:+.2f} s within {watched_seconds:g} s"
    return Finding(
        "clock", Verdict.WARN, text, "run exactly one time service, and let it slew the clock"
    )


def gpus(found: Sequence[Gpu], trouble: str) -> Finding:
    """Judge the GPUs of a machine with nvidia-smi."""
    if trouble:
        remedy = "reset the GPUs, or remove the node"
        return Finding("gpus", Verdict.FAIL, f"nvidia-smi {trouble}", remedy)
    bad = [gpu for gpu in found if gpu.errors]
    if bad:
        shown = ", ".join(f"GPU {gpu.index} ({gpu.errors})" for gpu in bad)
        text = f"uncorrected memory errors: {shown}"
        return Finding("gpus", Verdict.FAIL, text, "reset these GPUs, or remove the node")
    kinds = Counter(gpu.name for gpu in found)
    shown = ", ".join(f"{count} {name}" for name, count in kinds.items()) or "none"
    return Finding("gpus", Verdict.OK if found else Verdict.WARN, f"GPUs: {shown}")


def links(pairs: Sequence[Pair], absent: int = 0) -> Finding:
    """Judge the links between nodes: which are dead or slow, and which node is in most of them.

    Args:
        pairs: all measured links.
        absent: number of expected nodes that did not come.
    """
    if absent:
        text = f"{absent} of the nodes did not come to be measured"
        return Finding("pairs", Verdict.FAIL, text, "start the check on all nodes at once")
    times = [pair.seconds for pair in pairs if pair.seconds is not None]
    middle = statistics.median(times) if times else 0.0
    quick = sorted(times)[len(times) // 4] if times else 0.0
    limit = max(SLOW_SECONDS, SLOW_FACTOR * quick)
    dead = [pair for pair in pairs if pair.seconds is None]
    slow = [pair for pair in pairs if pair.seconds is not None and pair.seconds > limit]
    if dead:
        text = f"{len(dead)} of {_pairs(pairs)} are dead: {_listed(dead)}{_offender(dead, pairs)}"
        remedy = "open the network between them, or remove the node"
        return Finding("pairs", Verdict.FAIL, text, remedy)
    if not times:
        return Finding("pairs", Verdict.NOTE, "no other node to measure")
    worst = max(pairs, key=lambda pair: pair.seconds or 0.0)
    text = f"{_pairs(pairs)}, median round trip {_ms(middle)}, worst {_one(worst)}"
    if slow:
        return Finding(
            "pairs", Verdict.WARN, f"{text}; slow: {_listed(slow)}{_offender(slow, pairs)}"
        )
    return Finding("pairs", Verdict.OK, text)


def offender(bad: Sequence[Pair], pairs: Sequence[Pair]) -> str:
    """Return the node with the largest share of bad links, "" if several tie."""
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
