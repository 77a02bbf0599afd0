"""Addresses: what is read, what is refused, and where free ports come from."""

import errno
import os
import socket

import pytest

from rallypoint.errors import ParameterError, RendezvousStateError
from rallypoint.net import addresses
from rallypoint.net.addresses import (
    HeldPort,
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


def bind(port: int, address: str = "127.0.0.1") -> None:
    with socket.socket() as mine:
        mine.bind((address, port))


def test_a_held_port_is_nobody_elses_until_it_is_released() -> None:
    held, other = HeldPort(), HeldPort()
    port = held.propose("127.0.0.1")
    assert held.propose("127.0.0.1") == port != other.propose("127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        bind(port)
    held.release()
    bind(port)
    held.release()  # nothing to let go
    assert held.propose("127.0.0.1") > 0


def test_a_held_port_that_is_over_holds_nothing() -> None:
    held = HeldPort()
    first = held.propose("127.0.0.1")
    held.close()
    bind(first)
    bind(held.propose("127.0.0.1"))  # of a join that the shutdown has not ended yet


def test_without_a_port_the_error_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(addresses, "_bind_any", no_file)
    with pytest.raises(RendezvousStateError, match=r"for the workers on '10\.0\.0\.1'.*Too many"):
        HeldPort().propose("10.0.0.1")


def test_a_held_port_follows_its_address() -> None:
    held = HeldPort()
    port = held.propose("127.0.0.1")
    held.propose("127.0.0.2")
    bind(port)
    assert held.propose("192.0.2.1") > 0  # not of this machine, but leads to it


def test_a_held_port_goes_with_its_holder() -> None:
    held = HeldPort()
    port = held.propose("127.0.0.1")
    del held
    bind(port)


def test_a_forked_child_holds_no_port_of_its_parent() -> None:
    held = HeldPort()
    port = held.propose("127.0.0.1")
    ready, say_ready = os.pipe()
    over, say_over = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(say_ready, b"x")
        os.read(over, 1)
        os._exit(0)
    os.read(ready, 1)
    try:
        held.release()
        bind(port)
    finally:
        os.write(say_over, b"x")
        os.waitpid(child, 0)
        for end in (ready, say_ready, over, say_over):
            os.close(end)


def test_the_local_address_is_the_one_a_peer_sees() -> None:
    assert local_address("127.0.0.1", 80) == "127.0.0.1"


@pytest.mark.cases("case-A2")
def test_the_local_address_needs_no_name_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda *_: "nope.invalid")
    monkeypatch.setattr(addresses, "_FAR_HOSTS", ())
    assert local_address() == "127.0.0.1"


def test_what_can_be_no_name_is_a_parameter_error() -> None:
    with pytest.raises(ParameterError, match=r"not\.\.valid.*no host name or address"):
        addresses.propose_port("not..valid")
