"""Free ports, ports that stay bound, and this machine's own address."""

import errno
import os
import socket

import pytest

from rallypoint.errors import ParameterError, RendezvousStateError
from rallypoint.net import addresses
from rallypoint.net.addresses import HeldPort, free_port, local_address, propose_port


def test_a_free_port_can_be_bound() -> None:
    port = free_port("127.0.0.1")
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", port))
    assert free_port() > 0


def test_a_free_port_of_another_machine_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"192\.0\.2\.1"):
        free_port("192.0.2.1")


def test_forwarded_address_gets_a_port_of_this_machine() -> None:
    assert propose_port("192.0.2.1") > 0
    assert propose_port("127.0.0.1") > 0


def bind(port: int, address: str = "127.0.0.1") -> None:
    with socket.socket() as mine:
        mine.bind((address, port))


def test_held_port_is_reserved_until_released() -> None:
    held, other = HeldPort(), HeldPort()
    port = held.propose("127.0.0.1")
    assert held.propose("127.0.0.1") == port != other.propose("127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        bind(port)
    held.release()
    bind(port)
    held.release()  # nothing to let go
    assert held.propose("127.0.0.1") > 0


def test_released_port_is_not_held() -> None:
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


def test_held_port_moves_with_its_address() -> None:
    held = HeldPort()
    port = held.propose("127.0.0.1")
    held.propose("127.0.0.2")
    bind(port)
    assert held.propose("192.0.2.1") > 0  # not of this machine, but leads to it


def test_held_port_is_freed_with_its_holder() -> None:
    held = HeldPort()
    port = held.propose("127.0.0.1")
    del held
    bind(port)


def test_forked_child_does_not_hold_the_parents_port() -> None:
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


def test_local_address_is_what_a_peer_sees() -> None:
    assert local_address("127.0.0.1", 80) == "127.0.0.1"


@pytest.mark.cases("case-A2")
def test_local_address_needs_no_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda *_: "nope.invalid")
    monkeypatch.setattr(addresses, "_REMOTE_HOSTS", ())
    assert local_address() == "127.0.0.1"


def test_invalid_host_name_is_a_parameter_error() -> None:
    with pytest.raises(ParameterError, match=r"not\.\.valid.*no host name or address"):
        addresses.propose_port("not..valid")
