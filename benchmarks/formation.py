"""How long N nodes take to form a round, with the real handler of each contender (min = max = N).

Four processes run N/4 nodes each, one thread per node. The time is measured from the start signal
until the last node has its result. "first" includes connecting; "again" is a second round of the
same, connected nodes. For contenders on torch's or tensorplay's TCPStore (c10d, nvrx, tensorplay)
connecting is not counted, in their favour. Each trial is a new run (for torchft and jax, whose size
is fixed, also a new server).

Contenders whose nodes poll a shared state take seconds, and the others are idle meanwhile. A
virtual machine may then take their memory away: here a process that touches a thousand pages after
four idle seconds pays 100 ms. So polling contenders are a part of their own (`polling`; the others
are `notified`), and each trial of a fast contender follows one that is not counted.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import harness
from environments import Missing, python
from processes import Broken, Helper, TookTooLong, cpu_seconds, say

LIMIT = 30.0
SLOW_TRIAL = 5.0  # beyond this a contender gets fewer trials
QUICK_TRIAL = 0.5  # seconds; below this, idle time before the trial would distort it
ENVIRONMENT = {"c10d": "torch", "c10d-quiet": "torch"}
CONTENDERS = {
    "rallypoint": "DynamicRendezvousHandler over a Rallypoint server",
    "torchft": "torchft 0.2.0, LighthouseClient.quorum",
    "jax": "jax distributed client, connect and wait_at_barrier",
    "nvrx": "nvidia-resiliency-ext, barrier rendezvous without its health checks",
    "tensorplay": "tensorplay, core handler",
    "c10d-quiet": "torch c10d without its logging cost",
    "c10d": "torch c10d as shipped",
}
PARTS = {
    "notified": (11, "Round formation at once", ("rallypoint", "torchft", "jax")),
    "polling": (
        5, "Round formation at once, with contenders that poll",
        ("rallypoint", "nvrx", "tensorplay", "c10d-quiet", "c10d"),
    ),
}  # fmt: skip
FRESH_SERVER = ("torchft", "jax")
JOINS_ONCE = ("nvrx",)


@dataclass
class Contender:
    """A contender's processes, kept from trial to trial where they can be."""

    name: str
    size: int
    workers: list[Helper] = field(default_factory=list)
    server: Helper | None = None
    where: str = ""
    trials: int = 0

    def start(self) -> None:
        """Start the worker processes, and the server if all trials can share it."""
        environment = ENVIRONMENT.get(self.name, self.name)
        python(environment)
        count = min(4, self.size)
        self.workers = [Helper(environment, "nodes.py", self.name) for _ in range(count)]
        self._serve()

    def _serve(self) -> None:
        if self.server is not None:
            self.server.end()
        environment = ENVIRONMENT.get(self.name, self.name)
        self.server = Helper(environment, "nodes.py", self.name, "server")
        self.where = self.server.ask(LIMIT, do="start", size=self.size)["where"]

    def trial(self) -> dict[str, float]:
        """Form one round, and a second one if the contender can."""
        if self.trials and self.name in FRESH_SERVER:
            self._serve()
        server = self.server
        assert server is not None
        self.trials += 1
        self._prepare(f"run{self.trials}")
        found: dict[str, float] = {}
        parts = ("first",) if self.name in JOINS_ONCE else ("first", "again")
        for part in parts:
            before, counted = cpu_seconds(server.pid), server.ask(LIMIT, do="stats")
            found[part] = self._round()
            after = server.ask(LIMIT, do="stats")
            found[f"{part}: server CPU"] = cpu_seconds(server.pid) - before
            for key in counted:
                found[f"{part}: {key}"] = (after[key] - counted[key]) / self.size
        for worker in self.workers:
            worker.tell(do="end")
        for worker in self.workers:
            worker.hear(LIMIT)
        return found

    def _prepare(self, run: str) -> None:
        each = self.size // len(self.workers)
        for i, worker in enumerate(self.workers):
            worker.tell(
                do="prepare", where=self.where, run=run, first=i * each, count=each, size=self.size
            )
        for worker in self.workers:
            worker.hear(300.0)  # not measured: making handlers may connect

    def _round(self) -> float:
        begun = time.monotonic()
        for worker in self.workers:
            worker.tell(do="join")
        answers = [
            worker.hear(max(0.1, begun + LIMIT - time.monotonic())) for worker in self.workers
        ]
        ranks: list[Any] = [rank for answer in answers for rank in answer["ranks"]]
        seen = sorted(rank for rank, _size in ranks)
        sizes = Counter(size for _rank, size in ranks)
        if seen != list(range(self.size)) or set(sizes) != {self.size}:
            raise Broken(f"{self.name}: not one round of {self.size}: sizes {dict(sizes)}")
        return max(answer["end"] for answer in answers) - begun

    def stop(self) -> None:
        """End all processes, including those that hang."""
        for helper in [*self.workers, *([self.server] if self.server else [])]:
            helper.kill()


