"""The records of the workers of a chaos run, and the rules that they must keep.

Each worker writes a file: its identity, then the time every few milliseconds, then how it ended. So
a killed worker is known to have lived until its last entry. All processes run on one machine and
share its monotonic clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

OVERLAP_SECONDS = 4.0  # until the workers of an older round must have ended

# {folder} {file that ends it}; CHAOS_AGENT names the agent.
WORKER = """
import os, signal, sys, time
e = os.environ
folder, stop = sys.argv[1:]
life = open(f"{folder}/{e['CHAOS_AGENT']}.{os.getpid()}.life", "a", buffering=1)
names = ("CHAOS_AGENT", "RALLYPOINT_INCARNATION", "RALLYPOINT_ROUND", "RANK", "WORLD_SIZE")
print(*(e[name] for name in names), os.getpid(), time.monotonic(), file=life)
def end(*_):
    print("term", time.monotonic(), file=life)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
while not os.path.exists(stop):
    time.sleep(0.02)
    print("beat", time.monotonic(), file=life)
print("done", time.monotonic(), file=life)
"""


class Life(NamedTuple):
    """One worker's: times are monotonic seconds; `end` is "done", "term", or "" (killed, or
    still at work) with `ended` as its last sign."""

    agent: str
    incarnation: int
    round: int
    rank: int
    size: int
    pid: int
    began: float
    ended: float
    end: str

    @property
    def number(self) -> tuple[int, int]:
        """Its round among all rounds."""
        return self.incarnation, self.round

    def text(self) -> str:
        """Return it as words."""
        how = self.end or "last sign"
        return (
            f"{self.agent} round {self.incarnation}.{self.round} rank {self.rank} of {self.size} "
            f"from {self.began:.2f} to {self.ended:.2f} ({how})"
        )


Spans = Sequence[tuple[float, float]]


def read_lives(folder: Path) -> list[Life]:
    """Return the records that workers have written so far, without those that have not begun."""
    found = (_life(path.read_text("utf-8")) for path in sorted(folder.glob("*.life")))
    return [life for life in found if life is not None]


def _life(text: str) -> Life | None:
    lines = text.splitlines(keepends=True)
    whole = [line.split() for line in lines if line.endswith("\n")]  # one may be partial
    if not whole:
        return None
    agent, *rest, began = whole[0]
    last = whole[-1] if len(whole) > 1 else ["", began]
    end = last[0] if last[0] in ("done", "term") else ""
    incarnation, number, rank, size, pid = (int(each) for each in rest)
    return Life(
        agent, incarnation, number, rank, size, pid, float(began), float(last[1]), end
    )  # fmt: skip


def wrong_ranks(lives: Iterable[Life]) -> list[str]:
    """Return what is wrong with the ranks: in each round 0..n-1, and each at most once."""
    rounds = defaultdict(list)
    for life in lives:
        rounds[life.number].append(life)
    wrong = []
    for members in rounds.values():
        ranks = [life.rank for life in members]
        sizes = {life.size for life in members}
        agents = {life.agent for life in members}
        fits = all(0 <= rank < size for rank in ranks for size in sizes)
        if len(sizes) > 1 or len({*ranks}) < len(ranks) or len(agents) < len(members) or not fits:
            wrong.append("ranks: " + "; ".join(life.text() for life in members))
    return wrong


def two_worlds(
    lives: Sequence[Life], excused: Mapping[str, Spans], limit: float = OVERLAP_SECONDS
) -> list[str]:
    """Return which workers continued in an old round while a newer one was at work.

    Args:
        lives: all records of the run.
        excused: when an agent could not know or act (stopped, disconnected): its workers may
            continue for that time and `limit` more.
        limit: seconds that an agent has to be notified and to end its workers.
    """
    wrong = []
    for old in lives:
        newer = [life for life in lives if life.number > old.number and life.agent != old.agent]
        if not newer:
            continue
        began = min(life.began for life in newer)
        allowed = began + limit + sum(
            max(0.0, until - max(since, began)) for since, until in excused.get(old.agent, ())
        )  # fmt: skip
        if old.ended > allowed:
            first = min(newer, key=lambda life: life.began)
            wrong.append(f"two worlds: {old.text()} beside {first.text()}")
    return wrong


def killed_workers(lives: Iterable[Life], harmed: set[str], killed: set[int]) -> list[str]:
    """Return the workers of healthy agents that were ended without being asked first.

    Args:
        lives: all records of the run, which is over.
        harmed: agents with a fault.
        killed: workers (process ids) that the plan has killed.
    """
    return [
        f"killed: {life.text()}"
        for life in lives
        if not life.end and life.agent not in harmed and life.pid not in killed
    ]
