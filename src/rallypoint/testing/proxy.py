"""A TCP proxy on loopback that can cut its connections: a bad network, on demand.

with Proxy("127.0.0.1", server.port) as proxy:
    store = TCPStore("127.0.0.1", proxy.port)
    proxy.cut()          # every connection is reset, new ones work
    proxy.refusing = True  # new ones are accepted and reset, like a service without a backend
"""

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: close sends a reset
_READ_BYTES = 64 * 1024


class Proxy:
    """Passes bytes between clients and one server, until it is told to cut.

    Args:
        host: address of the server.
        port: its port.
    """

    def __init__(self, host: str, port: int) -> None:
        self.refusing = False
        self.accepted = 0
        self._server = (host, port)
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> int:
        """Reset all connections; return how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for sock in pair:
                _reset(sock)
        return len(pairs)

    def close(self) -> None:
        """Reset all connections and stop listening."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._thread.join(5.0)
        self.cut()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self.accepted += 1
            if self.refusing:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._server, timeout=10.0)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            pair = (client, server)
            with self._lock:
                self._pairs.append(pair)
            for source, sink in (pair, pair[::-1]):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):  # cut
        while data := source.recv(_READ_BYTES):
            sink.sendall(data)
    for sock in (source, sink):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.shutdown(socket.SHUT_RD)  # wakes a thread that reads
    sock.close()
