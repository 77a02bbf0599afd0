"""Elastic rounds: what fixed waits cost, a fifth node joins, one of four nodes is killed.

One node per process, real handlers: ours and torch's c10d without its event log. `last_call` is
2 s for both, to keep the run short. The default of both is 30 s, so with default settings each 2 s
below is 30 s.

* elastic: min 4, max 8, four nodes: the first round, and a second one of the same four.
* scale: the same, then a fifth node joins: until the last of the four knows (our nodes are
  notified; torch's agent polls every 0.1 s), and until all five are in the next round.
* kill: min 3, max 4; one of four is killed with SIGKILL: until the last survivor is notified, and
  from the last survivor's join until the next round. c10d does not notify: its survivors learn of
  the loss from their workers; here they join again after 10 s.
"""

import itertools
import sys
import time

import harness
from environments import python
from processes import Broken, Helper

LIMIT = 90.0
LAST_CALL = 2
NOTIFIED_LIMIT = 10.0
CONTENDERS = {"rallypoint": "rallypoint", "c10d-quiet": "torch"}
_runs = itertools.count(1)


class Team:
    """A server and a few nodes of one contender, each in a process."""

    def __init__(self, name: str, least: int, most: int) -> None:
        environment = CONTENDERS[name]
        python(environment)
        self.name, self.least, self.most = name, least, most
        self.helpers: list[Helper] = []
        self.server = self._helper("server")
        self.where = self.server.ask(LIMIT, do="start", size=least)["where"]
        self.run = f"elastic{next(_runs)}"
        self.nodes: list[Helper] = []

    def _helper(self, *arguments: str) -> Helper:
        helper = Helper(CONTENDERS[self.name], "nodes.py", self.name, *arguments)
        self.helpers.append(helper)
        return helper

    def add(self, count: int) -> list[Helper]:
        """Start more nodes, which do not join yet."""
        new = [self._helper() for _ in range(count)]
        for i, node in enumerate(new, len(self.nodes)):
            node.tell(
                do="prepare", where=self.where, run=self.run, first=i, count=1, size=self.least,
                most=self.most, config={"last_call_timeout": LAST_CALL},
            )  # fmt: skip
        for node in new:
            node.hear(LIMIT)
        self.nodes += new
        return new

    def join(self, nodes: list[Helper], size: int) -> float:
        """Make nodes join at once; return the seconds until the last one has its result."""
        begun = time.monotonic()
        for node in nodes:
            node.tell(do="join")
        return self.joined(nodes, size) - begun

    def joined(self, nodes: list[Helper], size: int) -> float:
        """Return when the last of these nodes had its result, a round of that size."""
        answers = [node.hear(LIMIT) for node in nodes]
        sizes = {answer["ranks"][0][1] for answer in answers}
        if sizes != {size}:
            raise Broken(f"{self.name}: a round of {sizes} instead of {size} nodes")
        return float(max(answer["end"] for answer in answers))

    def notified(self, nodes: list[Helper]) -> float | None:
        """Return when the last of these nodes knew that it must join again; None if one did not."""
        times = [node.hear(LIMIT)["at"] for node in nodes]
        return None if None in times else max(times)

    def end(self) -> None:
        """End all processes."""
        for helper in self.helpers:
            helper.kill()


def elastic(name: str) -> dict[str, float]:
    """A round with room for more nodes, twice."""
    team = Team(name, 4, 8)
    try:
        nodes = team.add(4)
        return {"first round": team.join(nodes, 4), "the same nodes again": team.join(nodes, 4)}
    finally:
        team.end()


def scale(name: str) -> dict[str, float]:
    """A fifth node joins four."""
    team = Team(name, 4, 8)
    try:
        four = team.add(4)
        team.join(four, 4)
        (fifth,) = team.add(1)
        for node in four:
            node.tell(do="watch", limit=NOTIFIED_LIMIT)
        begun = time.monotonic()
        fifth.tell(do="join")
        known = team.notified(four)
        if known is None:
            raise Broken(f"{name}: the four were not notified of the fifth")
        for node in four:
            node.tell(do="join")
        return {"the four know": known - begun, "all five": team.joined(team.nodes, 5) - begun}
    finally:
        team.end()


def kill(name: str) -> dict[str, float]:
    """One of four is killed."""
    team = Team(name, 3, 4)
    try:
        four = team.add(4)
        team.join(four, 4)
        rest = four[1:]
        for node in rest:
            node.tell(do="watch", limit=NOTIFIED_LIMIT)
        killed = time.monotonic()
        four[0].kill()
        known = team.notified(rest)
        found = {} if known is None else {"survivors know": known - killed}
        return found | {"next round, from the asking": team.join(rest, 3)}
    finally:
        team.end()


PARTS = {"elastic": elastic, "scale": scale, "kill": kill}


def main() -> None:
    """Run all parts, report."""
    options = harness.arguments(__doc__ or "")
    report = harness.Report("elastic", "Elastic rounds", harness.relative(__file__))
    table = report.table(f"Elastic rounds, last call {LAST_CALL} s")
    for part, run in PARTS.items():
        if options.parts and part not in options.parts:
            continue
        names = [n for n in CONTENDERS if not options.only or n in options.only]
        contenders: dict[str, harness.Measure] = {
            name: lambda name=name, run=run: run(name) for name in names
        }
        warm_up = 0  # each trial starts new processes, so the first one is like the others
        found = harness.run_in_turn(contenders, options.repeats, report, warm_up, drop=False)
        measures = dict.fromkeys(key for samples in found.values() for key in samples)
        for measure in measures:
            for name in names:
                row = table.add(f"{part}: {measure}", name, "wall", found[name].get(measure, []))
                if not row.samples:
                    row.note = f"not within {NOTIFIED_LIMIT:g} s"
    report.notes.append(
        f"last_call is {LAST_CALL} s here for both; by default it is 30 s for both, and each "
        "wait for it takes 28 s more. What survivors wait for includes disconnect_grace, 1 s"
    )
    report.notes.append(
        "c10d with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: as shipped, a survivor that keeps rank 0 "
        "keeps its store and does not publish its address for the new round; the fifth node then "
        "waits until its store's timeout (60 s)"
    )
    report.finish(lambda axes, r: _chart(axes, table))


def _chart(axes: object, table: harness.Table) -> None:
    short = harness.Table(table.title, table.unit)
    for row in table.rows:
        case = row.case.replace(": ", ":\n").replace(", ", ",\n")
        short.rows.append(harness.Row(case, row.contender, row.measure, row.samples))
    harness.bars(axes, short)
    axes.set_yscale("log")  # type: ignore[attr-defined]
    axes.tick_params(axis="x", labelsize=7)  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
