import socket

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError
from rallypoint.testing.engine_suite import EngineSuite
from rallypoint.testing.fakes import ManualClock, MemoryEngine, MemoryJournal, Proxy, Shelf
from rallypoint.testing.journal_suite import JournalSuite


def test_clock_moves_on_request() -> None:
    clock = ManualClock(100)
    assert clock() == clock() == 100.0
    clock.advance(0.5)
    assert clock() == 100.5


def test_clock_never_moves_backwards() -> None:
    for seconds in (-1.0, float("nan")):
        with pytest.raises(ParameterError, match="seconds="):
            ManualClock().advance(seconds)


def test_drives_a_deadline() -> None:
    clock = ManualClock()
    deadline = Deadline(2, clock)
    clock.advance(2)
    assert deadline.expired()


class TestMemoryEngine(EngineSuite):
    def make_engine(self) -> MemoryEngine:
        return MemoryEngine()


def test_time_is_manual() -> None:
    clock, limit = ManualClock(), Deadline(1)
    engine = MemoryEngine(clock)
    engine.commit({"a": None}, {"a": b""}, limit, {"a": 10})
    clock.advance(9.9)
    assert engine.read(["a"], limit)
    clock.advance(0.2)
    assert not engine.clone().read(["a"], limit)


class TestMemoryJournal(JournalSuite):
    takes_over = True

    @pytest.fixture(autouse=True)
    def shelf(self) -> None:
        self.place = Shelf()

    def journal(self) -> MemoryJournal:
        return MemoryJournal(self.place)


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
