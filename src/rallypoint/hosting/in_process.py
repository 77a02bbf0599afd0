"""Starting a server inside this process, in a thread of its own.

The server lies above the stores and handlers that host one (`TCPStore(is_master=True)`,
`is_host`), and imports go down only. So `rallypoint/__init__.py`, which may know all layers,
provides the function that starts it. `import rallypoint` loads this module: it stays light.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError, StoreError

if TYPE_CHECKING:
    from rallypoint.net.tls import TLS


class HostedServer(Protocol):
    """A server that runs in this process; `host` and `port` are what it is bound to."""

    host: str
    port: int

    def wait_until_empty(self, deadline: Deadline) -> bool:
        """Wait until no client is connected; return whether that is so."""

    def stop(self) -> None:
        """Stop the server."""


StartServer = Callable[[str, int, bytes, bool, "TLS | None"], HostedServer]
_start: list[StartServer] = []


def provide(start: StartServer) -> None:
    """Set the function that starts a server; its arguments are those of `start_server`."""
    _start[:] = [start]


def start_server(
    host: str, port: int, token: bytes, insecure: bool, tls: "TLS | None" = None
) -> HostedServer:
    """Start a server that is bound to exactly this address.

    Args:
        host: address to bind, or a name for it.
        port: TCP port; 0 picks a free one.
        token: secrets that the server accepts, b"" for none.
        insecure: allow an address other than loopback without a token.
        tls: the server's files; None: no TLS.

    Raises:
        OSError: with the errno of the bind (EADDRINUSE, EADDRNOTAVAIL ...).
        ParameterError: a token or a certificate is needed.
    """
    if not _start:
        raise StoreError("no server can be started here: import rallypoint first")
    if tls is not None:
        tls.check_hosting()
    return _start[0](host, port, token, insecure, tls)


def start_for_store(host: str, port: int, token: bytes, insecure: bool, tls: "TLS") -> HostedServer:
    """Start the server of a master store (StoreConnectionError if it cannot listen)."""
    from rallypoint.net.endpoints import one_host

    one_host(host)
    try:
        return start_server(host, port, token, insecure, tls)
    except OSError as error:
        raise StoreConnectionError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; another program may use "
            "the port: choose another one, or 0 for a free one"
        ) from error
