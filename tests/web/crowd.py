"""Many nodes that speak the real protocol from one process: they join, beat, and can be cut."""

import socket
import threading
from types import TracebackType
from typing import Self

from rallypoint.core.events import Join
from rallypoint.core.state import Node, Settings
from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.connection import ClientConnection, ConnectionConfig, open_connection
from rallypoint.rendezvous import wire

BEAT_SECONDS = 3.0


class Crowd:
    """Nodes of one run; all are gone when the context ends.

    Args:
        port: of the server on loopback.
        run: run id.
        settings: what they want the run to be.
    """

    def __init__(self, port: int, run: str, settings: Settings) -> None:
        self._port, self._run, self._settings = port, run, settings
        self.links: dict[str, ClientConnection] = {}
        self._known: dict[str, tuple[int, int]] = {}
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._beater = threading.Thread(target=self._beat, daemon=True)
        self._beater.start()

    def join(self, *names: str) -> None:
        """Let nodes join; their host is their name."""
        for i, name in enumerate(names):
            link = self.links.get(name)
            if link is None:
                target = ConnectionConfig("127.0.0.1", self._port, self._run)
                link = open_connection(target, Deadline(20))
                with self._lock:
                    self.links[name] = link
            link.send(p.frame(wire.Ask(0, self._asking(name, i))))

    def rejoin(self, number: int, *names: str) -> None:
        """Let nodes that took part in a round join the next one."""
        for name in names:
            self._known[name] = (1, number)
        self.join(*names)

    def _asking(self, name: str, i: int) -> Join:
        address = f"10.0.{i // 250}.{i % 250 + 1}"
        node = Node(name, address, 29500, 1000 + i, slot=f"slot-{name}", host=name)
        return Join(node, self._settings, *self._known.get(name, (0, 0)))

    def cut(self, name: str) -> None:
        """End a node's connection as the kernel does for a process that was killed."""
        with self._lock:
            link = self.links.pop(name)
        link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        link.sock.close()

    def _beat(self) -> None:
        beat = p.frame(wire.Beat())
        while not self._over.wait(BEAT_SECONDS):
            with self._lock:
                links = list(self.links.values())
            for link in links:
                try:
                    link.send(beat)
                    link.sock.recv(1 << 20, socket.MSG_DONTWAIT)
                except (OSError, StoreConnectionError):
                    continue  # nothing to read, or cut by the test

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._beater.join()
        for link in self.links.values():
            link.close()
