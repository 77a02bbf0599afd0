"""The proxy passes bytes, cuts, and refuses."""

import socket

import pytest

from rallypoint.testing.proxy import Proxy


@pytest.fixture(name="echo")
def _echo() -> "socket.socket":
    return socket.create_server(("127.0.0.1", 0))


def test_it_passes_on_cuts_and_refuses(echo: socket.socket) -> None:
    with echo, Proxy("127.0.0.1", echo.getsockname()[1]) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        server, _ = echo.accept()
        with client, server:
            client.sendall(b"ping")
            assert server.recv(10) == b"ping"
            server.sendall(b"pong")
            assert client.recv(10) == b"pong"
            assert proxy.cut() == 1
            with pytest.raises(ConnectionError):
                while client.recv(10):
                    pass
                raise ConnectionResetError  # an orderly end will do as well
        proxy.refusing = True
        with (
            pytest.raises(ConnectionError),
            socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as refused,
        ):
            assert not refused.recv(10)
            raise ConnectionResetError
        assert proxy.accepted == 2
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
