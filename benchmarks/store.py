"""The store: latency of one client, throughput of many clients, barriers and gathers.

Each server and each client runs in its own process. torch's `set` does not wait for a reply; ours
does. So many sets with one reply (pipeline) are compared too.

In a call of one client, two processes take turns, and the time depends on where the kernel runs
them. On one core, it is the time that both need. On two cores, most of it is two wake-ups of an
idle core. The kernel moves processes during a run, so the processes are bound to cores and both
placements are measured.

A virtual machine may take memory from an idle process, and another contender ran just before. So
each measurement follows a short one that is not counted.
"""

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness
from environments import Missing, program, python
from processes import Broken, Helper, Program, cpu_seconds, pin, say

LIMIT = 60.0
OPEN_LIMIT = 300.0  # a torch client sometimes waits 10 s for its connection
CALLS = 2000
SECONDS = 0.5
THROUGHPUT_CALLS = ("get", "add", "set", "pipeline 100 set")
CROWDS = ((8, 2), (64, 4))
BARE = ("bare", "messages")
ANSWERED = {"etcd": ("get", "set"), "messages": ("get", "add")}
NAMES = {"messages": "bare, our messages", "bare": "bare, one exchange"}
PLACEMENTS = {"on one core": (0, 0), "on two cores": (0, 1)}  # the server's, the client's
_names = itertools.count()


@dataclass
class Peer:
    """A contender with its server running."""

    kind: str
    port: int
    server_pid: int

    def client(self) -> Helper:
        """Start a client process."""
        environment = "rallypoint" if self.kind in BARE else self.kind
        return Helper(environment, "store_clients.py", self.kind, "127.0.0.1", str(self.port))


@contextlib.contextmanager
def rallypoint() -> Iterator[Peer]:
    """Run our server."""
    command = [str(python("rallypoint")), "-m", "rallypoint", "serve", "--bind", "127.0.0.1:0"]
    with Program(command, ready="serving on") as server:
        yield Peer("rallypoint", int(server.line.split()[-1].rsplit(":", 1)[1]), server.pid)


@contextlib.contextmanager
def torch() -> Iterator[Peer]:
    """Run torch's server."""
    with Helper("torch", "torch_store_server.py") as server:
        yield Peer("torch", server.ask(LIMIT, do="port")["port"], server.pid)


@contextlib.contextmanager
def redis() -> Iterator[Peer]:
    """Run a Redis server that writes nothing to disk."""
    port = free_port()
    command = [program("redis-server", "redis-server"), "--port", str(port), "--save", ""]
    with Program([*command, "--bind", "127.0.0.1"], ready="Ready to accept") as server:
        yield Peer("redis", port, server.pid)


@contextlib.contextmanager
def etcd() -> Iterator[Peer]:
    """Run one etcd member; etcd always writes to disk."""
    port, peers = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            program("etcd", "etcd-server"), "--data-dir", folder,
            "--listen-client-urls", f"http://127.0.0.1:{port}",
            "--advertise-client-urls", f"http://127.0.0.1:{port}",
            "--listen-peer-urls", f"http://127.0.0.1:{peers}",
        ]  # fmt: skip
        with Program(command, ready="ready to serve client requests") as server:
            yield Peer("etcd", port, server.pid)


@contextlib.contextmanager
def echo(how: str, client: str = "bare") -> Iterator[Peer]:
    """Run a server that only replies."""
    with Helper("rallypoint", "echo_server.py", how) as server:
        yield Peer(client, server.ask(LIMIT, do="port")["port"], server.pid)


SERVERS: dict[str, Callable[[], Any]] = {
    "rallypoint": rallypoint,
    "torch": torch,
    "redis": redis,
    "etcd": etcd,
}


