"""A TCP store that connects when it is first used.

A round hands every node a store, and many never touch it: ten thousand nodes should not make
ten thousand connections for nothing. Until the first call this costs no request.
"""

import threading
from collections.abc import Callable
from typing import Any

from rallypoint.net import protocol as p
from rallypoint.store.api import Store
from rallypoint.store.tcp import TCPStore


class LazyStore(Store):
    """Stands for the store that `open_store` returns.

    Args:
        open_store: makes the store, at the first call; what it raises is raised by that call,
            and the next one tries again.
        endpoint: (host, port) of its server, known beforehand.
    """

    def __init__(self, open_store: Callable[[], TCPStore], endpoint: tuple[str, int]) -> None:
        self.master_addr_port = endpoint
        self._open_store = open_store
        self._opening = threading.Lock()
        self._opened: TCPStore | None = None
        self._closed = False

    def _store(self) -> TCPStore:
        with self._opening:
            if self._opened is None:
                self._opened = self._open_store()
                if self._closed:
                    self._opened.close()  # its own calls then say that it is closed
            return self._opened

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        return (self._opened or self._store())._call(request, timeout)

    def clone(self) -> Store:
        """Return another client of the same store, with a connection of its own."""
        return self._open_store()

    def close(self) -> None:
        """End the connection, if there is one."""
        with self._opening:
            self._closed = True
            if self._opened is not None:
                self._opened.close()
