"""Reaching a server: order of addresses, retries, limits, and what the errors say."""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError
from rallypoint.store import connect as module
from rallypoint.store.connect import Attempt, connect, own_addresses, resolve
from rallypoint.testing.store_handles import in_thread

V4, V6 = socket.AF_INET, socket.AF_INET6


def answers(*addresses: str) -> Callable[..., list[Any]]:
    """Return a resolver that knows one name."""

    def getaddrinfo(_host: str, port: int, **_: object) -> list[Any]:
        return [
            (V6, socket.SOCK_STREAM, 6, "", (a, port, 0, 0))
            if ":" in a
            else (V4, socket.SOCK_STREAM, 6, "", (a, port))
            for a in addresses
        ]

    return getaddrinfo


@pytest.fixture(name="listener")
def _listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def test_families_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answers("::2", "::3", "::4", "10.0.0.1"))
    found = [info[4][0] for info in resolve("name", 1, Deadline(1))]
    assert found == ["::2", "10.0.0.1", "::3", "::4"]


def test_an_ip_needs_no_thread_and_no_name_service() -> None:
    before = threading.active_count()
    assert [info[4][0] for info in resolve("127.0.0.1", 1, Deadline(1))] == ["127.0.0.1"]
    assert [info[4][0] for info in resolve("::1", 1, Deadline(1))] == ["::1"]
    assert threading.active_count() == before


def test_a_resolver_that_hangs_does_not_hold_us(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()

    def getaddrinfo(*_: object, **__: object) -> list[Any]:
        stuck.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(StoreConnectionError, match="'name' was not resolved in time"):
        connect("name", 1, Deadline(0.2))
    stuck.set()


def test_once_is_one_attempt(port: int) -> None:
    with pytest.raises(StoreConnectionError, match="connection refused"):
        connect("127.0.0.1", port, Deadline(60), once=True)


def test_the_error_says_what_was_tried(port: int) -> None:
    with pytest.raises(StoreConnectionError) as caught:
        connect("127.0.0.1", port, Deadline(0.1))
    text = str(caught.value)
    assert f"cannot reach 127.0.0.1:{port} (resolved to 127.0.0.1) after 0." in text
    assert "nobody listens there" in text
    assert f"`rallypoint serve --bind ADDRESS:{port}`" in text
    assert "127.0.0.1" in own_addresses()


def test_the_error_names_a_name_that_does_not_resolve() -> None:
    with pytest.raises(StoreConnectionError, match=r"which does not resolve.*'nope\.invalid'"):
        connect("nope.invalid", 1, Deadline(0.1))


def test_a_server_that_comes_up_later_is_reached(port: int) -> None:
    found = in_thread(connect, "127.0.0.1", port, Deadline(20))
    with pytest.raises(TimeoutError):
        found.result(0.2)
    with socket.create_server(("127.0.0.1", port)), found.result(20) as sock:
        assert sock.getpeername()[1] == port
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_attempt_can_be_called_off(port: int) -> None:
    attempt = Attempt(600)
    found = in_thread(connect, "127.0.0.1", port, attempt)
    with pytest.raises(TimeoutError):
        found.result(0.1)
    attempt.cancel()
    with pytest.raises(StoreConnectionError):
        found.result(10)


def test_a_dead_address_does_not_hold_up_a_live_one(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    # A full backlog answers nothing, like a host that is down.
    with socket.socket() as dead, socket.socket() as filler:
        dead.bind(("127.0.0.3", port_of(listener)))
        dead.listen(0)
        filler.connect(dead.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", answers("127.0.0.3", "127.0.0.1"))
        began = time.monotonic()
        with connect("name", port_of(listener), Deadline(20)) as sock:
            assert sock.getpeername()[0] in ("127.0.0.1", "127.0.0.3")
        assert time.monotonic() - began < 3.0


def test_an_address_that_is_dead_is_resolved_afresh(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    monkeypatch.setattr(module, "ATTEMPT_SECONDS", 0.1)
    replies = [["127.0.0.9"], ["127.0.0.9"], ["127.0.0.1"]]  # a pod that has moved

    def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        return answers(*(replies.pop(0) if len(replies) > 1 else replies[0]))(host, port)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with connect("name", port_of(listener), Deadline(20)) as sock:
        assert sock.getpeername()[0] == "127.0.0.1"


def test_a_connection_to_oneself_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        failed = module._end(sock)
    assert failed is not None
    assert failed.errno == errno.ECONNREFUSED
