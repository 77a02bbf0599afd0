"""The RendezvousBackend contract: one state of bytes behind compare-and-set; and one in memory.

A state has a token, which stands for the write that made it. Tokens are opaque: only the backend
that made one looks into it, and callers may pass any object.

Guarantees of every backend, checked by `rallypoint.testing.backend_suite.BackendSuite`:

* `set_state` is atomic among all clients of the same state: of several calls with the same token
  exactly one succeeds, and the others return what that one wrote;
* every later `get_state` returns what `set_state` acknowledged, until the next write;
* states are any bytes, empty included, of at least 16 MiB;
* calls may come from any thread; only `wait_for_change` blocks longer than its I/O.
"""

import random
import threading
import time
from abc import ABC, abstractmethod
from typing import Any

Token = Any
_POLL_FIRST_SECONDS, _POLL_MOST_SECONDS = 0.02, 1.0


class RendezvousBackend(ABC):
    """Keeps the state of one run (see the module's guarantees)."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the backend, as users ask for it."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, None before the first write.

        Raises:
            RendezvousConnectionError: it is out of reach; another attempt may succeed.
            RendezvousStateError: what is stored is not ours, or access is refused.
        """

    @abstractmethod
    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        """Write `state` if `token` is that of the present state, or None and there is none.

        An old or foreign token, or None where a state exists, changes nothing.

        Returns:
            The present state, its token, and whether this call wrote it; None if it did not
            and there is no state.

        Raises:
            RendezvousConnectionError: it cannot be reached; the state may or may not be
                written.
            RendezvousStateError: as in `get_state`.
        """

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        """Wait until the state is not that of `token` (None: until there is one).

        Optional; the default reads the state again and again, at last once a second.

        Args:
            token: of the state that the caller knows; a foreign one returns at once.
            timeout: seconds.

        Returns:
            Whether it changed; False once the time is up.

        Raises:
            RendezvousConnectionError, RendezvousStateError: as in `get_state`.
        """
        end = time.monotonic() + timeout
        never, pause = threading.Event(), _POLL_FIRST_SECONDS
        while True:
            found = self.get_state()
            if (None if found is None else found[1]) != token:
                return True
            remaining = end - time.monotonic()
            if remaining <= 0:
                return False
            never.wait(min(remaining, pause * random.uniform(0.5, 1.0)))  # noqa: S311 - jitter
            pause = min(pause * 2, _POLL_MOST_SECONDS)


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
