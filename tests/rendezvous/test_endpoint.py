"""Addresses: what is read, what is refused, and where free ports come from."""

import socket

import pytest

from rallypoint.errors import ParameterError
from rallypoint.rendezvous import endpoint
from rallypoint.rendezvous.endpoint import (
    free_port,
    join_endpoint,
    local_address,
    parse_rendezvous_endpoint,
    propose_port,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1:1234", ("node1", 1234)),
        ("node1", ("node1", 29400)),
        ("10.0.0.9:0", ("10.0.0.9", 0)),
        ("a.b-c_d.example.:65535", ("a.b-c_d.example.", 65535)),
        ("[::1]:1234", ("::1", 1234)),
        ("[2001:db8::7]", ("2001:db8::7", 29400)),
        ("2001:db8::7", ("2001:db8::7", 29400)),
        ("fe80::1%eth0", ("fe80::1%eth0", 29400)),
        (" node1:5 ", ("node1", 5)),
        ("", ("localhost", 29400)),
        (None, ("localhost", 29400)),
    ],
)
def test_reads(text: str | None, expected: tuple[str, int]) -> None:
    assert parse_rendezvous_endpoint(text) == expected


def test_the_default_port_is_an_argument() -> None:
    assert parse_rendezvous_endpoint("node1", 7) == ("node1", 7)
    assert parse_rendezvous_endpoint("node1", default_port=8) == ("node1", 8)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("node1:", "is not a number"),
        ("node1:x", "'x' is not a number"),
        ("node1:-1", "is not a number"),
        ("node1:65536", "too large"),
        (":1234", "host is missing"),
        ("node 1:1234", "not a host name"),
        ("http://node1:1234", "a URL; leave out http://"),
        ("a:1:2", "no IPv6"),
        ("tcp:/x", "not a number"),
        ("[::1:1234", "brackets"),
        ("[::1]1234", "brackets"),
        ("[node1]:1234", "not an IPv6"),
        ("a:b:c", "no IPv6"),
    ],
)
def test_refuses_by_name(text: str, what: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_rendezvous_endpoint(text)
    message = str(caught.value)
    assert repr(text) in message
    assert what in message
    assert "HOST:PORT" in message


def test_joining_is_the_reverse() -> None:
    for text in ("node1:1234", "[::1]:1234"):
        assert join_endpoint(*parse_rendezvous_endpoint(text)) == text


def test_a_free_port_can_be_bound() -> None:
    port = free_port("127.0.0.1")
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", port))
    assert free_port() > 0


def test_a_free_port_of_another_machine_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"192\.0\.2\.1"):
        free_port("192.0.2.1")


def test_an_address_that_only_leads_here_gets_a_port_of_this_machine() -> None:
    assert propose_port("192.0.2.1") > 0
    assert propose_port("127.0.0.1") > 0


def test_the_local_address_is_the_one_a_peer_sees() -> None:
    assert local_address("127.0.0.1", 80) == "127.0.0.1"


@pytest.mark.cases("A2")
def test_the_local_address_needs_no_name_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda *_: "nope.invalid")
    monkeypatch.setattr(endpoint, "_FAR_HOSTS", ())
    assert local_address() == "127.0.0.1"


def test_what_can_be_no_name_is_a_parameter_error() -> None:
    with pytest.raises(ParameterError, match=r"not\.\.valid.*no host name or address"):
        endpoint.propose_port("not..valid")
