"""The state of a run in the memory of this process: for a server, for tests, for threads."""

import threading

from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend, Token


class MemoryRendezvousBackend(RendezvousBackend):
    """A run's state in memory; all who shall meet use the same object."""

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._changed = threading.Condition()
        self._state: bytes | None = None
        self._token: object | None = None  # identity is all there is to it

    @property
    def name(self) -> str:
        """Name of the backend."""
        return self._name

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, None before the first write."""
        with self._changed:
            return None if self._state is None else (self._state, self._token)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        """Write the state if the token is that of the present one (see the contract)."""
        with self._changed:
            if token is not self._token:
                return None if self._state is None else (self._state, self._token, False)
            self._state, self._token = bytes(state), object()
            self._changed.notify_all()
            return self._state, self._token, True

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        """Wait until the state is not that of `token`, without polling."""
        with self._changed:
            return self._changed.wait_for(lambda: self._token is not token, timeout)
