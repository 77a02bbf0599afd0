"""Chaos runs one after the other, with a report.

    python tests/chaos/run.py --runs 200 --seed 1 [--kind hosted] [--report FILE]

Each run has its own seed, counted from the given one; a line says the faults and the outcome. The
exit code is 1 if a rule was violated.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.chaos.experiment import Outcome, run_agents  # noqa: E402 - the path comes first
from tests.chaos.file_store_writers import run_writers  # noqa: E402
from tests.chaos.plans import Kind, Plan, plan_from  # noqa: E402


def has_disk() -> bool:
    """Return whether a server can keep its state."""
    argv = [sys.executable, "-m", "rallypoint", "serve", "--help"]
    return "--data-dir" in subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def run_plan(plan: Plan, durable: bool) -> Outcome:
    """Run one plan in a new folder."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        if plan.kind is not Kind.WRITERS:
            return run_agents(plan, Path(folder), durable)
        began = time.monotonic()
        seen, wrong = run_writers(Path(folder), plan.seed, plan.nodes)
        return Outcome(plan, time.monotonic() - began, seen, wrong)


def main() -> int:
    """Run the plans; return 1 if a rule was violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--kind", type=Kind, choices=list(Kind), help="only runs of this kind")
    given = parser.parse_args()
    durable, began = has_disk(), time.monotonic()
    kinds, bad = Counter[str](), 0
    for seed in range(given.seed, given.seed + given.runs):
        outcome = run_plan(plan_from(seed, given.kind, durable), durable)
        kinds[outcome.plan.kind] += 1
        print(outcome.line(), flush=True)
        if outcome.wrong:
            bad += 1
            print(outcome.told, flush=True)
    of_kind = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    print(
        f"{given.runs} runs ({of_kind}) in {time.monotonic() - began:.0f} s: "
        f"{bad} with violations; server {'with' if durable else 'without'} a disk"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
