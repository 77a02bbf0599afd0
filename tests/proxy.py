"""A TCP proxy for tests: forwards bytes, closes connections, or drops replies."""

import socket
import threading
from contextlib import suppress


class Proxy:
    """Between a client and a server on loopback.

    Args:
        target: the server's port.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.cut_answers = 0
        """So many requests are passed on, and the connection is cut instead of the answer."""
        self.silent = False
        """Whether bytes vanish, both ways, as in a network that is divided."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            ended, self._open = self._open, []
        for each in ended:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pass_on, args=(source, sink, answers), daemon=True
                ).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.silent:
                    continue
                if answers and self._cuts():
                    break
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _cuts(self) -> bool:
        with self._lock:
            if self.cut_answers:
                self.cut_answers -= 1
                return True
            return False
