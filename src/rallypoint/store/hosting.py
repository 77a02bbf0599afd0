"""Starting a server inside this process, without knowing how.

Stores and handlers can host (`TCPStore(is_master=True)`, `is_host`), but the server lies
above them: imports go down only. The package's front door (`rallypoint/__init__.py`), which
may know all layers, says here how a server is started.
"""

from collections.abc import Callable
from typing import Protocol

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreError


class HostedServer(Protocol):
    """A server that runs in this process, in a thread of its own."""

    host: str
    port: int

    def wait_until_empty(self, deadline: Deadline) -> bool:
        """Wait until the last client has gone; return whether that is so."""

    def stop(self) -> None:
        """End it."""


StartServer = Callable[[str, int, bytes, bool], HostedServer]
_start: list[StartServer] = []


def provide(start: StartServer) -> None:
    """Say how a server is started."""
    _start[:] = [start]


def start_server(host: str, port: int, token: bytes, insecure: bool) -> HostedServer:
    """Start a server bound to exactly that address; port 0 picks one.

    Raises OSError with the errno of the bind (EADDRINUSE, EADDRNOTAVAIL ...), and
    ParameterError when a token is needed.
    """
    if not _start:
        raise StoreError("no server can be started here: import rallypoint first")
    return _start[0](host, port, token, insecure)