def run_size(size: int, names: list[str], repeats: int, report: harness.Report) -> Any:
    """Run all contenders in turn; return samples, and which contenders took too long."""
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    too_long: dict[str, str] = {}
    live: dict[str, Contender] = {}
    try:
        for name in names:
            live[name] = Contender(name, size)
            try:
                live[name].start()
            except (Missing, Broken, TookTooLong) as error:
                report.lacks(f"{name}, N={size}", str(error))
                live.pop(name).stop()
        slow: set[str] = set()
        quick: set[str] = set()
        for turn in range(repeats + 1):
            for name, contender in list(live.items()):
                say(f"  {name}, trial {turn}")
                if name in slow and turn > 2:
                    continue
                try:
                    if name in quick:
                        contender.trial()
                    found = contender.trial()
                except TookTooLong:
                    too_long[name] = f"> {LIMIT:g} s"
                except (Broken, Missing) as error:
                    report.lacks(f"{name}, N={size}", str(error))
                else:
                    if found["first"] < QUICK_TRIAL:
                        quick.add(name)
                    if turn > 0 and found["first"] > SLOW_TRIAL:
                        slow.add(name)
                    if turn > 0:
                        for key, value in found.items():
                            samples[name].setdefault(key, []).append(value)
                    continue
                live.pop(name).stop()
    finally:
        for contender in live.values():
            contender.stop()
    return samples, too_long


def main() -> None:
    """Run all parts."""
    options = harness.arguments(__doc__ or "", sizes=(2, 8, 32, 64, 128, 256), repeats=0)
    given = options.repeats
    for part in options.parts or PARTS:
        repeats, title, names = PARTS[part]
        options.repeats = given or repeats
        say(title)
        command = f"{harness.relative(__file__)} --parts {part}"
        report = harness.Report(f"formation_{part}", title, command)
        run_part([n for n in names if not options.only or n in options.only], report, options)


def run_part(names: list[str], report: harness.Report, options: argparse.Namespace) -> None:
    """Run all sizes, report."""
    tables = {
        "first": report.table("First round, connecting included"),
        "again": report.table("Once more, connected already"),
    }
    cpu = report.table("Server CPU for a first round", "ms", 1000)
    counts = report.table("For each node, rallypoint", "count or bytes", 1, compared=False)
    gone: set[str] = set()
    for size in options.sizes:
        say(f"N = {size}")
        here = [name for name in names if name not in gone]
        samples, too_long = run_size(size, here, options.repeats, report)
        case = f"N={size}"
        for name in here:
            for part, table in tables.items():
                if part in samples[name]:
                    table.add(case, name, "wall", samples[name][part])
            if name in too_long:
                gone.add(name)
                tables["first"].add(case, name, "wall", []).note = too_long[name]
            if "first: server CPU" in samples[name]:
                cpu.add(case, name, "server CPU", samples[name]["first: server CPU"])
        for part in tables:
            for key in ("requests", "bytes"):
                found = samples.get("rallypoint", {}).get(f"{part}: {key}")
                if found:
                    counts.add(case, part, key, found)
        report.save()
    report.notes += [f"{name}: {what}" for name, what in CONTENDERS.items() if name in names]
    if "c10d-quiet" in names:
        report.notes.append(
            "without its logging cost: construct_and_record_rdzv_event and get_method_name, which "
            "walk the stack with inspect.stack(), are replaced by functions that do nothing"
        )
    report.notes.append(f"a contender that takes more than {LIMIT:g} s is left out of larger N")
    report.finish(lambda axes, r: harness.lines(axes, tables["first"], "wall"))


if __name__ == "__main__":
    sys.exit(main())
