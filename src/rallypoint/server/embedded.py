"""A server in a thread with its own event loop, inside a process that does other things."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import uvloop

from rallypoint.deadline import Deadline
from rallypoint.net.listener import listen
from rallypoint.net.tls import NO_TLS, TLS
from rallypoint.server.options import Options
from rallypoint.server.server import Server


class EmbeddedServer:
    """A running server; it is bound to `host` and `port`.

    Args:
        host: address to bind, exactly.
        port: TCP port, 0 for any free one.
        options: see `Options`.

    Raises OSError or ParameterError (see `net.listener.listen`), in the calling thread.
    """

    def __init__(self, host: str, port: int, options: Options) -> None:
        sockets = listen(host, port, options.token, options.insecure)
        self.host: str = host
        self.port: int = sockets[0].getsockname()[1]
        self._loop = uvloop.new_event_loop()
        self._server: Server | None = None
        self._started = threading.Event()
        self._empty = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(options, sockets), name="rallypoint-server", daemon=True
        )
        self._thread.start()
        self._started.wait()
        self._raise_failure()

    def _run(self, options: Options, sockets: list[Any]) -> None:
        try:
            self._loop.run_until_complete(self._main(options, sockets))
        except BaseException as error:  # raised in the thread that calls next
            self.error = error
        finally:
            self._started.set()
            self._empty.set()
            self._loop.close()
            for sock in sockets:
                sock.close()  # those that the event loop did not take over

    async def _main(self, options: Options, sockets: list[Any]) -> None:
        self._server = Server(options, sockets)
        self._server.on_empty = self._empty.set
        await self._server.start()
        self._started.set()
        await self._server.serve()

    def wait_until_empty(self, deadline: Deadline) -> bool:
        """Wait until no client is connected; return whether that is so, False after `deadline`."""
        self._raise_failure()
        self._empty.clear()
        self._submit(lambda server: server.tell_if_empty())
        return self._empty.wait(deadline.remaining())

    def call(self, function: Callable[[Server], Any], deadline: Deadline) -> Any:
        """Call a function with the server, in its thread; return its result.

        Raises:
            TimeoutError: it has not returned by `deadline`.
        """

        async def run() -> Any:
            assert self._server is not None  # noqa: S101 - set before `_started`
            return function(self._server)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(deadline.remaining())

    def stop(self) -> None:
        """End the server and wait at most 10 s for its thread; raise the error that broke it."""
        self._submit(lambda server: server.stop())
        self._thread.join(10)
        self._raise_failure()

    def _submit(self, function: Callable[[Server], None]) -> None:
        server = self._server
        if self._thread.is_alive() and server is not None:
            try:
                self._loop.call_soon_threadsafe(function, server)
            except RuntimeError:
                return  # the loop closed in between: the server has ended already

    def _raise_failure(self) -> None:
        if self.error is not None:
            raise self.error


def start(
    host: str, port: int, token: bytes, insecure: bool, tls: TLS | None = None
) -> EmbeddedServer:
    """Start a server in this process (see `rallypoint.hosting.in_process`)."""
    return EmbeddedServer(host, port, Options(token=token, insecure=insecure, tls=tls or NO_TLS))
