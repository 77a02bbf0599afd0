"""Each call takes effect exactly once, however often connections are closed.

Eight client processes count on one server, each through a proxy that resets its connections a
hundred times during calls; meanwhile another call waits in each client.

    RALLYPOINT_FULL=1 pytest -s tests/integration/test_disconnects.py      # 100,000 times each
"""

import os
import random
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.integration.harness import LOOPBACK, Fleet

from rallypoint.store.tcp import TCPStore
from rallypoint.testing.fakes import Proxy

ROOT = Path(__file__).resolve().parents[2]
CLIENTS, CUTS = 8, 100
FULL = os.environ.get("RALLYPOINT_FULL", "") not in ("", "0")
ADDS = 100_000 if FULL else 1_000
LIMIT_SECONDS = 1500.0 if FULL else 100.0
_SUM = struct.Struct("<I")


@pytest.fixture(name="fleet")
def _fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


@pytest.mark.integration
@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_every_add_counts_once_and_waits_continue(fleet: Fleet) -> None:
    _server, where = fleet.server()
    port = where.rpartition(":")[2]
    began = time.monotonic()
    paths = [str(ROOT), fleet.environment().get("PYTHONPATH", "")]
    fleet.env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    script = [sys.executable, __file__, port, str(ADDS)]
    clients = [
        fleet.start(f"client{number}", *script, str(number), str(fleet.folder))
        for number in range(CLIENTS)
    ]
    for client in clients:
        client.expect(f"^{ADDS} done, {CUTS} cuts$", limit=LIMIT_SECONDS)
    took = time.monotonic() - began
    with TCPStore(LOOPBACK, int(port), timeout=20) as store:
        assert store.add("sum", 0) == CLIENTS * ADDS
        store.set("end", b"now")
    for client in clients:
        client.expect("^waited until now$")
        assert client.wait() == 0, client.shown()
    sums = [each[0] for n in range(CLIENTS) for each in _SUM.iter_unpack(_read(fleet, n))]
    assert sorted(sums) == list(range(1, CLIENTS * ADDS + 1))  # each reply came once
    print(
        f"figures: {CLIENTS} clients, {ADDS} adds and {CUTS} cuts each: {len(sums)} in {took:.0f} s"
    )


def _read(fleet: Fleet, number: int) -> bytes:
    return (fleet.folder / f"{number}.sums").read_bytes()


def count(port: int, adds: int, number: int, folder: Path) -> None:
    """Run one client."""
    dice = random.Random(number)
    due, cuts = threading.Semaphore(0), 0
    with Proxy(LOOPBACK, port) as proxy, ThreadPoolExecutor(2) as threads:
        store = TCPStore(LOOPBACK, proxy.port, timeout=120)

        def cut() -> int:
            for _ in range(CUTS):
                due.acquire()
                time.sleep(dice.uniform(0.0, 0.001))  # a call is in progress
                while not proxy.cut():  # it was connecting
                    time.sleep(0.001)
            return CUTS

        cutting = threads.submit(cut)
        waiting = threads.submit(store.get, "end", LIMIT_SECONDS)
        with (folder / f"{number}.sums").open("wb") as sums:
            for call in range(adds):
                if call * CUTS // adds > cuts - 1 and cuts < CUTS:
                    cuts += 1
                    due.release()
                sums.write(_SUM.pack(store.add("sum", 1)))
        print(f"{adds} done, {cutting.result()} cuts", flush=True)
        print(f"waited until {waiting.result().decode()}", flush=True)
        store.close()


if __name__ == "__main__":
    where, adds, number = (int(each) for each in sys.argv[1:4])
    count(where, adds, number, Path(sys.argv[4]))
