"""One connection over a real socket: handshake, refusals, limits, long frames."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.server.fakes import SETTINGS

from rallypoint.core.events import Join
from rallypoint.core.state import Node
from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.connection import ClientConnection, ConnectionConfig, open_connection
from rallypoint.net.tls_socket import TLSSocket
from rallypoint.rendezvous import wire
from rallypoint.server.embedded import EmbeddedServer

LIMIT_SECONDS = 20
_decoder = msgspec.msgpack.Decoder(wire.ServerBody)


def connect(server: EmbeddedServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def last_words(sock: socket.socket | TLSSocket) -> p.Goodbye:
    """Return the goodbye that ends a connection; whatever came before it is passed over."""
    data = b""
    with sock:
        while piece := sock.recv(65536):
            data += piece
    while True:
        size = int.from_bytes(data[:4], "big")
        body, data = _decoder.decode(data[4 : 4 + size]), data[4 + size :]
        if not data:
            assert isinstance(body, p.Goodbye)
            return body


def hello(**changes: Any) -> p.Hello:
    plain = p.Hello(p.PROTOCOL_VERSION, "run", b"c" * 16, b"n" * p.NONCE_BYTES, "test")
    return msgspec.structs.replace(plain, **changes)


def link_to(server: EmbeddedServer, run: str = "run") -> ClientConnection:
    return open_connection(ConnectionConfig("127.0.0.1", server.port, run), Deadline(20))


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"version": 999}, p.GOODBYE_VERSION, "same version of rallypoint"),
        ({"nonce": b"short"}, p.GOODBYE_PROTOCOL, "bad nonce"),
        ({"client": b"x" * 65}, p.GOODBYE_PROTOCOL, "client id"),
        ({"run": "x" * 257}, p.GOODBYE_PROTOCOL, "limit of 256"),
        ({"run": "a\nb"}, p.GOODBYE_PROTOCOL, "control characters"),
    ],
)
def test_bad_hello_is_refused(
    server: EmbeddedServer, changes: dict[str, Any], code: str, words: str
) -> None:
    sock = connect(server)
    sock.sendall(p.frame(hello(**changes)))
    goodbye = last_words(sock)
    assert goodbye.code == code
    assert words in goodbye.reason


def test_order_matters_in_the_handshake(server: EmbeddedServer) -> None:
    for frames in ((p.Proof(b""),), (hello(), hello()), (hello(), p.Call(1, 1, p.Peek("k")))):
        sock = connect(server)
        sock.sendall(b"".join(p.frame(body) for body in frames))
        assert last_words(sock).code == p.GOODBYE_PROTOCOL


def test_wrong_token_is_refused(serve: Callable[..., EmbeddedServer]) -> None:
    server = serve(token=b"right")
    for proof, words in ((b"", "no token"), (b"x" * 32, "not this server's")):
        sock = connect(server)
        sock.sendall(p.frame(hello()) + p.frame(p.Proof(proof)))
        goodbye = last_words(sock)
        assert goodbye.code == p.GOODBYE_TOKEN
        assert words in goodbye.reason


def test_frames_may_come_in_any_pieces(server: EmbeddedServer) -> None:
    link = link_to(server)
    calls = [p.frame(p.Call(n, 1, p.Set(f"k{n}", b"x" * 50))) for n in range(1, 20)]
    data = b"".join(calls)
    for start in range(0, len(data), 7):
        link.send(data[start : start + 7])
    answers: list[bytes] = []
    while len(answers) < len(calls):
        answers += link.receive()
    assert [_decoder.decode(a) for a in answers] == [p.Reply(n, None) for n in range(1, 20)]
    link.close()


def test_bytes_are_counted_in_both_directions(server: EmbeddedServer) -> None:
    sent, got = p.frame(hello()) + p.frame(p.Proof(b"")) + b"\xff" * 8, 0
    with connect(server) as sock:
        sock.sendall(sent)
        while piece := sock.recv(65536):
            got += len(piece)
    assert got > 0
    status = server.call(lambda s: s.status(), Deadline(5))
    assert (status.bytes_in, status.bytes_out) == (len(sent), got)


def test_frame_above_the_limit_is_refused_unread(serve: Callable[..., EmbeddedServer]) -> None:
    server = serve(frame_limit=1000)
    link = link_to(server)
    link.send(p.frame(p.Call(1, 1, p.Set("k", b"x" * 2000))))
    goodbye = last_words(link.sock)
    assert goodbye.code == p.GOODBYE_LIMIT
    assert "limit of 1000" in goodbye.reason


def test_nonsense_after_the_handshake_is_refused(server: EmbeddedServer) -> None:
    link = link_to(server)
    link.send((5).to_bytes(4, "big") + b"\xc1\xc1\xc1\xc1\xc1")
    goodbye = last_words(link.sock)
    assert goodbye.code == p.GOODBYE_PROTOCOL
    assert "not ours" in goodbye.reason


def test_join_with_impossible_values_is_refused(server: EmbeddedServer) -> None:
    link = link_to(server)
    settings = msgspec.structs.replace(SETTINGS, lease_seconds=float("nan"))
    link.send(p.frame(wire.Ask(0, Join(Node("n", "10.0.0.1"), settings))))
    assert "lease_seconds=nan" in last_words(link.sock).reason


def test_client_that_does_not_read_is_disconnected(serve: Callable[..., EmbeddedServer]) -> None:
    server = serve(buffer_limit=4 << 20)
    reader, writer = link_to(server), link_to(server)
    reader.send(p.frame(p.Call(1, 1, p.Set("big", b"x" * (1 << 20)))))
    assert reader.receive()
    for number in range(2, 40):  # answered once somebody else sets the key
        reader.send(p.frame(p.Call(number, 1, p.MultiGet(["big", "go"], 60.0))))
    limit = Deadline(LIMIT_SECONDS)
    while server.call(lambda s: s.stores["run"].keys.parked, limit) < 38:
        assert not limit.expired()
    writer.send(p.frame(p.Call(1, 1, p.Set("go", b""))))
    assert writer.receive()
    deadline = Deadline(20)
    while server.call(lambda s: len(s.connections), limit) > 1:
        assert not deadline.expired()
    taken = 0
    while piece := reader.sock.recv(1 << 20):
        taken += len(piece)
    assert taken < 38 << 20
    writer.send(p.frame(p.Call(2, 2, p.Peek("go"))))
    assert writer.receive()
    reader.close()
    writer.close()


def test_client_that_reads_late_gets_everything(server: EmbeddedServer) -> None:
    link = link_to(server)
    value = bytes(range(256)) * 4096
    link.send(p.frame(p.Call(1, 1, p.Set("big", value))))
    for number in range(2, 22):
        link.send(p.frame(p.Call(number, 1, p.Peek("big"))))
    answers: list[bytes] = []
    while len(answers) < 21:
        answers += link.receive()
    replies = [p.Reply(number, value) for number in range(2, 22)]
    assert [_decoder.decode(a) for a in answers] == [p.Reply(1, None), *replies]
    link.close()


def test_cost_of_a_long_frame_is_linear(server: EmbeddedServer) -> None:
    link, big = link_to(server), 64 << 20
    deadline = Deadline(20)  # when each piece copied what had come before: minutes
    link.send(p.frame(p.Call(1, 1, p.Set("big", b"x" * big))))
    assert link.receive()
    link.send(p.frame(p.Call(2, 2, p.Peek("big"))))
    (answer,) = link.receive()
    assert len(answer) > big
    assert not deadline.expired()
    link.close()


def answers_of(link: ClientConnection, count: int) -> list[Any]:
    """Return the next bodies that a server sends."""
    bodies: list[Any] = []
    while len(bodies) < count:
        bodies += [_decoder.decode(body) for body in link.receive()]
    return bodies


def say_again(link: ClientConnection, call: p.Call) -> None:
    """Send a call that comes too late, until the end of the connection is seen."""
    while True:
        link.send(p.frame(call))
        link.receive()


def test_older_of_two_connections_ends_without_effect(
    server: EmbeddedServer,
) -> None:
    """What was said on it has been said again on the newer one, and must not count twice."""
    target = ConnectionConfig("127.0.0.1", server.port, "run")
    older = open_connection(target, Deadline(20))
    newer = open_connection(target, Deadline(20))
    add = p.Call(1, 1, p.Add("n", 1))
    newer.send(p.frame(add))
    newer.send(p.frame(p.Call(2, 2, p.Peek("n"))))  # the first answer is acknowledged by it
    assert answers_of(newer, 2) == [p.Reply(1, 1), p.Reply(2, b"1")]
    with pytest.raises(StoreConnectionError):
        say_again(older, add)
    older.close()
    newer.send(p.frame(p.Call(3, 3, p.Peek("n"))))
    assert answers_of(newer, 1) == [p.Reply(3, b"1")]
    newer.close()


def test_older_connection_with_a_later_handshake_is_refused(
    server: EmbeddedServer,
) -> None:
    older, newer = connect(server), connect(server)
    for sock in (older, newer):
        sock.sendall(p.frame(hello()))
        assert sock.recv(65536)
    newer.sendall(p.frame(p.Proof(b"")))
    assert newer.recv(65536)
    older.sendall(p.frame(p.Proof(b"")))
    with older, newer:
        with contextlib.suppress(ConnectionResetError):
            assert older.recv(65536) == b""
        newer.sendall(p.frame(wire.Beat()))
        assert newer.recv(65536)


def test_welcome_tells_whether_the_record_is_still_the_same(
    serve: Callable[..., EmbeddedServer],
) -> None:
    """A client that was forgotten hears so even if the first answer that said it was lost."""
    server = serve(resume_seconds=0.0)
    target = ConnectionConfig("127.0.0.1", server.port, "run")
    other = open_connection(
        ConnectionConfig("127.0.0.1", server.port, "run"), Deadline(20)
    )  # keeps the space
    first = open_connection(target, Deadline(20))
    again = open_connection(target, Deadline(20))
    assert again.welcome.resumed
    assert again.welcome.record == first.welcome.record
    first.close()
    again.close()
    deadline = Deadline(20)
    while True:
        later = open_connection(target, Deadline(20))
        if later.welcome.record != first.welcome.record:
            break
        assert not deadline.expired()
        later.close()
        threading.Event().wait(1.2)  # longer than two sweeps of the server
    assert not later.welcome.resumed
    last = open_connection(target, Deadline(20))
    assert (last.welcome.resumed, last.welcome.record) == (True, later.welcome.record)
    for link in (later, last, other):
        link.close()
