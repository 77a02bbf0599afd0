"""The state of a run as one entry of an engine (`rallypoint.engines.contract`): etcd, Redis.

The token is the entry as it was seen, that is, its version: nobody else's write has the
same one, and it only grows. A leader that was paused and wakes up holds an old one.

Which errors pass. An engine that is out of reach or full may be there again, or have room,
later; both are RendezvousConnectionError, so callers wait and try again within their limits
and running workers are left alone. Refused credentials and foreign values do not pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Engine, Entry
from rallypoint.errors import (
    AuthenticationError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
)
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend, Token

PATIENCE_SECONDS = 2.0  # callers try again by themselves


class EngineRendezvousBackend(RendezvousBackend):
    """A run's state on an engine.

    Args:
        engine: where it is; stays the caller's, who closes it.
        run_id: names the run; another run id is another state on the same engine.
        patience: seconds for which a call tries to reach the engine.
    """

    def __init__(self, engine: Engine, run_id: str, patience: float = PATIENCE_SECONDS) -> None:
        self._engine = engine
        self._run_id = run_id
        self._key = f"run/{run_id}/state"
        self._patience = patience

    @property
    def name(self) -> str:
        """Name of the backend: the engine's."""
        return self._engine.name

    @property
    def engine(self) -> Engine:
        """The engine behind it."""
        return self._engine

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, None before the first write."""
        with self._mapped("reading"):
            found = self._engine.read([self._key], Deadline(self._patience)).get(self._key)
        return None if found is None else (found.value, found)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        """Write the state if the token is that of the present one (see the contract)."""
        if token is not None and not isinstance(token, Entry):
            found = self.get_state()
            return None if found is None else (*found, False)
        with self._mapped("writing"):
            commit = self._engine.commit(
                {self._key: token}, {self._key: state}, Deadline(self._patience)
            )
        if commit.done:
            fresh = Entry(commit.version, state, commit.details.get(self._key))
            return state, fresh, True
        present = commit.present.get(self._key)
        return None if present is None else (present.value, present, False)

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        """Wait until the state is not that of `token`; the engine wakes us."""
        if token is not None and not isinstance(token, Entry):
            return True
        with self._mapped("watching"):
            return self._engine.wait(self._key, token, Deadline(timeout))

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        what = f"backend {self.name}: {doing} the state of run {self._run_id!r} failed"
        try:
            yield
        except AuthenticationError as error:  # trying again cannot help
            raise RendezvousStateError(f"{what}: {error}") from error
        except (StoreConnectionError, StoreLimitError) as error:
            raise RendezvousConnectionError(f"{what}: {error}") from error
        except StoreError as error:
            raise RendezvousStateError(f"{what}: {error}") from error
