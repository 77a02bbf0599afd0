"""Listening sockets of a server, and who may listen without a token."""

import errno
import ipaddress
import socket
from collections.abc import Iterable
from typing import Any

from rallypoint.errors import ParameterError
from rallypoint.net.token_sources import TOKEN_VARIABLE
from rallypoint.net.tokens import Keyring

BACKLOG = 65_535  # the kernel lowers it to somaxconn
PORT_TRIES = 16  # for a port that is free on all addresses of a name
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def is_loopback(address: str) -> bool:
    """Return whether an IP address is a loopback one."""
    return ipaddress.ip_address(address.split("%")[0]).is_loopback


def check_exposure(addresses: Iterable[str], token: bytes, insecure: bool) -> None:
    """Refuse to listen off loopback without a token, unless `insecure` allows it.

    Raises ParameterError, also for a worker's token: a server accepts none of those.
    """
    if token and not Keyring(token):
        raise ParameterError("the token is a worker's: a server needs one that was not derived")
    exposed = sorted({a for a in addresses if not is_loopback(a)})
    if exposed and not token and not insecure:
        raise ParameterError(
            f"refusing to listen on {', '.join(exposed)} without a token: anyone who reaches it "
            f"could join or close runs. Give all nodes the same secret (export {TOKEN_VARIABLE}="
            "$(openssl rand -hex 16), or --token-file FILE), or pass --insecure to allow it"
        )


def listen(host: str, port: int, token: bytes = b"", insecure: bool = False) -> list[socket.socket]:
    """Return sockets that listen on every address of `host`, all on one port.

    Addresses of a name that this machine does not have (IPv6 switched off, another host's) are
    skipped as long as one is left. The token is checked after the bind: a machine that does
    not host needs none.

    Args:
        host: address or name; exactly its addresses are bound.
        port: TCP port; 0 picks a free one.
        token: secrets of the server, b"" for none.
        insecure: allow an address other than loopback without a token.

    Raises:
        OSError: with the errno of the bind; the message names address and port.
        ParameterError: an address is not loopback and there is no token.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = list(dict.fromkeys((info[0], info[4]) for info in found))
        for _ in range(PORT_TRIES):
            bound = _bind_all(addresses, port, port == 0)
            if bound:
                break
        else:
            raise OSError(errno.EADDRINUSE, "found no port that is free on all its addresses")
        try:
            check_exposure([str(sock.getsockname()[0]) for sock in bound], token, insecure)
            for sock in bound:
                sock.listen(BACKLOG)
        except BaseException:
            _close_all(bound)
            raise
    except OSError as error:
        text = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise type(error)(error.errno, text) from error
    return bound


def _bind_all(addresses: list[tuple[Any, Any]], port: int, may_move: bool) -> list[socket.socket]:
    """Bind all addresses; [] when the port that the first one got is taken on another."""
    bound: list[socket.socket] = []
    missing: OSError | None = None
    for family, address in addresses:
        try:
            sock = _bound(family, (address[0], port, *address[2:]))
        except OSError as error:
            if error.errno in _NOT_HERE:
                missing = error
                continue
            _close_all(bound)
            if bound and may_move and error.errno == errno.EADDRINUSE:
                return []
            raise
        bound.append(sock)
        port = sock.getsockname()[1]
    if not bound and missing is not None:
        raise missing
    return bound


def _bound(family: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _close_all(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
