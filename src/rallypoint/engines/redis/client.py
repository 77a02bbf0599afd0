"""Speaking to Redis or Valkey: one client, its errors told apart, tries until a deadline.

redis-py's own retries are off: it would send a script again without a limit that our
callers have set. Errors are told apart by type.
"""

import logging
import os
import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rallypoint.deadline import Deadline
from rallypoint.engines.url import EngineAddress
from rallypoint.errors import (
    AuthenticationError,
    ParameterError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
)

try:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise ParameterError(
        "redis needs the extra rallypoint[redis], which is not installed: "
        f"pip install 'rallypoint[redis]' ({error})"
    ) from error

_log = logging.getLogger(__name__)
REQUEST_SECONDS = 5.0
CONNECT_SECONDS = 2.0
_PAUSE_FIRST_SECONDS, _PAUSE_MOST_SECONDS = 0.02, 1.0
_T = TypeVar("_T")

NOTE = (
    "%s: Redis copies writes to its replicas after it has acknowledged them. If the primary "
    "dies, a replica that takes over may lack the last ones: a round may be decided anew, a "
    "key be as it was. With appendfsync=everysec a power loss costs up to a second. Where "
    "that must not happen, use etcd (docs/engines.md)"
)
FORGETS = (
    "it keeps no append-only file: a restart of Redis forgets all runs and stores, or what has "
    "changed since its last snapshot; set appendonly yes"
)
_NOTED: set[tuple[tuple[str, int], ...]] = set()
_NOTED_LOCK = threading.Lock()

# A server that is loading, that has become a replica, or whose script was cut off by others.
_PASSING = (
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
)


class RedisClient:
    """A client of one server. Thread-safe.

    Args:
        address: the server, and how to prove oneself to it.
    """

    def __init__(self, address: EngineAddress) -> None:
        if len(address.hosts) != 1:
            raise ParameterError(
                f"{address}: {len(address.hosts)} hosts; allowed is one (give the name that "
                "leads to the primary)"
            )
        self.address = address
        self.client = _client(address)

    def call(self, function: Callable[["redis.Redis"], _T], deadline: Deadline) -> _T:
        """Carry out a function of the client, again and again while the server is away.

        Raises StoreConnectionError after the deadline (the first try is always made),
        AuthenticationError, StoreLimitError, StoreError.
        """
        failures = 0
        while True:
            try:
                return function(self.client)
            except exceptions.RedisError as error:
                failures += 1
                if not _may_pass(error):
                    raise self._mapped(error) from error
                if deadline.expired():
                    raise StoreConnectionError(
                        f"{self.address} cannot be reached: {failures} tries in "
                        f"{deadline.elapsed():.1f} s; the last one: {error}"
                    ) from error
            _pause(failures, deadline)

    def _mapped(self, error: exceptions.RedisError) -> StoreError:
        user = self.address.user
        if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
            return AuthenticationError(
                f"{self.address}: {error} (user {user!r}; password from the URL, "
                "RALLYPOINT_REDIS_PASSWORD or RALLYPOINT_REDIS_PASSWORD_FILE)"
            )
        if isinstance(error, exceptions.OutOfMemoryError):
            return StoreLimitError(
                f"{self.address}: the server is full ({error}); nothing was written. Raise "
                "maxmemory or free some (CONFIG SET maxmemory takes effect at once)"
            )
        return StoreError(f"{self.address}: {error}")

    def note(self) -> None:
        """Say in the log, once a server and process, what Redis does not promise."""
        if os.environ.get("RALLYPOINT_STORE"):
            return  # a worker: the agent that started it has said so
        where = str(self.address)
        with _NOTED_LOCK:
            if self.address.hosts in _NOTED:
                return
            _NOTED.add(self.address.hosts)
        _log.warning(NOTE, where)
        try:
            info: dict[str, Any] = self.client.info("default")
        except exceptions.RedisError as error:  # INFO may be forbidden to this user
            _log.info("%s: its persistence and memory policy are not known: %s", where, error)
            return
        if not info.get("aof_enabled"):
            _log.warning("%s: %s", where, FORGETS)
        policy = info.get("maxmemory_policy", "noeviction")
        if info.get("maxmemory") and policy != "noeviction":
            _log.warning(
                "%s: maxmemory-policy is %s: when memory runs out, it deletes keys of running "
                "jobs; set it to noeviction",
                where, policy,
            )  # fmt: skip

    def close(self) -> None:
        """Close what is not in use; a connection closed under a reader breaks its thread."""
        self.client.connection_pool.disconnect(inuse_connections=False)


def _client(address: EngineAddress) -> "redis.Redis":
    (host, port), options = address.hosts[0], address.options
    try:
        db = int(options.get("db", "0"))
    except ValueError as error:
        raise ParameterError(f"{address}: db={options['db']!r}: allowed is a number") from error
    extra: dict[str, Any] = {}
    if address.tls:
        address.ssl_context()  # says what is wrong with the files, in our words
        names = (("ca", "ssl_ca_certs"), ("cert", "ssl_certfile"), ("key", "ssl_keyfile"))
        extra = {theirs: options[ours] for ours, theirs in names if ours in options}
    timeout = address.seconds("timeout", REQUEST_SECONDS)
    return redis.Redis(
        host=host, port=port, db=db, ssl=address.tls,
        username=address.user or None, password=address.password or None,
        socket_timeout=timeout, socket_connect_timeout=min(CONNECT_SECONDS, timeout),
        retry=Retry(NoBackoff(), 0),
        client_name="rallypoint", **extra,
    )  # fmt: skip


def _may_pass(error: exceptions.RedisError) -> bool:
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return False  # redis-py counts these as connection errors
    return isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, *_PASSING))


def _pause(failures: int, deadline: Deadline) -> None:
    most = min(_PAUSE_MOST_SECONDS, _PAUSE_FIRST_SECONDS * 2 ** min(failures, 10))
    pause = random.uniform(most / 2, most)  # noqa: S311 - jitter
    threading.Event().wait(deadline.capped(pause))


__all__ = ["NOTE", "RedisClient", "exceptions"]
