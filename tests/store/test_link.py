"""A link: frames in pieces, the handshake's failures, and which of them are tried again."""

import socket
import threading
from collections.abc import Callable

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import AuthenticationError, StoreConnectionError
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.store import link as module
from rallypoint.store import protocol as p
from rallypoint.store.link import Link, NotOurProtocolError, Target, open_link
from rallypoint.testing.proxy import Proxy
from rallypoint.testing.store_handles import in_thread


def pair() -> tuple[Link, socket.socket]:
    ours, theirs = socket.socketpair()
    return Link(ours, "server:1"), theirs


def framed(*bodies: bytes) -> bytes:
    return b"".join(p.HEADER.pack(len(body)) + body for body in bodies)


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_bodies_come_whole_however_they_are_cut(step: int) -> None:
    link, other = pair()
    bodies = [b"", b"a", b"bc" * 40, b"\0" * 5]
    data = framed(*bodies)
    with other, link.sock:
        seen: list[bytes] = []
        for start in range(0, len(data), step):
            other.sendall(data[start : start + step])
            seen += link.receive_some()
        assert seen == bodies


def test_receive_waits_for_a_whole_body_or_its_time() -> None:
    link, other = pair()
    with other, link.sock:
        link.read_timeout(0.05)
        assert link.receive() == []
        other.sendall(framed(b"body")[:5])
        assert link.receive() == []  # a part of one is none
        other.sendall(framed(b"body")[5:])
        assert link.receive() == [b"body"]


def test_the_end_and_nonsense_are_errors() -> None:
    link, other = pair()
    with link.sock:
        with other:
            other.sendall(b"HTTP/1.1 400 Bad Request\r\n")
            with pytest.raises(NotOurProtocolError, match="not a Rallypoint server"):
                link.receive()
        with pytest.raises(StoreConnectionError, match=r"server:1"):
            link.receive()
        with pytest.raises(StoreConnectionError, match="broke"):
            link.send(b"x")


def test_sending_much_while_much_comes() -> None:
    link, other = pair()
    big = framed(b"x" * (8 << 20))

    def echo() -> None:
        with other:
            left = len(big)
            while left:  # does not read before what it sends is read
                piece = other.recv(1 << 16)
                other.sendall(piece)
                left -= len(piece)

    thread = threading.Thread(target=echo)
    thread.start()
    with link.sock:
        bodies = link.send_reading([big], Deadline(20))
        while not bodies:
            bodies = link.receive()
    assert bodies == [big[4:]]
    thread.join(20)


def test_sending_to_who_takes_nothing_ends() -> None:
    link, other = pair()
    with other, link.sock, pytest.raises(StoreConnectionError, match="not taken"):
        link.send_reading([framed(b"x" * (8 << 20))], Deadline(0.1))


# -- the handshake ------------------------------------------------------------------------


def test_both_sides_must_know_the_token(serve: Callable[..., EmbeddedServer]) -> None:
    server, plain = serve(token=b"right"), serve()

    def target(of: EmbeddedServer, token: bytes) -> Target:
        return Target("127.0.0.1", of.port, "run", token)

    open_link(target(server, b"right"), Deadline(10)).close()
    for where, token, words in (
        (server, b"", "asks for a token and this client has none"),
        (server, b"wrong", "does not know this client's token"),
        (plain, b"right", "started without a token"),
    ):
        with pytest.raises(AuthenticationError, match=words) as caught:
            open_link(target(where, token), Deadline(10))
        assert "wrong" not in str(caught.value)
    assert "right" not in repr(target(server, b"right"))


def test_what_is_no_server_is_not_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as http:
        target = Target("127.0.0.1", http.getsockname()[1], "run")
        trying = in_thread(open_link, target, Deadline(60))
        client, _ = http.accept()
        with client:
            client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            with pytest.raises(NotOurProtocolError, match="is not a Rallypoint server"):
                trying.result(10)


def test_a_refused_run_id_is_not_tried_again(server: EmbeddedServer) -> None:
    with pytest.raises(NotOurProtocolError, match="control characters"):
        open_link(Target("127.0.0.1", server.port, "a\tb"), Deadline(60))


def test_a_handshake_that_is_cut_is_tried_again(server: EmbeddedServer) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        proxy.refusing = True  # like a service whose backend is not up yet
        trying = in_thread(open_link, Target("127.0.0.1", proxy.port, "run"), Deadline(30))
        with pytest.raises(TimeoutError):
            trying.result(0.3)
        proxy.refusing = False
        trying.result(20).close()
        assert proxy.accepted > 1


def test_silence_is_tried_again_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = Target("127.0.0.1", silent.getsockname()[1], "run")
        with pytest.raises(StoreConnectionError, match="said nothing"):
            open_link(target, Deadline(60), once=True)
        with pytest.raises(StoreConnectionError, match="said nothing"):
            open_link(target, Deadline(0.5))
