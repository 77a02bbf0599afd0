"""A durable server with clients: it is killed, restarted and disconnected.

RALLYPOINT_NIGHTLY runs the full count: 8 clients that add 100,000 times each.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.integration.harness import Fleet, Process, endpoint

from rallypoint.store.tcp import TCPStore
from rallypoint.testing.fakes import Proxy

pytestmark = pytest.mark.integration

LONG = bool(os.environ.get("RALLYPOINT_NIGHTLY"))
CLIENTS = 8
ADDS = 100_000 if LONG else 1_000
CUTS = 100 if LONG else 20
KILLS = 5 if LONG else 2
LIMIT_SECONDS = 3000.0 if LONG else 90.0


class Place:
    """A server that is killed and started again, at the same address and directory."""

    def __init__(self, fleet: Fleet) -> None:
        self.where = endpoint()
        self.port = int(self.where.rpartition(":")[2])
        self._fleet, self._starts = fleet, 0
        self.server = self._start()

    def _start(self, *more: str) -> Process:
        self._starts += 1
        server = self._fleet.rallypoint(
            f"server{self._starts}", "serve", f"--bind={self.where}",
            f"--data-dir={self._fleet.folder / 'data'}", *more,
        )  # fmt: skip
        server.expect("^serving on ")
        return server

    def restart(self) -> None:
        """Kill -9, and start again."""
        self.server.kill()
        self.server = self._start()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Fleet(tmp_path) as fleet:
        yield Place(fleet)


def test_blocked_waits_survive_a_server_restart(place: Place) -> None:
    def client() -> TCPStore:
        return TCPStore("127.0.0.1", place.port, timeout=60)

    calls: list[Callable[[TCPStore], object]] = [
        lambda store: store.get("late"),
        lambda store: store.wait(["late"], 60),
        lambda store: store.queue_pop("jobs", timeout=60),
        lambda store: store.watch("late", 0, 60)[1],
        lambda store: store.all_gather("g", b"one", 0, 2),
    ]
    stores = [client() for _ in calls]
    with ThreadPoolExecutor(len(calls)) as threads:
        began = threading.Barrier(len(calls) + 1)

        def ask(call: Callable[[TCPStore], object], store: TCPStore) -> object:
            began.wait(20)
            return call(store)

        asked = [threads.submit(ask, *pair) for pair in zip(calls, stores, strict=True)]
        began.wait(20)
        with client() as helper:
            for _ in range(2):
                place.restart()
                helper.add("alive", 1)  # it serves again
            helper.set("late", b"v")
            helper.queue_push("jobs", b"job")
            assert helper.all_gather("g", b"two", 1, 2) == [b"one", b"two"]
        found = [each.result(60) for each in asked]
    assert found == [b"v", None, b"job", b"v", [b"one", b"two"]]
    for store in stores:
        store.close()


@pytest.mark.timeout(LIMIT_SECONDS + 60)
def test_each_addition_counts_once_despite_disconnects_and_kills(place: Place) -> None:
    total = CLIENTS * ADDS
    done = [0] * CLIENTS
    with Proxy("127.0.0.1", place.port) as proxy, ThreadPoolExecutor(CLIENTS) as threads:

        def add(number: int) -> None:
            with TCPStore("127.0.0.1", proxy.port, timeout=LIMIT_SECONDS) as store:
                for _ in range(ADDS):
                    store.add("n", 1)
                    done[number] += 1

        began = time.monotonic()
        adding = [threads.submit(add, number) for number in range(CLIENTS)]
        for step in range(1, CUTS + 1):
            while sum(done) < total * step / (CUTS + 1):
                assert time.monotonic() - began < LIMIT_SECONDS, done
                time.sleep(0.005)
            if step % (CUTS // KILLS) == 0:
                place.restart()
            else:
                proxy.cut()
        for each in adding:
            each.result(LIMIT_SECONDS)
        seconds = time.monotonic() - began
    with TCPStore("127.0.0.1", place.port) as store:
        assert store.get("n") == b"%d" % total
    print(f"{total} additions in {seconds:.1f} s, {CUTS - KILLS} cuts, {KILLS} kills")


def test_second_server_on_one_data_directory_is_refused(place: Place) -> None:
    other = place._fleet.rallypoint(
        "other", "serve", "--bind=127.0.0.1:0", f"--data-dir={place._fleet.folder / 'data'}"
    )
    assert other.wait() == 1
    assert f"in use by another server (pid {place.server.pid})" in other.err.text
    assert "Traceback" not in other.err.text


def test_stopped_server_keeps_its_runs(place: Place) -> None:
    with TCPStore("127.0.0.1", place.port, timeout=60) as store:
        store.set("k", b"v")
        place.server.send(signal.SIGTERM)
        assert place.server.wait() == 0
        place.server = place._start()
        assert store.get("k") == b"v"
        assert store.add("n", 1) == 1
