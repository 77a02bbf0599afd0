"""Each limit of the table of defaults: what happens at it, and that other clients go on."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.server.fakes import SETTINGS

from rallypoint.core.events import Close, Join
from rallypoint.core.state import Node
from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError, StoreLimitError
from rallypoint.net import protocol as p
from rallypoint.net.connection import ClientConnection, ConnectionConfig, open_connection
from rallypoint.rendezvous import defaults, wire
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.limits import LONG_BYTES
from rallypoint.store.tcp import TCPStore

Serve = Callable[..., EmbeddedServer]
_decoder = msgspec.msgpack.Decoder(wire.ServerBody)
TESTED = {
    "frame_limit": "test_connection.py",
    "handshake_seconds": "cases/test_strangers.py",
    "buffer_limit": "test_connection.py",
    "connections_limit": "test_limits.py",
    "address_limit": "test_limits.py",
    "handshakes_limit": "test_limits.py",
}


def link_to(server: EmbeddedServer, run: str = "run") -> ClientConnection:
    return open_connection(ConnectionConfig("127.0.0.1", server.port, run), Deadline(20))


def goodbye_of(link: ClientConnection) -> p.Goodbye:
    """Return the last words of the server."""
    last: Any = None
    try:
        while True:
            for body in link.receive():
                last = _decoder.decode(body)
    except StoreConnectionError:
        assert isinstance(last, p.Goodbye)
        return last
    finally:
        link.close()


@pytest.fixture(name="open_store")
def _open_store() -> Iterator[Callable[..., TCPStore]]:
    stores: list[TCPStore] = []

    def start(server: EmbeddedServer, run: str = "run") -> TCPStore:
        stores.append(TCPStore("127.0.0.1", server.port, run=run, timeout=10))
        return stores[-1]

    yield start
    for store in stores:
        store.close()


def test_every_limit_is_tested_somewhere() -> None:
    here = {name for name in defaults.SERVER_LIMITS if f"test_{name}" in globals()}
    assert here | set(TESTED) == set(defaults.SERVER_LIMITS)


def test_handshake_frame_limit(serve: Serve) -> None:
    server = serve(handshake_frame_limit=100)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(p.frame(p.Hello(1, "x" * 90, b"c", b"n" * 16, "test")))
        assert b"above the limit of 100" in sock.recv(4096)


def test_event_limit(serve: Serve) -> None:
    server = serve(event_limit=500)
    link = link_to(server)
    link.send(p.frame(wire.Ask(1, Close("me", "x" * 600))))
    assert "limit of 500" in goodbye_of(link).reason


def test_text_limit(serve: Serve) -> None:
    server = serve(text_limit=10)
    link = link_to(server)
    link.send(p.frame(wire.Ask(0, Join(Node("n" * 11, "10.0.0.1"), SETTINGS))))
    assert "more than 10 characters" in goodbye_of(link).reason


def test_run_name_limit(serve: Serve) -> None:
    server = serve(run_name_limit=5)
    with pytest.raises(StoreConnectionError, match="limit of 5"):
        link_to(server, "x" * 6)
    link_to(server, "x" * 5).close()


def test_runs_limit(serve: Serve, open_store: Callable[..., TCPStore]) -> None:
    server = serve(runs_limit=2)
    for run in ("a", "b", "b"):
        open_store(server, run).set("key", b"x")
    with pytest.raises(StoreConnectionError, match="limit of 2 runs"):
        open_store(server, "c")


def test_joins_at_once(serve: Serve) -> None:
    server = serve(joins_at_once=3, joins_per_second=0.001)
    link, member = link_to(server), link_to(server)
    for _ in range(4):
        link.send(p.frame(wire.Ask(0, Join(Node("n", "10.0.0.1"), SETTINGS))))
    assert "joins a second" in goodbye_of(link).reason
    member.send(p.frame(wire.Beat()))
    assert member.receive() == [p.frame(wire.Beat())[4:]]
    member.close()


def test_joins_per_second(serve: Serve) -> None:
    server = serve(joins_at_once=1, joins_per_second=20.0)
    link = link_to(server)
    for _ in range(4):
        link.send(p.frame(wire.Ask(0, Join(Node("n", "10.0.0.1"), SETTINGS))))
        time.sleep(0.12)  # rather more than a twentieth
    link.send(p.frame(p.Call(1, 1, p.Peek("k"))))
    assert any(
        isinstance(_decoder.decode(b), p.Reply) for b in link.receive() + link.receive_some()
    )
    link.close()


def test_store_limit(serve: Serve, open_store: Callable[..., TCPStore]) -> None:
    server = serve(store_limit=10_000)
    store = open_store(server)
    with pytest.raises(StoreLimitError, match="limit of 10000"):
        store.set("key", b"x" * 10_000)
    waiting = [f"{n:0100}" for n in range(100)]
    with pytest.raises(StoreLimitError, match="name more than 10000 bytes of keys"):
        store.wait(waiting, timeout=5)
    open_store(server, "other").set("key", b"x" * 5000)


def test_keys_limit(serve: Serve, open_store: Callable[..., TCPStore]) -> None:
    store = open_store(serve(keys_limit=3))
    for key in "abc":
        store.set(key, b"1")
    for write in (
        lambda: store.set("d", b"1"),
        lambda: store.add("d", 1),
        lambda: store.queue_push("d", b"1"),
        lambda: store.multi_set(["a", "d"], [b"2", b"2"]),
    ):
        with pytest.raises(StoreLimitError, match="keys_limit"):
            write()
    store.set("a", b"3")
    store.delete_key("b")
    store.set("d", b"1")
    assert store.num_keys() == 3


def test_key_limit(serve: Serve, open_store: Callable[..., TCPStore]) -> None:
    store = open_store(serve(key_limit=10))
    store.set("x" * 10, b"1")
    with pytest.raises(StoreLimitError, match="key_limit"):
        store.set("x" * 11, b"1")


def test_waiters_limit(serve: Serve, open_store: Callable[..., TCPStore]) -> None:
    server = serve(waiters_limit=2)
    store, deadline = open_store(server), Deadline(10)
    threads = [
        threading.Thread(target=lambda n=n: store.get(f"later{n}", timeout=20)) for n in (1, 2)
    ]
    for thread in threads:
        thread.start()
    while server.call(lambda s: s.stores["run"].keys.parked, deadline) < 2:
        assert not deadline.expired()
    with pytest.raises(StoreLimitError, match="waiters_limit"):
        store.get("third", timeout=5)
    store.multi_set(["later1", "later2"], [b"", b""])
    for thread in threads:
        thread.join(10)
    store.set("third", b"x")
    assert store.get("third") == b"x"


def test_results_limit(serve: Serve) -> None:
    server = serve(results_limit=2000)
    link, answers = link_to(server), 0
    for number in range(1, 40):  # it never says that it has what it was answered
        link.send(p.frame(p.Call(number, 0, p.Add("n", 1))))
        body = _decoder.decode(link.receive()[0])
        answers += isinstance(body, p.Reply)
    assert isinstance(body, p.Failure)
    assert "results_limit" in body.text
    assert 10 < answers < 30
    link.send(p.frame(p.Call(100, 100, p.Add("n", 1))))
    assert _decoder.decode(link.receive()[0]) == p.Reply(100, answers + 1)
    link.close()


def test_arriving_limit(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rallypoint.server.limits.STALLED_SECONDS", 0.2)
    server = serve(arriving_limit=4 << 20, frame_limit=4 << 20)
    with TCPStore("127.0.0.1", server.port, timeout=30) as store:
        stuck = [TCPStore("127.0.0.1", server.port, timeout=30) for _ in range(3)]
        for each in stuck:
            each.set("a", b"b")
            sock = each._connection.sock
            sock.sendall(struct.pack(">I", 3 << 20) + bytes(LONG_BYTES))
        store.set("long", bytes(2 << 20))  # after those that are cut off for it
        assert store.add("short", 1) == 1
        for each in stuck:
            assert each.get("a") == b"b"  # it comes again
            each.close()
