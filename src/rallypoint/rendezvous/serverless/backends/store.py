"""The state of a run under one key of any `Store`; for a file that all nodes share, a `FileStore`.

The value is a serial number (8 bytes) followed by the state. Each write raises the number, so no
value comes twice, and "the value is still the one I have read" means that nobody has written
since, even when a state returns to what it was.
"""

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rallypoint.errors import (
    AuthenticationError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
)
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend, Token
from rallypoint.store.api import Store
from rallypoint.store.file import FileStore

_SERIAL = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class _Token:
    """The whole value as it was read."""

    raw: bytes

    def __repr__(self) -> str:
        return f"<token {_SERIAL.unpack_from(self.raw)[0]}>"


class StoreRendezvousBackend(RendezvousBackend):
    """A run's state in a key/value store.

    Args:
        store: any store that all nodes share; the caller closes it.
        run_id: names the run; another run id is another state in the same store.
        name: what `name` returns.
    """

    def __init__(self, store: Store, run_id: str, name: str = "core") -> None:
        self._store = store
        self._key = f"rallypoint/run/{run_id}/state"
        self._name = name
        self._seen: tuple[int, bytes | None] = (0, None)  # version and value last watched

    @property
    def name(self) -> str:
        return self._name

    @property
    def store(self) -> Store:
        """The store behind it."""
        return self._store

    def get_state(self) -> tuple[bytes, Token] | None:
        with self._mapped("reading"):
            raw = self._store.get_nowait(self._key)
        return None if raw is None else self._opened(raw)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if token is not None and not isinstance(token, _Token):
            found = self.get_state()
            return None if found is None else (*found, False)
        expected = token.raw if token is not None else None
        serial = 0 if expected is None else _SERIAL.unpack_from(expected)[0]
        raw = _SERIAL.pack(serial + 1) + state
        with self._mapped("writing"):
            swapped, current = self._store.compare_and_swap(self._key, expected, raw)
        if swapped:
            return state, _Token(raw), True
        return None if current is None else (*self._opened(current), False)

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        if token is not None and not isinstance(token, _Token):
            return True
        known = token.raw if token is not None else None
        end = time.monotonic() + timeout
        version, value = self._seen
        since = version if value == known else 0
        while True:
            remaining = end - time.monotonic()
            if remaining <= 0:
                return False
            try:
                with self._mapped("watching"):
                    since, value = self._store.watch(self._key, since, remaining)
            except _NoChange:
                return False
            self._seen = (since, value)
            if value != known:
                return True

    def _opened(self, raw: bytes) -> tuple[bytes, Token]:
        if len(raw) < _SERIAL.size:
            raise RendezvousStateError(
                f"backend {self._name}: the key {self._key!r} holds {len(raw)} bytes that are no "
                "rendezvous state; does something else write to it?"
            )
        return raw[_SERIAL.size :], _Token(raw)

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        what = f"backend {self._name}: {doing} the key {self._key!r} of {self._store!r} failed"
        try:
            yield
        except StoreTimeoutError as error:
            if doing == "watching":
                raise _NoChange from error
            raise RendezvousConnectionError(f"{what}: {error}") from error
        except AuthenticationError as error:  # trying again cannot help
            raise RendezvousStateError(f"{what}: {error}") from error
        except StoreConnectionError as error:
            raise RendezvousConnectionError(f"{what}: {error}") from error
        except StoreError as error:
            raise RendezvousStateError(f"{what}: {error}") from error


class _NoChange(Exception):
    """The time is up without a change."""


class FileRendezvousBackend(StoreRendezvousBackend):
    """A run's state in a file that all nodes share; locking and crashes are as in `FileStore`.

    Args:
        where: path of the file, or a store.
        run_id: names the run; several runs may share one file.
    """

    def __init__(self, where: str | os.PathLike[str] | Store, run_id: str) -> None:
        store = where if isinstance(where, Store) else FileStore(os.fspath(where))
        super().__init__(store, run_id, name="file")
