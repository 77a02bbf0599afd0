"""Reaching servers: order of addresses, side by side, limits, and what the errors say."""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rallypoint.deadline import Deadline
from rallypoint.net import dialer as module
from rallypoint.net.dialer import (
    CancellableDeadline,
    UnreachedError,
    connect,
    explain_failure,
    own_addresses,
    resolve,
    resolved_to,
    what_was_seen,
)
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


def test_address_families_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answers("::2", "::3", "::4", "10.0.0.1"))
    found = [info[4][0] for info in resolve("name", 1, Deadline(1))]
    assert found == ["::2", "10.0.0.1", "::3", "::4"]


def test_ip_address_needs_no_thread_and_no_dns() -> None:
    before = threading.active_count()
    assert [info[4][0] for info in resolve("127.0.0.1", 1, Deadline(1))] == ["127.0.0.1"]
    assert [info[4][0] for info in resolve("::1", 1, Deadline(1))] == ["::1"]
    assert threading.active_count() == before


def test_hanging_resolver_does_not_block(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket
) -> None:
    stuck, real = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **options: Any) -> list[Any]:
        if host == "name":
            stuck.wait(30)
            return []
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(UnreachedError, match="'name' was not resolved in time"):
        connect([("name", 1)], Deadline(0.2))
    port = port_of(listener)
    sock, endpoint = connect([("name", port), ("127.0.0.1", port)], Deadline(20))
    sock.close()
    assert endpoint == ("127.0.0.1", port)
    stuck.set()


def test_refused_connection_ends_the_attempt(port: int) -> None:
    began = time.monotonic()
    with pytest.raises(UnreachedError) as caught:
        connect([("127.0.0.1", port)], Deadline(60))
    assert time.monotonic() - began < 10
    ((error, addresses),) = caught.value.errors.values()
    assert error.errno == errno.ECONNREFUSED
    assert what_was_seen(error, addresses) == "no process is listening there (connection refused)"
    assert resolved_to(addresses) == "resolved to 127.0.0.1"


def test_error_for_an_unreachable_server() -> None:
    endpoint, deadline = ("10.0.0.9", 29400), Deadline(0)
    refused = OSError(errno.ECONNREFUSED, "refused")
    text = explain_failure(endpoint, refused, answers("10.0.0.9")("", 1), deadline)
    assert "cannot reach 10.0.0.9:29400 (resolved to 10.0.0.9) after 0.0 s" in text
    assert "`rallypoint serve --bind ADDRESS:29400`" in text
    assert "127.0.0.1" in own_addresses()


def test_host_name_does_not_resolve() -> None:
    with pytest.raises(UnreachedError, match=r"'nope\.invalid'") as caught:
        connect([("nope.invalid", 1)], Deadline(20))
    ((_, addresses),) = caught.value.errors.values()
    assert resolved_to(addresses) == "which does not resolve"


def test_attempt_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()

    def getaddrinfo(*_: object, **__: object) -> list[Any]:
        stuck.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    attempt = CancellableDeadline(600)
    found = in_thread(connect, [("name", 1)], attempt)
    with pytest.raises(TimeoutError):
        found.result(0.1)
    attempt.cancel()
    assert attempt.expired()
    assert attempt.elapsed() < 5.0  # not for ever: people read it
    with pytest.raises(UnreachedError):
        found.result(10)
    stuck.set()


@pytest.fixture(name="dead")
def _dead(listener: socket.socket) -> Iterator[tuple[str, int]]:
    """An address that answers nothing, like a host that is down: its backlog is full."""
    with socket.socket() as dead, socket.socket() as filler:
        dead.bind(("127.0.0.3", port_of(listener)))
        dead.listen(0)
        filler.connect(dead.getsockname())
        yield dead.getsockname()


def test_dead_address_does_not_delay_a_live_one(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket, dead: tuple[str, int]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answers(dead[0], "127.0.0.1"))
    began = time.monotonic()
    sock, _ = connect([("name", port_of(listener))], Deadline(20))
    with sock:
        assert sock.getpeername()[0] in (dead[0], "127.0.0.1")
    assert time.monotonic() - began < 3.0


def test_dead_server_does_not_delay_another_one(
    listener: socket.socket, dead: tuple[str, int]
) -> None:
    began, endpoint = time.monotonic(), ("127.0.0.1", port_of(listener))
    sock, found = connect([dead, endpoint], Deadline(20))
    sock.close()
    assert found in (dead, endpoint)
    assert time.monotonic() - began < 3.0


def test_default_socket_timeout_of_the_program_is_ignored(listener: socket.socket) -> None:
    endpoint = ("127.0.0.1", listener.getsockname()[1])
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(9.0)
    try:
        sock, _ = connect([endpoint], Deadline(5.0))
    finally:
        socket.setdefaulttimeout(before)
    with sock:
        assert sock.gettimeout() is None  # else the kernel's limits on reads would not hold


def test_first_of_several_servers_is_preferred(listener: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        endpoints = [("127.0.0.1", port_of(listener)), ("127.0.0.1", port_of(other))]
        for order in (endpoints, endpoints[::-1]):
            sock, found = connect(order, Deadline(20))
            sock.close()
            assert found == order[0]


def test_all_servers_are_named_when_none_can_be_reached(port: int) -> None:
    endpoints = [("127.0.0.1", port), ("nope.invalid", 7)]
    with pytest.raises(UnreachedError, match=r"nope\.invalid:7: .*the name") as caught:
        connect(endpoints, Deadline(20))
    assert list(caught.value.errors) == endpoints


def test_connection_to_itself_is_not_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        failed = module._end(sock)
    assert failed is not None
    assert failed.errno == errno.ECONNREFUSED
