"""Listening sockets, and who may listen without a token."""

import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest

from rallypoint.errors import ParameterError
from rallypoint.net.listener import check_exposure, is_loopback, listen
from rallypoint.net.tokens import worker_token
from rallypoint.server.server import endpoint_of


def addresses(sockets: list[socket.socket]) -> list[str]:
    found = [endpoint_of(sock) for sock in sockets]
    for sock in sockets:
        sock.close()
    return found


def resolver(*places: tuple[int, str]) -> Callable[..., list[Any]]:
    def answer(_host: str, port: int, **_: object) -> list[Any]:
        return [
            (family, socket.SOCK_STREAM, 6, "", (address, port, 0, 0)[: 4 if ":" in address else 2])
            for family, address in places
        ]

    return answer


def test_only_the_given_address_is_bound(port: int) -> None:
    assert addresses(listen("127.0.0.2", port)) == [f"127.0.0.2:{port}"]


def test_one_port_is_bound_for_all_addresses_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = resolver(*[(socket.AF_INET, a) for a in ("127.0.0.1", "127.0.0.2", "127.0.0.1")])
    monkeypatch.setattr(socket, "getaddrinfo", twice)
    one, two = addresses(listen("name", 0))
    assert (one.partition(":")[0], two.partition(":")[0]) == ("127.0.0.1", "127.0.0.2")
    assert one.partition(":")[2] == two.partition(":")[2]


def test_addresses_of_other_machines_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(socket.AF_INET6, "2001:db8::7"), (socket.AF_INET, "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", resolver(*places))
    (bound,) = addresses(listen("name", 0))
    assert bound.startswith("127.0.0.1:")
    monkeypatch.setattr(socket, "getaddrinfo", resolver(places[0]))
    with pytest.raises(OSError, match="cannot listen on name:7") as caught:
        listen("name", 7)
    assert caught.value.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def test_the_token_is_checked_after_the_bind(port: int) -> None:
    with pytest.raises(ParameterError, match=r"0\.0\.0\.0 without a token"):
        listen("0.0.0.0", port)
    with pytest.raises(OSError, match=r"192\.0\.2\.1:29400") as caught:
        listen("192.0.2.1", 29400)  # another machine's: nothing is exposed here
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_the_error_names_an_unknown_host() -> None:
    with pytest.raises(socket.gaierror, match=r"cannot listen on nope\.invalid:1"):
        listen("nope.invalid", 1)


def test_a_port_in_use_is_an_error_that_names_it(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(OSError, match=f"127.0.0.1:{port}") as caught:
            listen("127.0.0.1", port)
        assert caught.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_is_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_a_token_is_needed_off_loopback() -> None:
    with pytest.raises(ParameterError, match=r"10\.0\.0\.1 without a token.*RALLYPOINT_TOKEN"):
        check_exposure(["127.0.0.1", "10.0.0.1"], b"", False)
    check_exposure(["10.0.0.1"], b"secret", False)
    check_exposure(["10.0.0.1"], b"", True)
    check_exposure(["127.0.0.1", "::1"], b"", False)


def test_a_server_does_not_accept_a_worker_token() -> None:
    derived = worker_token(b"nodes", "digits").encode()
    with pytest.raises(ParameterError, match="is a worker's"):
        check_exposure(["10.0.0.1"], derived, False)
