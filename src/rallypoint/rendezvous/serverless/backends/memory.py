"""The state of a run in the memory of this process: for a server, for tests, for threads."""

import threading

from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend, Token


class MemoryRendezvousBackend(RendezvousBackend):
    """A run's state in memory; all nodes of the run use the same object."""

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._changed = threading.Condition()
        self._state: bytes | None = None
        self._token: object | None = None  # compared by identity

    @property
    def name(self) -> str:
        return self._name

    def get_state(self) -> tuple[bytes, Token] | None:
        with self._changed:
            return None if self._state is None else (self._state, self._token)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        with self._changed:
            if token is not self._token:
                return None if self._state is None else (self._state, self._token, False)
            self._state, self._token = bytes(state), object()
            self._changed.notify_all()
            return self._state, self._token, True

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._token is not token, timeout)
