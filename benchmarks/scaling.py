"""How a round scales with its size: N light clients in one process, against `rallypoint serve`.

They connect, authenticate and join until the round is sealed; then all join again over the same
connections. Requests and bytes per node must not depend on N; the server's CPU time must be
proportional to N.
"""

import sys

import harness
from environments import python
from processes import Helper, Program, cpu_seconds, resident_bytes, say

LIMIT = 120.0
TOKEN = "0123456789abcdef"
MEASURES = {
    "form": "connect and form",
    "again": "form again, connected",
}


def trial(n: int) -> dict[str, float]:
    """Form a round of n light clients on a fresh server, and one again."""
    found: dict[str, float] = {}
    with (
        Program(command(), ready="serving on") as server,
        Helper("rallypoint", "light_clients.py") as light,
    ):
        host, port = server.line.split()[-1].rsplit(":", 1)
        empty = resident_bytes(server.pid)
        for part in MEASURES:
            before = cpu_seconds(server.pid)
            if part == "form":
                told = light.ask(
                    LIMIT, do="form", limit=LIMIT, host=host, port=int(port), run="scaling",
                    token=TOKEN, n=n,
                )  # fmt: skip
                found["memory a node"] = (resident_bytes(server.pid) - empty) / n
            else:
                told = light.ask(LIMIT, do="again", limit=LIMIT)
            found[f"{part}: seconds"] = told["seconds"]
            found[f"{part}: server CPU"] = cpu_seconds(server.pid) - before
            found[f"{part}: client CPU"] = told["client_cpu"]
            for key in ("requests", "answers", "bytes_out", "bytes_in"):
                found[f"{part}: {key}"] = told[key]
    return found


def command() -> list[str]:
    """Return the command of the server."""
    return [
        "env", f"RALLYPOINT_TOKEN={TOKEN}", str(python("rallypoint")),
        "-m", "rallypoint", "serve", "--bind", "127.0.0.1:0",
    ]  # fmt: skip


def main() -> None:
    """Run all sizes, report."""
    options = harness.arguments(__doc__ or "", sizes=(10, 100, 1000, 3000, 10000))
    report = harness.Report(
        "scaling", "Round formation by size, light clients", harness.relative(__file__)
    )
    wall = report.table("Wall time", "ms", 1000, compared=False)
    cpu = report.table("CPU for each node", "us", 1e6, compared=False)
    counts = report.table("For each node, once", "count or bytes", 1, compared=False)
    samples = {}
    for n in options.sizes:
        say(f"N = {n:,}")
        name = f"N={n:,}"
        found = harness.run_in_turn({"rallypoint": lambda n=n: trial(n)}, options.repeats, report)
        samples[n] = found["rallypoint"]
        if not samples[n]:
            continue
        for part, title in MEASURES.items():
            wall.add(name, title, "wall", samples[n][f"{part}: seconds"])
            for side in ("server", "client"):
                each = [x / n for x in samples[n][f"{part}: {side} CPU"]]
                cpu.add(name, title, f"{side} CPU", each)
            for key in ("requests", "answers", "bytes_out", "bytes_in"):
                counts.add(name, title, key, samples[n][f"{part}: {key}"])
        counts.add(name, "server", "memory (VmRSS), bytes", samples[n]["memory a node"])
    report.finish(lambda axes, r: harness.lines(axes, wall, "wall"))


if __name__ == "__main__":
    sys.exit(main())
