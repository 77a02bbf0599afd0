"""A client's connection: split frames, failed handshakes, and which failures are retried."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import AuthenticationError, StoreConnectionError
from rallypoint.net import connection as module
from rallypoint.net import protocol as p
from rallypoint.net.connection import (
    ClientConnection,
    ConnectionConfig,
    open_connection,
)
from rallypoint.net.endpoints import ServerList
from rallypoint.net.handshake import NotOurProtocolError
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.testing.fakes import Proxy
from rallypoint.testing.store_handles import in_thread

ENDPOINTS = (("a", 1), ("::1", 2))


def test_config_of_one_server() -> None:
    config = ConnectionConfig("a", 1, "run")
    assert config.servers.endpoints == (("a", 1),)
    assert config.where == "a:1"


def test_config_of_several_servers() -> None:
    config = ConnectionConfig.at(ENDPOINTS, "run", b"secret")
    assert (config.host, config.port, config.where) == ("a", 1, "a:1,[::1]:2")
    assert "secret" not in repr(config)


def test_another_client_shares_the_list_of_servers() -> None:
    config = ConnectionConfig.at(ENDPOINTS, "run")
    twin = config.another()
    assert twin.client != config.client
    assert twin.servers is config.servers
    assert ConnectionConfig("a", 1, "run", servers=ServerList(ENDPOINTS)).where == config.where


def pair() -> tuple[ClientConnection, socket.socket]:
    ours, theirs = socket.socketpair()
    return ClientConnection(ours, "server:1"), theirs


def framed(*bodies: bytes) -> bytes:
    return b"".join(p.HEADER.pack(len(body)) + body for body in bodies)


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_bodies_are_whole_however_they_are_split(step: int) -> None:
    link, other = pair()
    bodies = [b"", b"a", b"bc" * 40, b"\0" * 5]
    data = framed(*bodies)
    with other, link.sock:
        seen: list[bytes] = []
        for start in range(0, len(data), step):
            other.sendall(data[start : start + step])
            seen += link.receive_some()
        assert seen == bodies


def test_receive_waits_for_a_whole_body_or_the_timeout() -> None:
    link, other = pair()
    with other, link.sock:
        link.read_timeout(0.05)
        assert link.receive() == []
        other.sendall(framed(b"body")[:5])
        assert link.receive() == []  # a part of one is none
        other.sendall(framed(b"body")[5:])
        assert link.receive() == [b"body"]


def test_end_and_nonsense_are_errors() -> None:
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


def test_large_data_in_both_directions_does_not_deadlock() -> None:
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


def test_sending_to_a_stuck_server_ends() -> None:
    link, other = pair()
    with other, link.sock, pytest.raises(StoreConnectionError, match="not taken"):
        link.send_reading([framed(b"x" * (8 << 20))], Deadline(0.1))


# -- the handshake ------------------------------------------------------------------------


def test_both_sides_must_know_the_token(serve: Callable[..., EmbeddedServer]) -> None:
    server, plain = serve(token=b"right"), serve()

    def target(of: EmbeddedServer, token: bytes) -> ConnectionConfig:
        return ConnectionConfig("127.0.0.1", of.port, "run", token)

    open_connection(target(server, b"right"), Deadline(10)).close()
    for where, token, words in (
        (server, b"", "asks for a token and this client has none"),
        (server, b"wrong", "does not know this client's token"),
        (plain, b"right", "started without a token"),
    ):
        with pytest.raises(AuthenticationError, match=words) as caught:
            open_connection(target(where, token), Deadline(10))
        assert "wrong" not in str(caught.value)
    assert "right" not in repr(target(server, b"right"))


def test_other_program_is_not_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as http:
        target = ConnectionConfig("127.0.0.1", http.getsockname()[1], "run")
        trying = in_thread(open_connection, target, Deadline(60))
        client, _ = http.accept()
        with client:
            client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            with pytest.raises(NotOurProtocolError, match="Rallypoint server: an SSH server"):
                trying.result(10)


def test_refused_run_id_is_not_tried_again(server: EmbeddedServer) -> None:
    with pytest.raises(NotOurProtocolError, match="control characters"):
        open_connection(ConnectionConfig("127.0.0.1", server.port, "a\tb"), Deadline(60))


def test_broken_handshake_is_tried_again(server: EmbeddedServer) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        proxy.refusing = True  # like a service whose backend is not up yet
        trying = in_thread(
            open_connection, ConnectionConfig("127.0.0.1", proxy.port, "run"), Deadline(30)
        )
        with pytest.raises(TimeoutError):
            trying.result(0.3)
        proxy.refusing = False
        trying.result(20).close()
        assert proxy.accepted > 1


def test_silent_server_is_retried_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = ConnectionConfig("127.0.0.1", silent.getsockname()[1], "run")
        with pytest.raises(StoreConnectionError, match="sent no data"):
            open_connection(target, Deadline(60), once=True)
        with pytest.raises(StoreConnectionError, match="sent no data"):
            open_connection(target, Deadline(0.5))


def test_server_that_starts_later_is_reached(port: int, serve: Callable[..., Any]) -> None:
    trying = in_thread(open_connection, ConnectionConfig("127.0.0.1", port, "run"), Deadline(30))
    with pytest.raises(TimeoutError):
        trying.result(0.2)
    serve(port=port)
    trying.result(20).close()


def test_dead_address_is_resolved_again(
    monkeypatch: pytest.MonkeyPatch, server: EmbeddedServer
) -> None:
    replies = ["127.0.0.9", "127.0.0.9", "127.0.0.1"]  # a pod that has moved

    def getaddrinfo(_host: str, port: int, **_: object) -> list[Any]:
        address = replies.pop(0) if len(replies) > 1 else replies[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    link = open_connection(ConnectionConfig("name", server.port, "run"), Deadline(20))
    assert isinstance(link.sock, socket.socket)
    assert link.sock.getpeername()[0] == "127.0.0.1"
    link.close()


def test_once_is_one_attempt_and_its_error_is_complete(port: int) -> None:
    with pytest.raises(StoreConnectionError) as caught:
        open_connection(ConnectionConfig("127.0.0.1", port, "run"), Deadline(60), once=True)
    text = str(caught.value)
    assert f"cannot reach 127.0.0.1:{port} (resolved to 127.0.0.1) after 0." in text
    assert "no process is listening there" in text
    assert f"`rallypoint serve --bind ADDRESS:{port}`" in text
    assert "s more" not in text  # it is over


def test_token_for_one_run_needs_its_run_id(server: EmbeddedServer) -> None:
    target = ConnectionConfig("127.0.0.1", server.port, "", b"run:digits secret")
    with pytest.raises(AuthenticationError, match="for run 'digits' alone: give --run-id digits"):
        open_connection(target, Deadline(20))


# -- several servers ------------------------------------------------------------------------


def several(*ports: int, token: bytes = b"") -> ConnectionConfig:
    return ConnectionConfig.at(tuple(("127.0.0.1", port) for port in ports), "run", token)


def test_one_reachable_server_is_enough(port: int, server: EmbeddedServer) -> None:
    for ports in ((port, server.port), (server.port, port)):
        target = several(*ports)
        link = open_connection(target, Deadline(20), once=True)
        assert link.where == f"127.0.0.1:{server.port}"
        assert target.servers.leader == ("127.0.0.1", server.port)
        assert target.another().servers is target.servers
        link.close()


class Standby:
    """A server that stands by for another one, as far as the handshake goes."""

    def __init__(self, leader: str = "") -> None:
        self.leader = leader
        self.asked = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.asked += 1
            with sock:
                link = ClientConnection(sock, "client")
                link.receive()  # the hello, and the proof of who has none
                link.send(p.frame(p.Challenge(p.PROTOCOL_VERSION, bytes(p.NONCE_BYTES), b"")))
                reason = f"stands by; {self.leader or 'nobody'} leads"
                link.send(p.frame(p.Goodbye(p.GOODBYE_STANDBY, reason, self.leader)))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@pytest.fixture(name="standby")
def _standby() -> Iterator[Standby]:
    standby = Standby()
    yield standby
    standby.close()


def test_leader_named_by_a_standby_is_remembered(standby: Standby, server: EmbeddedServer) -> None:
    standby.leader = f"127.0.0.1:{server.port}"
    target = several(standby.port)  # the leader is not on the client's list
    began = time.monotonic()
    for _ in range(3):
        open_connection(target, Deadline(20), once=True).close()
    assert time.monotonic() - began < 5
    assert standby.asked == 1
    server.stop()
    with pytest.raises(StoreConnectionError, match="stands by") as caught:
        open_connection(target, Deadline(20), once=True)
    assert f"127.0.0.1:{server.port}: no process is listening there" in str(caught.value)
    assert standby.asked == 2
    assert target.servers.leader is None


def test_error_names_each_server_with_its_answer(standby: Standby, port: int) -> None:
    with pytest.raises(StoreConnectionError) as caught:
        open_connection(several(port, standby.port), Deadline(20), once=True)
    text = str(caught.value)
    assert "none of 2 servers could be used after 0." in text
    assert f"127.0.0.1:{port}: no process is listening there (connection refused)" in text
    assert f"127.0.0.1:{standby.port}: stands by; nobody leads" in text
    assert "with several endpoints no node starts a server itself" in text.lower()


def test_silent_leader_is_skipped(monkeypatch: pytest.MonkeyPatch, server: EmbeddedServer) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_OF_SEVERAL_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = several(silent.getsockname()[1], server.port)
        target.servers.found(("127.0.0.1", silent.getsockname()[1]))
        link = open_connection(target, Deadline(20), once=True)
        assert link.where.endswith(f":{server.port}")
        link.close()


def test_server_with_another_token_is_skipped(serve: Callable[..., Any]) -> None:
    stranger, ours = serve(token=b"another"), serve(token=b"right")
    open_connection(several(stranger.port, ours.port, token=b"right"), Deadline(20)).close()
    with pytest.raises(AuthenticationError, match="none of 2 servers"):
        open_connection(several(stranger.port, ours.port, token=b"no"), Deadline(20))


def test_servers_that_start_later_are_reached(port: int, serve: Callable[..., Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        target = several(taken.getsockname()[1], port)
        trying = in_thread(open_connection, target, Deadline(30))
        with pytest.raises(TimeoutError):
            trying.result(0.2)
        serve(port=port)
        trying.result(20).close()
