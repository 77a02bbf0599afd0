"""What `--data-dir` costs: the same server with and without it, with 1 and 64 clients.

Both servers run at the same time, each in its own process, and are measured in turn. 64 clients
are four processes with 16 threads, and each thread has its own connection. The disk is that of the
temporary directory (see TMPDIR). Prints a table for docs/durability.md.

    python3 benchmarks/durability.py [--rounds 7] [--seconds 1.0]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments import enter

CROWDS = {1: (1, 1), 64: (4, 16)}
CALLS = ("set", "add", "get")
LIMIT_SECONDS = 60.0


def call_for(seconds: float, call: Callable[[], Any], took: list[float]) -> None:
    """Call again and again for a time; record how long each call took."""
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        call()
        took.append(time.monotonic() - began)


def client(port: int, threads: int) -> None:
    """Run clients: read call and seconds from a line, write the times as a line."""
    from rallypoint.store.tcp import TCPStore

    stores = [TCPStore("127.0.0.1", port, timeout=LIMIT_SECONDS) for _ in range(threads)]
    stores[0].set("read", b"v" * 32)
    print(json.dumps([]), flush=True)
    for line in sys.stdin:
        name, seconds = json.loads(line)
        took: list[list[float]] = [[] for _ in stores]
        calls: dict[str, Callable[[int], Callable[[], Any]]] = {
            "set": lambda i: lambda: stores[i].set(f"key/{port}/{i}", b"v" * 32),
            "add": lambda i: lambda: stores[i].add("count", 1),
            "get": lambda i: lambda: stores[i].get("read"),
        }
        running = [
            threading.Thread(target=call_for, args=(seconds, calls[name](i), took[i]))
            for i in range(threads)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        print(json.dumps([t for each in took for t in each]), flush=True)


class Crowd:
    """Client processes of one server."""

    def __init__(self, port: int, processes: int, threads: int) -> None:
        command = [sys.executable, __file__, "--client", str(port), str(threads)]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(processes)
        ]
        self._read()

    def _read(self) -> list[float]:
        return [t for each in self.processes for t in json.loads(each.stdout.readline())]

    def ask(self, name: str, seconds: float) -> list[float]:
        """Make all clients call for a time; return the duration of every call."""
        for each in self.processes:
            each.stdin.write(json.dumps([name, seconds]) + "\n")
            each.stdin.flush()
        return self._read()

    def end(self) -> None:
        """End them."""
        for each in self.processes:
            each.stdin.close()
            each.wait(LIMIT_SECONDS)
            each.stdout.close()


def serve(*options: str) -> tuple[subprocess.Popen[str], int]:
    """Start a server; return it and its port."""
    command = [sys.executable, "-m", "rallypoint", "serve", "--bind=127.0.0.1:0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return server, int(server.stdout.readline().rpartition(":")[2])


def measure(rounds: int, seconds: float, folder: Path) -> None:
    """Print the table."""
    servers = {"memory": serve(), "--data-dir": serve(f"--data-dir={folder / 'data'}")}
    print("| clients | call | memory [calls/s] | `--data-dir` [calls/s] | ratio | "
          "memory, median [ms] | `--data-dir`, median [ms] | `--data-dir`, 99% [ms] |")  # fmt: skip
    print("|--:|---|--:|--:|--:|--:|--:|--:|")
    for clients, (processes, threads) in CROWDS.items():
        crowds = {kind: Crowd(port, processes, threads) for kind, (_, port) in servers.items()}
        for name in CALLS:
            rates: dict[str, list[float]] = {kind: [] for kind in crowds}
            times: dict[str, list[float]] = {kind: [] for kind in crowds}
            for number in range(rounds + 1):
                for kind, crowd in crowds.items():
                    took = crowd.ask(name, seconds)
                    if number:  # the first one warms up
                        rates[kind].append(len(took) / seconds)
                        times[kind] += took
            memory, disk = (statistics.median(rates[kind]) for kind in crowds)
            middle = [statistics.median(times[kind]) * 1e3 for kind in crowds]
            worst = statistics.quantiles(times["--data-dir"], n=100)[-1] * 1e3
            print(f"| {clients} | {name} | {memory:,.0f} | {disk:,.0f} | {disk / memory:.2f} | "
                  f"{middle[0]:.2f} | {middle[1]:.2f} | {worst:.1f} |", flush=True)  # fmt: skip
        for crowd in crowds.values():
            crowd.end()
    for server, _ in servers.values():
        server.terminate()
        server.wait(LIMIT_SECONDS)
        server.stdout.close()


def main() -> None:
    """Measure, or be a client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", nargs=2, type=int)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    if given.client:
        client(*given.client)
        return
    enter()
    with tempfile.TemporaryDirectory() as folder:
        measure(given.rounds, given.seconds, Path(folder))


if __name__ == "__main__":
    main()
