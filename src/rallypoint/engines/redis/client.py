"""The client of a Redis or Valkey server: error mapping, and retries until a deadline.

redis-py's own retries are off: they would send a script again without our callers' limits. Errors
are told apart by type.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import pause
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
    from redis import exceptions as exceptions
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

# The server is loading, has become a replica, or has interrupted the script.
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
        address: the server and the credentials.
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
        """Call a function with the client; retry while the server cannot be reached.

        Raises StoreConnectionError after the deadline (there is always one try),
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
            pause(failures, deadline)

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
        """Warn once for each server and process of what Redis does not guarantee."""
        if os.environ.get("RALLYPOINT_STORE"):
            return  # a worker: its agent has warned
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
                where,
                policy,
            )

    def close(self) -> None:
        """Close the idle connections; closing one under a reader would break its thread."""
        self.client.connection_pool.disconnect(inuse_connections=False)


def _client(address: EngineAddress) -> "redis.Redis":
    (host, port), options = address.hosts[0], address.options
    try:
        db = int(options.get("db", "0"))
    except ValueError as error:
        raise ParameterError(f"{address}: db={options['db']!r}: allowed is a number") from error
    extra: dict[str, Any] = {}
    if address.tls:
        address.ssl_context()  # raises our error for unusable files
        names = (("ca", "ssl_ca_certs"), ("cert", "ssl_certfile"), ("key", "ssl_keyfile"))
        extra = {theirs: options[ours] for ours, theirs in names if ours in options}
    timeout = address.seconds("timeout", REQUEST_SECONDS)
    return redis.Redis(
        host=host,
        port=port,
        db=db,
        ssl=address.tls,
        username=address.user or None,
        password=address.password or None,
        socket_timeout=timeout,
        socket_connect_timeout=min(CONNECT_SECONDS, timeout),
        retry=Retry(NoBackoff(), 0),
        client_name="rallypoint",
        **extra,
    )


def _may_pass(error: exceptions.RedisError) -> bool:
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return False  # redis-py counts these as connection errors
    return isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, *_PASSING))
