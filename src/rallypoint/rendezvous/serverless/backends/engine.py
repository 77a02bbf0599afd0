"""The state of a run as one entry of a database (`rallypoint.engines`): etcd, Redis, a plug-in's.

The token is the entry as it was read. Its version only grows and no two writes share one, so a
writer that was paused holds a token that is no longer valid.

An acknowledged write is on the disks of a majority of etcd's members (the version is etcd's
modification revision). With Redis or Valkey it is in the server's memory; whether it survives
that server depends on its configuration (docs/engines.md).

A database that is out of reach or full is a RendezvousConnectionError: callers try again within
their limits, and running workers go on. Refused credentials and values that are not ours are
errors at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Engine, Entry
from rallypoint.engines.url import engine_url, open_engine
from rallypoint.errors import (
    AuthenticationError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
)
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend, Token

CALL_SECONDS = 2.0  # callers try again by themselves


class EngineRendezvousBackend(RendezvousBackend):
    """A run's state in a database.

    Args:
        engine: client of the database; the caller closes it.
        run_id: names the run; another run id is another state on the same engine.
        call_seconds: how long one call tries to reach the database.
    """

    def __init__(self, engine: Engine, run_id: str, call_seconds: float = CALL_SECONDS) -> None:
        self._engine = engine
        self._run_id = run_id
        self._key = f"run/{run_id}/state"
        self._call_seconds = call_seconds

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def engine(self) -> Engine:
        """The engine behind it."""
        return self._engine

    def get_state(self) -> tuple[bytes, Token] | None:
        with self._mapped("reading"):
            found = self._engine.read([self._key], Deadline(self._call_seconds)).get(self._key)
        return None if found is None else (found.value, found)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if token is not None and not isinstance(token, Entry):
            found = self.get_state()
            return None if found is None else (*found, False)
        with self._mapped("writing"):
            commit = self._engine.commit(
                {self._key: token}, {self._key: state}, Deadline(self._call_seconds)
            )
        if commit.done:
            fresh = Entry(commit.version, state, commit.details.get(self._key))
            return state, fresh, True
        present = commit.present.get(self._key)
        return None if present is None else (present.value, present, False)

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
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


class EtcdRendezvousBackend(EngineRendezvousBackend):
    """A run's state on an etcd cluster (extra `etcd`).

    Args:
        where: URL or endpoints of the cluster (`h1:2379,h2:2379`), or an engine.
        run_id: names the run.

    Raises:
        ParameterError: the URL is wrong, or the extra is not installed.
    """

    def __init__(self, where: str | Engine, run_id: str) -> None:
        super().__init__(_opened("etcd", where), run_id)


class RedisRendezvousBackend(EngineRendezvousBackend):
    """A run's state on a Redis or Valkey server (extra `redis`).

    Args:
        where: URL or endpoint of the server (`host:6379`), or an engine.
        run_id: names the run.

    Raises:
        ParameterError: the URL is wrong, or the extra is not installed.
    """

    def __init__(self, where: str | Engine, run_id: str) -> None:
        super().__init__(_opened("redis", where), run_id)


def _opened(name: str, where: str | Engine) -> Engine:
    return open_engine(engine_url(name, where)) if isinstance(where, str) else where