def free_port() -> int:
    """Return a free port."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def single(peers: list[Peer], report: harness.Report, options: argparse.Namespace) -> None:
    """Time each call of one client."""
    with contextlib.ExitStack() as stack:
        clients, calls = {}, {}
        for peer in peers:
            clients[peer.kind] = client = stack.enter_context(peer.client())
            calls[peer.kind] = client.ask(LIMIT, do="open", count=1)["calls"]
        for placement, (servers, ours) in PLACEMENTS.items():
            table = report.table(
                f"One client and its server {placement}, time of a call", "us", 1e6
            )
            for peer in peers:
                pin(peer.server_pid, servers)
                pin(clients[peer.kind].pid, ours)
            for call in calls[peers[0].kind]:
                count = CALLS if " " not in call else CALLS // 10
                contenders: dict[str, harness.Measure] = {
                    kind: lambda c=client, call=call, count=count: _timed(c, call, count)
                    for kind, client in clients.items()
                    if call in calls[kind]
                }
                found = harness.run_in_turn(contenders, options.repeats, report)
                for kind, samples in found.items():
                    table.add(call, kind, "time", samples.get("seconds", []))


def _timed(client: Helper, call: str, count: int) -> dict[str, float]:
    client.ask(LIMIT, do="latency", call=call, count=count // 4)
    return client.ask(LIMIT, do="latency", call=call, count=count)


def floor(peers: list[Peer], report: harness.Report, options: argparse.Namespace) -> None:
    """Compare a get with a bare exchange of as many bytes between two Python processes."""
    with contextlib.ExitStack() as stack:
        named = {peer.kind: peer for peer in peers}
        named["bare, our messages"] = stack.enter_context(echo("messages", "messages"))
        named["bare, our event loop"] = stack.enter_context(echo("uvloop"))
        named["bare, blocking calls"] = stack.enter_context(echo("blocking"))
        clients = {name: stack.enter_context(peer.client()) for name, peer in named.items()}
        contenders: dict[str, harness.Measure] = {}
        for name, client in clients.items():
            client.ask(LIMIT, do="open", count=1)
            contenders[name] = lambda c=client, peer=named[name]: _exchanges(c, peer)
        for placement, (servers, ours) in PLACEMENTS.items():
            table = report.table(f"A get, and bare exchanges, {placement}", "us", 1e6)
            for name, client in clients.items():
                pin(named[name].server_pid, servers)
                pin(client.pid, ours)
            found = harness.run_in_turn(contenders, options.repeats, report)
            for measure in ("time", "client CPU", "server CPU"):
                for name, samples in found.items():
                    table.add("get", name, measure, samples.get(measure, []))


def _exchanges(client: Helper, peer: Peer) -> dict[str, float]:
    client.ask(LIMIT, do="latency", call="get", count=CALLS // 4)
    before = cpu_seconds(client.pid), cpu_seconds(peer.server_pid)
    seconds = client.ask(LIMIT, do="latency", call="get", count=CALLS)["seconds"]
    after = cpu_seconds(client.pid), cpu_seconds(peer.server_pid)
    cpu = [(b - a) / CALLS for a, b in zip(before, after, strict=True)]
    return {"time": seconds, "client CPU": cpu[0], "server CPU": cpu[1]}


def throughput(given: list[Peer], report: harness.Report, options: argparse.Namespace) -> None:
    """Count the calls per second of many clients in a few processes."""
    table = report.table("Many clients, answered calls", "calls/s", 1)
    for clients, processes in CROWDS:
        with contextlib.ExitStack() as stack:
            peers = [*given, stack.enter_context(echo("messages", "messages"))]
            crowds: dict[str, list[Helper]] = {}
            for peer in peers:
                crowd = [stack.enter_context(peer.client()) for _ in range(processes)]
                for helper in crowd:
                    helper.ask(OPEN_LIMIT, do="open", count=clients // processes)
                crowds[peer.kind] = crowd
            for call in THROUGHPUT_CALLS:
                contenders: dict[str, harness.Measure] = {
                    peer.kind: lambda p=peer, call=call, crowds=crowds: _rate(
                        p, crowds[p.kind], call
                    )
                    for peer in peers
                    if call in ANSWERED.get(peer.kind, THROUGHPUT_CALLS)
                }
                found = harness.run_in_turn(contenders, options.repeats, report)
                case = f"{call}, {clients} clients in {processes} processes"
                for kind, samples in found.items():
                    name = NAMES.get(kind, kind)
                    table.add(case, name, "rate", samples.get("rate", []))
                for kind, samples in found.items():
                    name = NAMES.get(kind, kind)
                    table.add(case, name, "server CPU us a call", samples.get("cpu", []))


def _rate(peer: Peer, crowd: list[Helper], call: str) -> dict[str, float]:
    for seconds in (SECONDS / 4, SECONDS):
        before = cpu_seconds(peer.server_pid)
        for helper in crowd:
            helper.tell(do="throughput", call=call, seconds=seconds)
        answers = [helper.hear(LIMIT) for helper in crowd]
    calls = sum(a["calls"] for a in answers)
    took = max(a["end"] for a in answers) - min(a["begun"] for a in answers)
    cpu = cpu_seconds(peer.server_pid) - before
    return {"rate": calls / took, "cpu": cpu / calls * 1e6}


def groups(given: list[Peer], report: harness.Report, options: argparse.Namespace) -> None:
    """Barriers and gathers of N members, from the signal until the last one returns."""
    table = report.table("Groups of N members, until the last one returns", "ms", 1000)
    for size in options.sizes:
        processes = min(4, size)
        with contextlib.ExitStack() as stack:
            crowds: dict[str, list[Helper]] = {}
            peers = [*given, stack.enter_context(echo("meeting"))]
            for peer in peers:
                crowd = [stack.enter_context(peer.client()) for _ in range(processes)]
                for helper in crowd:
                    helper.tell(do="open", count=size // processes)
                for helper in crowd:
                    helper.hear(OPEN_LIMIT)
                crowds[peer.kind] = crowd
            for kind in ("barrier", "all_gather"):
                contenders: dict[str, harness.Measure] = {
                    name: lambda crowd=crowd, kind=kind, size=size: _meet(crowd, kind, size)
                    for name, crowd in crowds.items()
                    if name not in BARE or kind == "barrier"
                }
                found = harness.run_in_turn(contenders, options.repeats, report)
                for name, samples in found.items():
                    who = NAMES.get(name, name)
                    table.add(f"{kind} N={size}", who, "wall", samples.get("seconds", []))


def _meet(crowd: list[Helper], kind: str, size: int) -> dict[str, float]:
    each = size // len(crowd)
    for _ in range(2):  # the first one is not counted
        name = f"meet/{next(_names)}"
        begun = time.monotonic()
        for i, helper in enumerate(crowd):
            helper.tell(do="group", kind=kind, name=name, first=i * each, size=size)
        end = max(helper.hear(LIMIT)["end"] for helper in crowd)
    return {"seconds": end - begun}


PARTS: dict[str, tuple[str, Callable[..., None]]] = {
    "calls": ("The store: one client", single),
    "floor": ("The store: the least that a call can cost", floor),
    "throughput": ("The store: many clients", throughput),
    "groups": ("The store: barrier and all_gather", groups),
}


def main() -> None:
    """Run all parts, each with a report of its own."""
    options = harness.arguments(__doc__ or "", sizes=(8, 64, 256, 1000))
    for part in options.parts or PARTS:
        title, run = PARTS[part]
        say(title)
        command = f"{harness.relative(__file__)} --parts {part}"
        report = harness.Report(f"store_{part}", title, command)
        with contextlib.ExitStack() as stack:
            peers: list[Peer] = []
            for name, serve in SERVERS.items():
                if options.only and name not in options.only:
                    continue
                if part in ("groups", "floor") and name not in ("rallypoint", "torch"):
                    continue
                try:
                    python(name)
                    peers.append(stack.enter_context(serve()))
                except (Missing, Broken) as error:
                    report.lacks(name, str(error))
            run(peers, report, options)
        report.notes.append(
            "torch's set and multi_set return before the server replies; "
            "etcd: grpcio with hand-written messages, and it writes to disk"
        )
        report.finish(CHARTS[part])


def _calls_chart(axes: Any, report: harness.Report) -> None:
    table = report.tables[0]
    quick = harness.Table(table.title, table.unit)
    quick.rows = [r for r in table.rows if " " not in r.case]
    harness.bars(axes, quick)
    axes.set_yscale("log")


def _throughput_chart(axes: Any, report: harness.Report) -> None:
    table = report.tables[0]
    short = harness.Table(table.title, table.unit)
    for row in table.rows:
        words = row.case.replace(",", "").split()
        case = f"{words[0]} {words[1]}"
        short.rows.append(harness.Row(case, row.contender, row.measure, row.samples))
    harness.bars(axes, short, "rate")
    axes.set_yscale("log")


def _groups_chart(axes: Any, report: harness.Report) -> None:
    table = report.tables[0]
    curves = harness.Table(table.title, table.unit)
    for row in table.rows:
        kind, size = row.case.split()
        curves.rows.append(harness.Row(size, f"{row.contender} {kind}", "wall", row.samples))
    harness.lines(axes, curves, "wall")


def _floor_chart(axes: Any, report: harness.Report) -> None:
    harness.bars(axes, report.tables[0], "time")


CHARTS = {
    "calls": _calls_chart,
    "floor": _floor_chart,
    "throughput": _throughput_chart,
    "groups": _groups_chart,
}


if __name__ == "__main__":
    sys.exit(main())
