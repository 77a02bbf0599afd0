"""Addresses: reading an endpoint, finding a free port and this machine's own address.

No name is looked up backwards and no host name is asked for: an address that this machine
advertises is one that the kernel itself would use as the source of a packet to a peer.
"""

import contextlib
import os
import socket
import threading
import weakref
from typing import Any

from rallypoint.errors import ParameterError, RendezvousStateError
from rallypoint.net.endpoints import join_place as join_endpoint
from rallypoint.net.endpoints import parse_place
from rallypoint.net.protocol import DEFAULT_PORT

__all__ = [
    "LOOPBACK",
    "HeldPort",
    "free_port",
    "join_endpoint",
    "local_address",
    "parse_rendezvous_endpoint",
    "propose_port",
]

LOOPBACK = "127.0.0.1"
# Addresses reserved for documentation: routed like any other far host, owned by none.
_FAR_HOSTS = ("192.0.2.1", "2001:db8::1")


def parse_rendezvous_endpoint(
    endpoint: str | None, default_port: int = DEFAULT_PORT
) -> tuple[str, int]:
    """Return host and port of one endpoint (see `rallypoint.net.endpoints.parse_place`).

    An empty endpoint is localhost with the default port.

    Raises:
        ParameterError: names the endpoint, what is wrong with it and what is allowed.
    """
    return parse_place(endpoint, default_port)


def _numeric(address: str) -> tuple[int, tuple[str, int]] | None:
    """Return family and place of a plain IP address, which need not be resolved."""
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
    except UnicodeError as error:  # what no name can be is found out by the IDNA codec
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
    """Bind a port of `address`, or of this machine if it is not a local one.

    An address behind NAT or of a load balancer is not this machine's, but leads to it.
    """
    with contextlib.suppress(OSError):
        return _bind_any(address)
    try:
        return _bind_any("")
    except OSError as error:  # no file descriptor is left, most likely
        raise RendezvousStateError(
            f"no port can be bound for the workers on {address!r}, nor on any address of this "
            f"machine: {error.strerror or error}"
        ) from error


def _port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def free_port(address: str = "") -> int:
    """Return a port that is free now on `address` (empty: on any address of this machine).

    Raises:
        ParameterError: the address does not belong to this machine or cannot be resolved.
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
    """Return a port that is free now on `address`, or on this machine if it is not a local one."""
    with _bind_here(address) as probe:
        return _port(probe)


class HeldPort:
    """A port that is proposed, and bound until it is used, so that nobody else is given it.

    From a proposal to the round that uses it may be minutes. Who is not chosen proposes the
    same port again. Thread-safe; nothing is looked up under the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._address = ""
        self._sock: socket.socket | None = None
        self._port = 0
        self._over = False
        _holding.add(self)

    def propose(self, address: str) -> int:
        """Return the port that is held on `address`; as `propose_port` if none is yet."""
        with self._lock:
            if self._sock is not None and self._address == address:
                return self._port
        sock = _bind_here(address)
        port = _port(sock)
        with self._lock:
            self._drop()
            if self._over:
                sock.close()
            else:
                self._sock, self._address, self._port = sock, address, port
        return port

    def release(self) -> None:
        """Let it go: whoever it is for may bind it now."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """Let it go, and hold none from now on."""
        with self._lock:
            self._over = True
            self._drop()

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()  # before it is forgotten: a child forked here closes it as well
            self._sock = None

    def forget(self) -> None:
        """Free what a fork has copied: else the parent could not let it go."""
        self._lock = threading.Lock()  # which a thread of the parent's may have held
        self._drop()

    __del__ = _drop


_holding: weakref.WeakSet[HeldPort] = weakref.WeakSet()


def _forget_all() -> None:
    for held in list(_holding):
        held.forget()


os.register_at_fork(after_in_child=_forget_all)


def _source_towards(host: str, port: int) -> str | None:
    try:
        found = socket.getaddrinfo(host, port or DEFAULT_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, proto, _, where in found:
        try:
            with socket.socket(family, kind, proto) as probe:
                probe.connect(where)  # of a datagram socket: asks for a route, sends nothing
                source: str = probe.getsockname()[0]
        except OSError:
            continue
        return source
    return None


def local_address(peer: str | None = None, port: int = 0) -> str:
    """Return this machine's address as `peer` would see it (without one: any far host).

    Sends nothing. Loopback is the answer of a machine without a route.
    """
    hosts = (peer,) if peer else _FAR_HOSTS
    sources = (_source_towards(host, port) for host in hosts)
    return next((source for source in sources if source), LOOPBACK)
