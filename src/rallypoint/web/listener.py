"""Listening for HTTP in the server's own loop, from before its first run until its end."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from rallypoint.net.listener import is_loopback
from rallypoint.net.tokens import Keyring
from rallypoint.server.peer_credentials import find_peer_credentials
from rallypoint.server.server import Server
from rallypoint.web.app import make_app
from rallypoint.web.guard import Guard

GOODBYE_SECONDS = 1


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever runs the loop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class Listener:
    """The page of a server: plain on loopback and open to its user, else guarded as the server.

    Args:
        server: whose runs are shown; its tokens are asked for.
        sockets: bound sockets to listen on (see `net.listener.listen`).
        names: further names by which this machine may be called.
    """

    def __init__(
        self, server: Server, sockets: list[socket.socket], names: tuple[str, ...]
    ) -> None:
        local = all(is_loopback(str(sock.getsockname()[0])) for sock in sockets)
        nobody = Keyring(b"")
        asks = local and not server.options.insecure
        self._owners = find_peer_credentials(server.loop, sockets[0]) if asks else None
        is_open = local and self._owners is None
        guard = Guard(lambda: nobody if is_open else server.keyring, names)
        app, self._feed = make_app(server, guard, self._owners)
        tls = server.options.tls
        secure = tls.for_servers and not local
        config = uvicorn.Config(
            app,
            ssl_certfile=tls.cert if secure else None,
            ssl_keyfile=(tls.key or tls.cert) if secure else None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=GOODBYE_SECONDS,
            h11_max_incomplete_event_size=16 * 1024,
            limit_concurrency=256,
        )
        self._http = _Quiet(config)
        self._sockets = sockets
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.ensure_future(self._http.serve(self._sockets))

    async def stop(self) -> None:
        """Let the viewers go and end; raises what broke it."""
        self._feed.end()
        self._http.should_exit = True
        if self._task is not None:
            await self._task
        if self._owners is not None:
            self._owners.close()
