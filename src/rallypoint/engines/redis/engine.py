"""Redis or Valkey as an engine, and the store on it.

A commit is one script (scripts.py), and the server runs one script at a time, so a single server
decides correctly. Several do not: a replica that takes over may lack acknowledged writes
(client.NOTE, docs/engines.md).

Waking. The script publishes the new version on a channel with the key's name. A waiting call
subscribes first and reads then, so it misses nothing; and it looks again from time to time,
because a message published while a connection breaks is lost. Redis announces no expiry here:
the call asks how long the entry has to live.
"""

import math
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import (
    LOOK_SECONDS,
    Commit,
    Engine,
    Entries,
    Entry,
    check_commit,
    version_of,
)
from rallypoint.engines.redis.client import RedisClient, exceptions
from rallypoint.engines.redis.scripts import COMMIT, RENEW
from rallypoint.engines.store import EngineStore
from rallypoint.engines.url import EngineAddress, parse_engine_url
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS

DEFAULT_PORT = 6379
RECEIPT_SECONDS = 3600
_OPTIONS = frozenset(("db", "timeout"))
_AGAIN_SECONDS = 0.05


class RedisEngine(Engine):
    """A Redis or Valkey server, under a prefix.

    Args:
        url: `redis[s]://[user:password@]host:6379/prefix?db=0&ca=...&timeout=5`.

    Raises ParameterError; connects with the first call.
    """

    name = "redis"

    def __init__(self, url: str | EngineAddress) -> None:
        if isinstance(url, str):
            url = parse_engine_url(url, "redis", DEFAULT_PORT, _OPTIONS)
        self.address = url
        self.where = str(url)
        self.hosts = url.hosts
        self._redis = RedisClient(url)
        self._tag = f"{{{url.prefix}}}"
        self._commit_script = self._redis.client.register_script(COMMIT)
        self._renew_script = self._redis.client.register_script(RENEW)
        self._lock = threading.Lock()
        self._client = uuid.uuid4().hex
        self._receipts: list[str] = []  # keys of receipts not in use
        self._receipt_count = 0
        self._noted = False

    def __repr__(self) -> str:
        return f"RedisEngine({self.where!r})"

    def clone(self) -> "RedisEngine":
        return RedisEngine(self.address)

    def about(self, deadline: Deadline) -> str:
        info: Any = self._redis.call(lambda client: client.info(), deadline)
        name = "valkey" if "valkey_version" in info else "redis"
        kept = "" if info.get("aof_enabled") else ", no append-only file: a restart forgets runs"
        version = info.get(f"{name}_version", "?")
        return f"{name} {version}, {info.get('role', '?')}{kept}"

    def close(self) -> None:
        self._redis.close()

    def _key(self, key: str) -> str:
        return f"{self._tag}:data/{key}"

    # -- reading --------------------------------------------------------------------------

    def read(self, keys: Sequence[str], deadline: Deadline) -> Entries:
        if not keys:
            return {}

        def get(client: Any) -> list[list[bytes | None]]:
            with client.pipeline(transaction=len(keys) > 1) as pipe:
                for key in keys:
                    pipe.hmget(self._key(key), ("v", "d"))
                found: list[list[bytes | None]] = pipe.execute()
                return found

        found = self._redis.call(get, deadline)
        self._note()
        return _entries(keys, [each for pair in found for each in pair])

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            self._redis.note()

    def scan(self, prefix: str, deadline: Deadline) -> list[str]:
        """Return the keys that begin with `prefix`, sorted; none that expire."""
        low = b"[" + prefix.encode()
        high = b"[" + prefix.encode() + b"\xff"  # this byte is not in UTF-8 text
        index = f"{self._tag}:index"
        found: Any = self._redis.call(lambda client: client.zrangebylex(index, low, high), deadline)
        return sorted(name.decode() for name in found)

    # -- writing --------------------------------------------------------------------------

    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        check_commit(expected, changes)
        arguments: list[Any] = [uuid.uuid4().bytes, RECEIPT_SECONDS]
        for key, seen in expected.items():
            what, value = "=", b""
            if key in changes:
                what, value = _change(changes[key])
            lives = math.ceil((expire or {}).get(key, 0.0) * 1000)
            arguments += (key, version_of(seen), what, value, lives)
        with self._receipt() as receipt:
            own = (f"{self._tag}:version", f"{self._tag}:index", receipt)
            keys = [*own, *map(self._key, expected)]
            done, *found = self._redis.call(
                lambda client: self._commit_script(keys, arguments, client), deadline
            )
        self._note()
        if done:
            return Commit(True, int(found[0]), {})
        return Commit(False, 0, _entries(list(expected), found))

    @contextmanager
    def _receipt(self) -> Iterator[str]:
        """Reserve the key of a receipt for one commit."""
        with self._lock:
            if not self._receipts:
                self._receipt_count += 1
                name = f"receipt/{self._client}/{self._receipt_count}"
                self._receipts.append(f"{self._tag}:{name}")
            key = self._receipts.pop()
        yield key
        with self._lock:  # not after a failure: the request may still arrive
            self._receipts.append(key)

    def renew(self, key: str, seen: Entry, seconds: float, deadline: Deadline) -> bool:
        arguments = [seen.version, math.ceil(seconds * 1000)]
        return bool(
            self._redis.call(
                lambda client: self._renew_script([self._key(key)], arguments, client), deadline
            )
        )

    # -- waiting --------------------------------------------------------------------------

    def wait(self, key: str, seen: Entry | None, deadline: Deadline) -> bool:
        while True:
            try:
                if self._listen(key, seen, deadline):
                    return True
            except exceptions.RedisError:
                threading.Event().wait(deadline.capped(_AGAIN_SECONDS))
                self.read([key], deadline)  # raises if the error is permanent
            if deadline.expired():
                return False

    def _listen(self, key: str, seen: Entry | None, deadline: Deadline) -> bool:
        """Wait for a message, `LOOK_SECONDS` at most."""
        look = Deadline(deadline.capped(LOOK_SECONDS))
        client: Any = self._redis.client
        with client.pubsub() as channel:
            channel.subscribe(self._key(key))
            while True:
                message: Any = channel.get_message(timeout=max(look.remaining(), 0.001))
                if message is None and look.expired():
                    return False
                if message is not None and message["type"] == "message":
                    return True
                if message is not None:  # subscribed, or subscribed again
                    found = self.read([key], deadline).get(key)
                    if version_of(found) != version_of(seen):
                        return True
                    look = self._until_expiry(key, look, deadline)

    def _until_expiry(self, key: str, look: Deadline, deadline: Deadline) -> Deadline:
        """Return when to look again: soon after the entry expires, if it does."""
        milliseconds: Any = self._redis.call(lambda client: client.pttl(self._key(key)), deadline)
        if milliseconds < 0:
            return look
        return Deadline(look.capped(milliseconds / 1000 + _AGAIN_SECONDS))


def _change(value: bytes | None) -> tuple[str, bytes]:
    return ("d", b"") if value is None else ("w", value)


def _entries(keys: Sequence[str], flat: Sequence[bytes | None]) -> Entries:
    """Return entries from versions and values, alternating, in the order of the keys."""
    entries: Entries = {}
    for key, version, value in zip(keys, flat[::2], flat[1::2], strict=True):
        if version is not None and value is not None:
            entries[key] = Entry(int(version), value)
    return entries


class RedisStore(EngineStore):
    """A store on a Redis or Valkey server.

    Args:
        url: see `RedisEngine`.
        timeout: limit of calls without a timeout, in seconds or a timedelta.
    """

    def __init__(self, url: str, timeout: float | timedelta = DEFAULT_TIMEOUT_SECONDS) -> None:
        super().__init__(RedisEngine(url), timeout)
