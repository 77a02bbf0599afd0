"""This machine's addresses and ports: a free port, a port that stays bound, one's own address.

No reverse DNS and no host name is involved: the address that this machine advertises is the one
that the kernel would use as the source of a packet to a peer.
"""

import contextlib
import os
import socket
import threading
import weakref
from typing import Any

from rallypoint.errors import ParameterError, RendezvousStateError
from rallypoint.net.protocol import DEFAULT_PORT

LOOPBACK = "127.0.0.1"
# Addresses reserved for documentation: routed like any other remote host, assigned to none.
_REMOTE_HOSTS = ("192.0.2.1", "2001:db8::1")


def _numeric(address: str) -> tuple[int, tuple[str, int]] | None:
    """Return family and socket address of a plain IP address, which needs no resolver."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address)
        except OSError:
            continue
        return family, (address, 0)
    return None


def _bind_any(address: str) -> socket.socket:
    plain = _numeric(address)
    if plain is not None:
        return _bound(plain[0], plain[1])
    try:
        found = socket.getaddrinfo(
            address or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except UnicodeError as error:  # the IDNA codec rejects invalid names
        raise ParameterError(
            f"address={address!r}: no host name or address ({error}); allowed: an address or "
            "name of this machine, such as --local-addr 10.0.0.7"
        ) from error
    return _bound(found[0][0], found[0][4])


def _bound(family: int, where: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind(where)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_here(address: str) -> socket.socket:
    """Bind a port of `address`, or of this machine if that is not a local address.

    The address of a NAT gateway or load balancer is not local, but leads to this machine.
    """
    with contextlib.suppress(OSError):
        return _bind_any(address)
    try:
        return _bind_any("")
    except OSError as error:  # most likely no file descriptor is left
        raise RendezvousStateError(
            f"no port can be bound for the workers on {address!r}, nor on any address of this "
            f"machine: {error.strerror or error}"
        ) from error


def _port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def free_port(address: str = "") -> int:
    """Return a port that is free now on `address`; "" is any address of this machine.

    Raises ParameterError if the address is not this machine's or does not resolve.
    """
    try:
        with _bind_any(address) as probe:
            return _port(probe)
    except OSError as error:
        raise ParameterError(
            f"address={address!r}: no port of it can be bound ({error}); "
            "allowed: an address or name of this machine"
        ) from error


def propose_port(address: str) -> int:
    """Return a port that is free now on `address`, or on this machine if that is not local."""
    with _bind_here(address) as probe:
        return _port(probe)


class HeldPort:
    """A proposed port that stays bound until it is used, so that no other program gets it.

    Minutes may pass between a proposal and the round that uses it. A node that is not chosen
    proposes the same port again. Thread-safe; no name is resolved under the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._address = ""
        self._sock: socket.socket | None = None
        self._port = 0
        self._closed = False
        _instances.add(self)

    def propose(self, address: str) -> int:
        """Return the port that is bound on `address`; bind one first if there is none."""
        with self._lock:
            if self._sock is not None and self._address == address:
                return self._port
        sock = _bind_here(address)
        port = _port(sock)
        with self._lock:
            self._drop()
            if self._closed:
                sock.close()
            else:
                self._sock, self._address, self._port = sock, address, port
        return port

    def release(self) -> None:
        """Unbind the port, so that the program it is for can bind it."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """Unbind the port, and bind none from now on."""
        with self._lock:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()  # first close, then forget: a child forked in between closes it too
            self._sock = None

    def close_copy(self) -> None:
        """Close the copy of the socket that a fork made; else the parent could not unbind it."""
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        self._drop()

    __del__ = _drop


_instances: weakref.WeakSet[HeldPort] = weakref.WeakSet()


def _close_copies() -> None:
    for held in list(_instances):
        held.close_copy()


os.register_at_fork(after_in_child=_close_copies)


def _source_towards(host: str, port: int) -> str | None:
    try:
        found = socket.getaddrinfo(host, port or DEFAULT_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, proto, _, where in found:
        try:
            with socket.socket(family, kind, proto) as probe:
                probe.connect(where)  # on a datagram socket: looks up a route, sends nothing
                source: str = probe.getsockname()[0]
        except OSError:
            continue
        return source
    return None


def local_address(peer: str | None = None, port: int = 0) -> str:
    """Return this machine's address as `peer` would see it; without a peer, as a remote host.

    Sends nothing. On a machine without a route it is the loopback address.
    """
    hosts = (peer,) if peer else _REMOTE_HOSTS
    sources = (_source_towards(host, port) for host in hosts)
    return next((source for source in sources if source), LOOPBACK)
