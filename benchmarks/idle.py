"""What an idle run costs: a server whose N connected nodes send heartbeats only.

The nodes form one round; then each sends a heartbeat every 5 s (a third of the lease). They are
spread evenly.
"""

import sys

import harness
from processes import Helper, Program, cpu_seconds, resident_bytes, say
from scaling import LIMIT, TOKEN, command

SECONDS = 10.0
BEAT_SECONDS = 5.0


def trial(n: int) -> dict[str, float]:
    """Form a round, stay idle, and measure what the server used."""
    with (
        Program(command(), ready="serving on") as server,
        Helper("rallypoint", "light_clients.py") as light,
    ):
        host, port = server.line.split()[-1].rsplit(":", 1)
        empty = resident_bytes(server.pid)
        light.ask(
            LIMIT, do="form", limit=LIMIT, host=host, port=int(port), run="idle",
            token=TOKEN, n=n,
        )  # fmt: skip
        before = cpu_seconds(server.pid)
        told = light.ask(LIMIT, do="beat", seconds=SECONDS, interval=BEAT_SECONDS)
        used = (cpu_seconds(server.pid) - before) / told["seconds"]
        memory = resident_bytes(server.pid) - empty
        return {"CPU, % of a core": used * 100, "memory a node, KiB": memory / n / 1024}


def main() -> None:
    """Run all sizes, report."""
    options = harness.arguments(__doc__ or "", sizes=(1000, 10000), repeats=5)
    report = harness.Report("idle", "Idle cost of a server", harness.relative(__file__))
    table = report.table(
        f"Connected nodes with a heartbeat every {BEAT_SECONDS:g} s, over {SECONDS:g} s",
        "",
        1,
        False,
    )
    for n in options.sizes:
        say(f"N = {n:,}")
        found = harness.run_in_turn(
            {"rallypoint": lambda n=n: trial(n)}, options.repeats, report, warm_up=0
        )
        for measure, samples in found["rallypoint"].items():
            table.add(f"N={n:,}", "rallypoint", measure, samples)
    report.finish(lambda axes, r: harness.bars(axes, table, "CPU, % of a core"))


if __name__ == "__main__":
    sys.exit(main())
