"""The proxy passes bytes, cuts, and refuses."""

import socket

import pytest

from rallypoint.testing.proxy import Proxy


@pytest.fixture(name="echo")
def _echo() -> "socket.socket":
    return socket.create_server(("127.0.0.1", 0))


def ended(sock: socket.socket) -> bool:
    """Return whether a connection is reset, or comes to its end."""
    try:
        return sock.recv(10) == b""
    except ConnectionError:
        return True


def reached(port: int) -> bool:
    """Return whether a connection can be made that lasts."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            return not ended(sock)
    except ConnectionError:
        return False


def test_proxy_forwards_disconnects_and_refuses(echo: socket.socket) -> None:
    with echo, Proxy("127.0.0.1", echo.getsockname()[1]) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        server, _ = echo.accept()
        with client, server:
            client.sendall(b"ping")
            assert server.recv(10) == b"ping"
            server.sendall(b"pong")
            assert client.recv(10) == b"pong"
            assert proxy.cut() == 1
            assert ended(client)
        proxy.refusing = True
        assert not reached(proxy.port)
        assert proxy.accepted == 2
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
