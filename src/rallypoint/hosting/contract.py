"""Starting a server inside this process, without knowing how.

Stores and handlers can host (`TCPStore(is_master=True)`, `is_host`), but the server lies
above them: imports go down only. The package's front door (`rallypoint/__init__.py`), which
may know all layers, says here how a server is started. So `import rallypoint` loads this module,
and what is heavy is loaded when it is used.
"""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rallypoint.deadline import Deadline
from rallypoint.errors import RendezvousConnectionError, StoreConnectionError, StoreError

if TYPE_CHECKING:
    from rallypoint.net.tls import TLS


class HostedServer(Protocol):
    """A server that runs in this process, in a thread of its own."""

    host: str
    port: int

    def wait_until_empty(self, deadline: Deadline) -> bool:
        """Wait until the last client has gone; return whether that is so."""

    def stop(self) -> None:
        """End it."""


StartServer = Callable[[str, int, bytes, bool, "TLS | None"], HostedServer]
_start: list[StartServer] = []


def provide(start: StartServer) -> None:
    """Say how a server is started."""
    _start[:] = [start]


def start_server(
    host: str, port: int, token: bytes, insecure: bool, tls: "TLS | None" = None
) -> HostedServer:
    """Start a server bound to exactly that address; port 0 picks one.

    Raises OSError with the errno of the bind (EADDRINUSE, EADDRNOTAVAIL ...), and
    ParameterError when a token or a certificate is needed.
    """
    if not _start:
        raise StoreError("no server can be started here: import rallypoint first")
    if tls is not None:
        tls.check_hosting()
    return _start[0](host, port, token, insecure, tls)


def start_for_store(host: str, port: int, token: bytes, insecure: bool, tls: "TLS") -> HostedServer:
    """Start the server of a store that is its master; StoreConnectionError if it cannot."""
    from rallypoint.net.endpoints import one_host

    one_host(host)
    try:
        return start_server(host, port, token, insecure, tls)
    except OSError as error:
        raise StoreConnectionError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; another program may use "
            "the port: choose another one, or 0 for a free one"
        ) from error


def check_elsewhere(where: str, error: OSError, is_host: bool | None) -> None:
    """Return if a server that could not listen here is to be looked for elsewhere.

    That is so where the address is another machine's, is taken by whoever hosts, or is not
    known to the name service yet.

    Args:
        where: HOST:PORT.
        error: of the attempt to listen there.
        is_host: whether this machine was said to be the host.

    Raises:
        RendezvousConnectionError: it must host, or the error says something else.
    """
    from socket import gaierror

    elsewhere = isinstance(error, gaierror) or error.errno in (
        errno.EADDRNOTAVAIL,
        errno.EADDRINUSE,
    )
    if elsewhere and not is_host:
        return
    said = "is_host=true (--rdzv-conf), but " if is_host else ""
    raise RendezvousConnectionError(
        f"{said}this machine cannot listen on {where}: {error.strerror or error}; give the "
        "endpoint an address of this machine and a free port"
    ) from error
