"""Many random faults and their cost: the table of docs/high-availability.md.

    python -m tests.failover.run --runs 50 --seed 0

A failed run ends the program and prints its kind and seed; the servers' logs are kept.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.engine_servers import EtcdServers
from tests.failover.server_pair import FAULTS, Outcome, pair_on

RUNS_OF_A_PAIR = 10


def row(kind: str, outcomes: Sequence[Outcome]) -> str:
    """Return a kind's row: median and worst of each time."""

    def times(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.1f} / {max(values):.1f} s" if values else "-"

    led = [outcome.led for outcome in outcomes if outcome.led is not None]
    return (
        f"| {kind} | {len(outcomes)} | {times(led)} | {times([o.held for o in outcomes])} "
        f"| {times([o.node for o in outcomes])} | {sum(o.calls for o in outcomes)} |"
    )


def run(kind: str, runs: int, seed: int, folder: Path) -> list[Outcome]:
    """Run one kind of fault `runs` times."""
    outcomes: list[Outcome] = []
    etcd = EtcdServers(3).start()
    try:
        while len(outcomes) < runs:
            number = len(outcomes) // RUNS_OF_A_PAIR
            place = folder / f"run{number}"
            place.mkdir()
            with pair_on(etcd, place, f"run{number}") as pair:
                for _ in range(min(RUNS_OF_A_PAIR, runs - len(outcomes))):
                    at = seed + len(outcomes)
                    try:
                        outcomes.append(pair.run(FAULTS[kind], at))
                    except BaseException:
                        print(f"broken: {kind}, seed {at}, logs in {place}", flush=True)
                        raise
                    print(f"{kind}: seed {at}: {outcomes[-1]}", flush=True)
    finally:
        etcd.stop()
    return outcomes


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--kind", choices=tuple(FAULTS), action="append")
    options = parser.parse_args()
    began = time.monotonic()
    rows = []
    for kind in options.kind or FAULTS:
        folder = Path(tempfile.mkdtemp(prefix="rallypoint-failover-"))
        rows.append(row(kind, run(kind, options.runs, options.seed, folder)))
        shutil.rmtree(folder)
    print("\n| fault | runs | next one leads | call held up | node away | calls |")
    print("|---|---|---|---|---|---|")
    print("\n".join(rows))
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
