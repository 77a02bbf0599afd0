"""The store: case-B3, case-B4, case-B5 and case-F5.

case-F1 to case-F4, and case-B3 on one handle, are cases of `rallypoint.testing.StoreSuite`, which
tests/store/test_tcp.py runs over sockets and against another process.
"""

import asyncio
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from rallypoint.deadline import Deadline
from rallypoint.net import protocol as p
from rallypoint.net.connection import ConnectionConfig, open_connection
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.server import raise_file_limit
from rallypoint.store.tcp import TCPStore
from rallypoint.testing.store_handles import after_a_moment, in_thread

LIMIT = 30.0


@pytest.fixture(name="process")
def _process() -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """Give a server in another process, and its port."""
    command = [sys.executable, "-m", "rallypoint", "serve", "--bind=127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline().rpartition(":")[2])
        process.send_signal(signal.SIGCONT)
        process.kill()


def handler_at(port: int, size: int, **config: float | bool) -> DynamicRendezvousHandler:
    given = {"join": LIMIT, "close": 5, "is_host": False} | config
    return create_handler(
        RendezvousParameters("core", f"127.0.0.1:{port}", "run", size, size, config=given)
    )


@pytest.mark.cases("case-B3")
def test_blocked_get_and_heartbeats_get_their_own_answers(server: EmbeddedServer) -> None:
    with TCPStore("127.0.0.1", server.port) as store:
        blocked = after_a_moment(in_thread(store.get, "late", 60.0))
        beating = [in_thread(lambda: [store.add("n", 1) for _ in range(500)]) for _ in range(2)]
        beats = [number for future in beating for number in future.result(LIMIT)]
        assert sorted(beats) == list(range(1, 1001))
        assert not blocked.done()
        store.set("late", b"its own answer")
        assert blocked.result(LIMIT) == b"its own answer"


@pytest.mark.integration
@pytest.mark.cases("case-B4")
def test_heartbeats_do_not_starve_behind_data(
    process: "tuple[subprocess.Popen[str], int]",
) -> None:
    _, port = process
    waiters, value = 5_000, b"x" * (64 << 20)
    # 100 connections with 50 blocked calls each: to the server, 5,000 blocked waiters.
    links = [
        open_connection(ConnectionConfig("127.0.0.1", port, "run"), Deadline(LIMIT))
        for _ in range(100)
    ]
    for place, link in enumerate(links):
        keys = [f"never/{place}/{number}" for number in range(waiters // len(links))]
        calls = [p.Call(n, 1, p.Get(key, 120.0)) for n, key in enumerate(keys, 1)]
        link.send(b"".join(map(p.frame, calls)))
    handler = handler_at(port, 1, heartbeat=3)
    handler.next_rendezvous()
    beat = open_connection(ConnectionConfig("127.0.0.1", port, "run"), Deadline(LIMIT))
    store = TCPStore("127.0.0.1", port, run="run")

    def load() -> bytes:
        for _ in range(3):
            store.set("big", value)
            back = store.get("big")
        return back

    loading = in_thread(load)
    slowest = 0.0
    while not loading.done():
        began = time.monotonic()
        beat.send(p.frame(wire.Beat()))
        assert beat.receive()
        slowest = max(slowest, time.monotonic() - began)
    assert loading.result() == value
    assert slowest < 1.0
    assert handler.view().opened is None
    assert handler.view().fenced is None
    handler.shutdown()
    store.close()
    for link in (*links, beat):
        link.close()


@pytest.mark.integration
@pytest.mark.cases("case-B5")
def test_server_stopped_for_three_leases_loses_nobody(
    process: "tuple[subprocess.Popen[str], int]",
) -> None:
    server, port = process
    lease = 1.0
    handlers = [handler_at(port, 3, heartbeat=lease) for _ in range(3)]
    seats = [future.result(LIMIT) for future in [in_thread(h.next_rendezvous) for h in handlers]]
    assert sorted(seat.rank for seat in seats) == [0, 1, 2]
    os.kill(server.pid, signal.SIGSTOP)
    for handler in handlers:
        handler.wait_for_change(3 * lease / len(handlers))
    outage = Deadline(3 * lease)
    while not outage.expired():
        handlers[0].wait_for_change(outage.remaining())
    os.kill(server.pid, signal.SIGCONT)
    deadline = Deadline(LIMIT)
    for handler in handlers:
        while not handler.view().connected:
            assert not deadline.expired()
            handler.wait_for_change(deadline.remaining())
    after = Deadline(2 * lease)
    while not after.expired():
        handlers[0].wait_for_change(after.remaining())
    assert [h.view().opened for h in handlers] == [None] * 3
    assert [h.view().fenced for h in handlers] == [None] * 3
    report = handlers[0].report()
    assert (report.phase, report.round, len(report.members)) == ("sealed", 1, 3)
    for handler in handlers:
        handler.shutdown()


class Light(asyncio.Protocol):
    """A client that does the handshake and one call."""

    def __init__(self, done: "asyncio.Future[None]", number: int) -> None:
        self.done, self.number, self.data = done, number, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        client = self.number.to_bytes(16, "big")
        hello = p.Hello(p.PROTOCOL_VERSION, "run", client, b"n" * p.NONCE_BYTES, "light")
        add = p.Call(1, 1, p.Add("clients", 1))
        transport.write(p.frame(hello) + p.frame(p.Proof(b"")) + p.frame(add))

    def data_received(self, data: bytes) -> None:
        self.data += data
        while len(self.data) >= 4:
            size = int.from_bytes(self.data[:4], "big")
            body, self.data = self.data[4 : 4 + size], self.data[4 + size :]
            if msgspec.msgpack.decode(body)[0] == 111 and not self.done.done():
                self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("closed"))


@pytest.mark.integration
@pytest.mark.cases("case-F5")
def test_five_thousand_clients_connect_at_once(
    process: "tuple[subprocess.Popen[str], int]",
) -> None:
    _, port = process
    clients = 5_000
    raise_file_limit()

    async def all_at_once() -> float:
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        done = [loop.create_future() for _ in range(clients)]
        opened = await asyncio.gather(
            *(
                loop.create_connection(lambda n=n: Light(done[n], n), "127.0.0.1", port)  # type: ignore[misc] # a default
                for n in range(clients)
            )
        )
        await asyncio.wait_for(asyncio.gather(*done), 60)
        took = time.monotonic() - began
        for transport, _ in opened:
            transport.abort()
        return took

    with asyncio.Runner() as runner:
        took = runner.run(all_at_once())
    assert took < 10.0
    with TCPStore("127.0.0.1", port, run="run") as store:
        assert store.add("clients", 0) == clients


@pytest.mark.cases("case-F5")
def test_burst_of_connections_fits_the_backlog(server: EmbeddedServer) -> None:
    socks = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(200)]
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        assert selector.select(0.05) == []  # none was reset
    for sock in socks:
        sock.close()
