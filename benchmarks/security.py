"""What security costs, and how hostile connections affect members.

* cost: handshake, store call, 8 MiB value and a round of 1,000 nodes: without security, with a
  token, and with TLS and a token, in turn.
* flood: a run of 100 nodes while 1,000 hostile connections per second arrive for 60 s, all on
  loopback.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import harness
from environments import python
from processes import Helper, Program, cpu_seconds, resident_bytes, say

TOKEN = "0123456789abcdef0123456789abcdef"
LIMIT = 180.0
NODES, MEMBERS = 1000, 100
RATE, SECONDS = 1000, 60.0
CALLS, CONNECTIONS = 2000, 100


def server(token: str = "", folder: str = "") -> Program:
    """Start a server; with a folder of certificates, with TLS."""
    command = ["env", f"RALLYPOINT_TOKEN={token}", str(python("rallypoint")), "-m", "rallypoint"]
    command += ["serve", "--bind", "127.0.0.1:0"]
    if folder:
        command += ["--tls-cert", f"{folder}/server.pem", "--tls-key", f"{folder}/server.key"]
    return Program(command, ready="serving on")


def port_of(program: Program) -> int:
    """Return where it listens."""
    return int(program.line.split()[-1].rsplit(":", 1)[1])


def certificates(folder: str) -> None:
    """Make a CA and a server certificate with openssl."""
    ca, key = f"{folder}/ca.pem", f"{folder}/ca.key"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run = ["openssl", "req", "-x509", *curve, "-days", "2", "-subj", "/CN=bench"]
    usage = ["-addext", "keyUsage=critical,keyCertSign"]
    _run([*run, *usage, "-keyout", key, "-out", ca])
    name = ["-addext", "subjectAltName=IP:127.0.0.1", "-CA", ca, "-CAkey", key]
    own = ["-addext", "basicConstraints=critical,CA:FALSE"]
    _run([*run, *name, *own, "-keyout", f"{folder}/server.key", "-out", f"{folder}/server.pem"])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def cost(token: str, folder: str) -> dict[str, float]:
    """Measure one kind of connection."""
    ca = f"{folder}/ca.pem" if folder else ""
    with server(token, folder) as program:
        port = port_of(program)
        with Helper("rallypoint", "members.py") as members:
            found = members.ask(
                LIMIT, do="calls", port=port, token=token, ca=ca, n=CALLS, connections=CONNECTIONS
            )
        with Helper("rallypoint", "light_clients.py") as light:
            told = light.ask(
                LIMIT, do="form", limit=LIMIT, host="127.0.0.1", port=port, run="round",
                token=token, n=NODES, ca=ca,
            )  # fmt: skip
        return {**found, f"{NODES:,} nodes seal": told["seconds"]}


def flood() -> dict[str, float]:
    """Form a run, start the attack, and measure how the members fare."""
    with server(TOKEN) as program, Helper("rallypoint", "members.py") as members:
        port = port_of(program)
        assert members.ask(LIMIT, do="form", port=port, token=TOKEN, n=MEMBERS) == {
            "sealed": MEMBERS
        }
        quiet = members.ask(LIMIT, do="rest", seconds=5.0)
        memory, cpu = resident_bytes(program.pid), cpu_seconds(program.pid)
        with Helper("rallypoint", "attackers.py") as attackers:
            attackers.tell(do="attack", port=port, rate=RATE, seconds=SECONDS, seed=1)
            under = members.ask(LIMIT, do="rest", seconds=SECONDS)
            told = attackers.hear(LIMIT)
        used = (cpu_seconds(program.pid) - cpu) / told["seconds"]
        grown = resident_bytes(program.pid) - memory
        members.ask(LIMIT, do="end")
        return {
            "hostile connections a second": told["rate"],
            "beat answered, quiet, median ms": quiet["median"] * 1000,
            "beat answered, quiet, worst ms": quiet["worst"] * 1000,
            "beat answered, flooded, median ms": under["median"] * 1000,
            "beat answered, flooded, worst ms": under["worst"] * 1000,
            "members disturbed": under["disturbed"] + under["disconnected"],
            "server CPU, % of a core": used * 100,
            "server memory, grown MiB": grown / 2**20,
        }


def main() -> None:
    """Run the parts, report."""
    options = harness.arguments(__doc__ or "", repeats=5)
    report = harness.Report("security", "What security costs", harness.relative(__file__))
    table = report.table("Plain, with a token, with TLS and a token")
    if not options.parts or "cost" in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            certificates(folder)
            assert Path(folder, "server.pem").exists()
            ways = {
                "plain": lambda: cost("", ""),
                "token": lambda: cost(TOKEN, ""),
                "TLS and token": lambda: cost(TOKEN, folder),
            }
            found = harness.run_in_turn(ways, options.repeats, report)
        for measure in next(iter(found.values())):
            for way, samples in found.items():
                table.add(measure, way, "time", samples[measure])
    if not options.parts or "flood" in options.parts:
        say(f"{RATE} hostile connections a second for {SECONDS:g} s")
        title = f"{MEMBERS} members under {RATE:,} hostile connections a second, for {SECONDS:g} s"
        attacked = report.table(title, "", 1, compared=False)
        found = harness.run_in_turn({"rallypoint": flood}, options.repeats, report, warm_up=0)
        for measure, samples in found["rallypoint"].items():
            attacked.add("flood", "rallypoint", measure, samples)
    report.finish(lambda axes, _r: harness.bars(axes, table))


if __name__ == "__main__":
    sys.exit(main())
