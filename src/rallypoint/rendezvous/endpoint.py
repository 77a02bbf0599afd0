"""Addresses: reading `host:port`, finding a free port and this machine's own address.

No name is looked up backwards and no host name is asked for: an address that this machine
advertises is one that the kernel itself would use as the source of a packet to a peer.
"""

import ipaddress
import re
import socket

from rallypoint.errors import ParameterError
from rallypoint.store.protocol import DEFAULT_PORT

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_ALLOWED = "allowed: HOST, HOST:PORT, [IPV6]:PORT or IPV6, with a port of 0 to 65535"
LOOPBACK = "127.0.0.1"
# Addresses reserved for documentation: routed like any other far host, owned by none.
_FAR_HOSTS = ("192.0.2.1", "2001:db8::1")


def _wrong(endpoint: object, what: str) -> ParameterError:
    return ParameterError(f"endpoint={endpoint!r}: {what}; {_ALLOWED}")


def _port(endpoint: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _wrong(endpoint, f"the port {text!r} is not a number")
    port = int(text)
    if port > 65535:
        raise _wrong(endpoint, f"the port {port} is too large")
    return port


def is_ipv6(host: str) -> bool:
    """Return whether `host` is an IPv6 address (a zone such as %eth0 may follow)."""
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def join_endpoint(host: str, port: int) -> str:
    """Return host and port as one text; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_rendezvous_endpoint(
    endpoint: str | None, default_port: int = DEFAULT_PORT
) -> tuple[str, int]:
    """Return host and port of `host`, `host:port`, `[v6]:port`, `[v6]` or a bare IPv6 address.

    An empty endpoint is localhost with the default port.

    Raises:
        ParameterError: names the endpoint, what is wrong with it and what is allowed.
    """
    if endpoint is not None and not isinstance(endpoint, str):
        raise _wrong(endpoint, "not a text")
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _wrong(endpoint, "the brackets of the IPv6 address are not closed or misplaced")
        if not is_ipv6(host):
            raise _wrong(endpoint, f"{host!r} is not an IPv6 address")
        return host, _port(text, rest[1:]) if rest else default_port
    if text.count(":") > 1:
        if is_ipv6(text):
            return text, default_port
        raise _wrong(endpoint, "more than one ':' but no IPv6 address")
    host, colon, rest = text.partition(":")
    if not host:
        raise _wrong(endpoint, "the host is missing")
    if not _NAME.fullmatch(host):
        raise _wrong(endpoint, f"{host!r} is not a host name or address")
    return host, _port(text, rest) if colon else default_port


def _bind_any(address: str) -> int:
    try:
        found = socket.getaddrinfo(
            address or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except UnicodeError as error:  # what no name can be is found out by the IDNA codec
        raise ParameterError(
            f"address={address!r}: no host name or address ({error}); allowed: an address or "
            "name of this machine, such as --local-addr 10.0.0.7"
        ) from error
    family, kind, proto, _, where = found[0]
    with socket.socket(family, kind, proto) as probe:
        probe.bind(where)
        port: int = probe.getsockname()[1]
        return port


def free_port(address: str = "") -> int:
    """Return a port that is free now on `address` (empty: on any address of this machine).

    Raises:
        ParameterError: the address does not belong to this machine or cannot be resolved.
    """
    try:
        return _bind_any(address)
    except OSError as error:
        raise ParameterError(
            f"address={address!r}: no port of it can be bound ({error}); "
            "allowed: an address or name of this machine"
        ) from error


def propose_port(address: str) -> int:
    """Return a port that is free on `address`, or on this machine if it is not a local one.

    An address behind NAT or of a load balancer is not this machine's, but leads to it.
    """
    try:
        return _bind_any(address)
    except OSError:
        return _bind_any("")


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
