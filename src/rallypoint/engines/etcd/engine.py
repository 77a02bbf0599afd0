"""etcd as an engine, and the store on it.

An entry's version is its modification revision, which grows with every transaction of the whole
cluster: an ideal fencing token.

Whether a commit took effect. The transaction compares the revisions of all expected keys, among
them every key that it changes, so it cannot take effect twice, however often and late it
arrives. But after a broken connection the client cannot tell "done by me" from "refused" by those
revisions. So each commit leaves a receipt in the same transaction, its own number under a key of
this client; a refusal that finds that number was a success.

Many keys. By default etcd takes 128 conditions and operations in a transaction. A commit of more
keys compares them itself, in one read at one revision; its transaction then has two conditions:
nothing under the prefix was written since, and nothing deleted.

Expiring entries have leases. Those that live for an hour (marks, answers, receipts) share one
lease of this client, renewed in time, so that they cost no request; others have their own, which
can be extended.
"""

import math
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

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
from rallypoint.engines.etcd import messages as m
from rallypoint.engines.etcd.gateway import INVALID, NOT_FOUND, Gateway, GatewayError
from rallypoint.engines.etcd.value_chunks import Upload, ValueChunks
from rallypoint.engines.store import EngineStore
from rallypoint.engines.url import EngineAddress, parse_engine_url
from rallypoint.errors import StoreConnectionError, StoreLimitError
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS

DEFAULT_PORT = 2379
LARGE_COMMIT_KEYS = 40  # more would not fit into one transaction
READ_KEYS = 100
GROUPS = 60  # of operations in one transaction, and operations in each of them
SHARED_LEASE_SECONDS = 3600.0  # entries that live that long share one lease
_OPTIONS = frozenset(("timeout",))
_WATCH_AGAIN_SECONDS = 0.05
_TRIES = 3  # of a commit whose lease or chunks have expired


@dataclass(frozen=True, slots=True)
class _Detail:
    """Of an entry: the name of its chunks and its lease."""

    parts: str = ""
    lease: int = 0


@dataclass(frozen=True, slots=True)
class _Receipt:
    """The record of a commit: its number, under a key of this client."""

    key: bytes
    number: bytes

    def is_in(self, found: m.KeyValue) -> bool:
        """Return whether an entry is this receipt, so that the commit took effect."""
        return found.key == self.key and found.value == self.number


class EtcdEngine(Engine):
    """An etcd cluster, under a prefix.

    Args:
        url: `etcd[s]://[user:password@]h1:2379,h2:2379/prefix?ca=...&timeout=5`.

    Raises ParameterError; connects with the first call.
    """

    name = "etcd"

    def __init__(self, url: str | EngineAddress) -> None:
        if isinstance(url, str):
            url = parse_engine_url(url, "etcd", DEFAULT_PORT, _OPTIONS)
        self.address = url
        self.where = str(url)
        self.hosts = url.hosts
        self._gateway = Gateway(url)
        self._base = url.prefix.encode() + b"/"
        self._parts = ValueChunks(self._gateway, self._base + b"parts/")
        self._deleted = self._base + b"deleted"  # written by each deletion
        self._lock = threading.Lock()
        self._lease_lock = threading.Lock()
        self._receipts: list[bytes] = []  # keys of receipts not in use
        self._shared_lease = 0
        self._shared_until = 0.0
        self._client = uuid.uuid4().hex
        self._receipt_count = 0

    def __repr__(self) -> str:
        return f"EtcdEngine({self.where!r})"

    def clone(self) -> "EtcdEngine":
        return EtcdEngine(self.address)

    def about(self, deadline: Deadline) -> str:
        status = self._gateway.call("/maintenance/status", {}, m.Status, deadline)
        leader = "" if status.leader else ", without a leader: it cannot decide"
        alarms = f", alarms: {', '.join(status.errors)}" if status.errors else ""
        return f"etcd {status.version}, {status.size / 2**20:.1f} MiB{leader}{alarms}"

    def close(self) -> None:
        self._gateway.close()

    def _key(self, key: str) -> bytes:
        return self._base + b"data/" + key.encode()

    # -- reading --------------------------------------------------------------------------

    def read(self, keys: Sequence[str], deadline: Deadline) -> Entries:
        return self._read(keys, deadline)[0]

    def _read(self, keys: Sequence[str], deadline: Deadline) -> tuple[Entries, int]:
        """Return the entries, all of one revision, and that revision."""
        found: list[m.KeyValue] = []
        revision = 0
        for at in range(0, len(keys), READ_KEYS):
            some = dict.fromkeys(keys[at : at + READ_KEYS])
            body = {"success": [m.get(self._key(key), revision=revision) for key in some]}
            answer = self._gateway.call("/kv/txn", body, m.Txn, deadline)
            revision = revision or answer.header.revision
            found += answer.found()
        return self._entries(found, deadline), revision

    def _entries(self, found: Iterable[m.KeyValue], deadline: Deadline) -> Entries:
        entries: Entries = {}
        skip = len(self._key(""))
        for kv in found:
            key = kv.key[skip:].decode()
            entry = self._entry(kv, deadline)
            if entry is not None:
                entries[key] = entry
        return entries

    def _entry(self, kv: m.KeyValue, deadline: Deadline) -> Entry | None:
        name = self._parts.name_in(kv.value, kv.key)
        if not name:
            return Entry(kv.mod_revision, kv.value[1:], _Detail("", kv.lease))
        value = self._parts.fetch(kv.key, kv, deadline)
        if value is not None:
            return Entry(kv.mod_revision, value, _Detail(name, kv.lease))
        body = {"success": [m.get(kv.key)]}  # replaced in between: return the present one
        again = self._gateway.call("/kv/txn", body, m.Txn, deadline).found()
        return self._entry(again[0], deadline) if again else None

    def scan(self, prefix: str, deadline: Deadline) -> list[str]:
        start = self._key(prefix)
        body = {"success": [m.get(start, m.end_of(start), keys_only=True)]}
        found = self._gateway.call("/kv/txn", body, m.Txn, deadline).found()
        skip = len(self._key(""))
        return [kv.key[skip:].decode() for kv in found]

    # -- writing --------------------------------------------------------------------------

    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        check_commit(expected, changes)
        with self._receipt() as receipt:
            for tries in range(1, _TRIES + 1):
                upload = self._parts.upload(changes, deadline)
                leases = self._leases(changes, expire or {}, deadline)
                try:
                    commit = self._commit(expected, changes, upload, leases, receipt, deadline)
                except GatewayError as error:
                    # A lease expired in between: nothing was written.
                    if error.code not in (NOT_FOUND, INVALID) or tries == _TRIES:
                        raise
                    self._shared_until = 0.0
                    continue
                if not commit.done:
                    self._parts.abandon(upload, deadline)
                return commit
        raise AssertionError("unreachable")

    def _commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        upload: Upload,
        leases: Mapping[str, int],
        receipt: _Receipt,
        deadline: Deadline,
    ) -> Commit:
        ops = self._operations(expected, changes, upload, leases)
        ops.append(m.put(receipt.key, receipt.number, self._shared(deadline)))
        send = self._send if len(expected) <= LARGE_COMMIT_KEYS else self._send_large
        answer = send(expected, m.grouped(ops, GROUPS), receipt, deadline)
        details = {
            key: _Detail(upload.names.get(key, ""), leases.get(key, 0)) for key in upload.values
        }
        if answer.succeeded:
            return Commit(True, answer.header.revision, {}, details)
        found = answer.found()
        for kv in found:
            if receipt.is_in(kv):
                return Commit(True, kv.mod_revision, {}, details)
        if len(expected) > LARGE_COMMIT_KEYS:
            return Commit(False, 0, self.read(list(expected), deadline))
        return Commit(
            False, 0, self._entries((kv for kv in found if kv.key != receipt.key), deadline)
        )

    def _operations(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        upload: Upload,
        leases: Mapping[str, int],
    ) -> list[m.Op]:
        ops = list(upload.ops)
        for key, value in changes.items():
            seen, where = expected[key], self._key(key)
            if seen is not None and seen.detail is not None and seen.detail.parts:
                ops.append(self._parts.drop(seen.detail.parts))
            if value is None:
                ops.append(m.delete(where))
            else:
                ops.append(m.put(where, upload.values[key], leases.get(key, 0)))
        if None in changes.values():
            ops.append(m.put(self._deleted, b""))
        return ops

    def _send(
        self,
        expected: Mapping[str, Entry | None],
        ops: list[m.Op],
        receipt: _Receipt,
        deadline: Deadline,
    ) -> m.Txn:
        body = {
            "compare": [
                m.unchanged(self._key(key), version_of(seen)) for key, seen in expected.items()
            ],
            "success": ops,
            "failure": [m.get(receipt.key), *(m.get(self._key(key)) for key in expected)],
        }
        return self._gateway.call("/kv/txn", body, m.Txn, deadline)

    def _send_large(
        self,
        expected: Mapping[str, Entry | None],
        ops: list[m.Op],
        receipt: _Receipt,
        deadline: Deadline,
    ) -> m.Txn:
        """Send a commit of many keys; it retries after any write of other clients."""
        keys, data = list(expected), self._key("")
        while True:
            present, revision = self._read(keys, deadline)
            same = all(
                version_of(present.get(key)) == version_of(seen) for key, seen in expected.items()
            )
            conditions = [
                m.all_older(data, m.end_of(data), revision),
                m.all_older(self._deleted, b"", revision),
            ]
            body = {"compare": conditions, "success": ops, "failure": [m.get(receipt.key)]}
            if not same:  # only ask whether an earlier try took effect
                body = {"compare": [m.unchanged(receipt.key, -1)], "failure": [m.get(receipt.key)]}
            answer = self._gateway.call("/kv/txn", body, m.Txn, deadline)
            if answer.succeeded or not same or any(map(receipt.is_in, answer.found())):
                return answer
            if deadline.expired():
                raise StoreLimitError(
                    f"{self.where}: a write of {len(keys)} keys found others writing all the "
                    f"time for {deadline.timeout:g} s; write fewer keys at once"
                )

    @contextmanager
    def _receipt(self) -> Iterator[_Receipt]:
        """Reserve the key of a receipt for one commit, and number the commit."""
        with self._lock:
            if not self._receipts:
                self._receipt_count += 1
                name = f"receipt/{self._client}/{self._receipt_count}"
                self._receipts.append(self._base + name.encode())
            key = self._receipts.pop()
        yield _Receipt(key, uuid.uuid4().bytes)
        with self._lock:  # not after a failure: the request may still arrive
            self._receipts.append(key)

    # -- expiring -------------------------------------------------------------------------

    def _leases(
        self,
        changes: Mapping[str, bytes | None],
        expire: Mapping[str, float],
        deadline: Deadline,
    ) -> dict[str, int]:
        leases = {}
        for key, seconds in expire.items():
            if changes.get(key) is not None:
                shared = seconds == SHARED_LEASE_SECONDS
                leases[key] = self._shared(deadline) if shared else self._grant(seconds, deadline)
        return leases

    def _shared(self, deadline: Deadline) -> int:
        """Return the shared lease, with at least `SHARED_LEASE_SECONDS` left."""
        with self._lease_lock:
            if time.monotonic() >= self._shared_until:
                self._shared_lease = self._grant(2 * SHARED_LEASE_SECONDS, deadline)
                self._shared_until = time.monotonic() + SHARED_LEASE_SECONDS
            return self._shared_lease

    def _grant(self, seconds: float, deadline: Deadline) -> int:
        body = {"TTL": math.ceil(seconds)}
        return self._gateway.call("/lease/grant", body, m.Lease, deadline).ID

    def renew(self, key: str, seen: Entry, seconds: float, deadline: Deadline) -> bool:
        if seen.detail is not None and seen.detail.lease:
            body = {"ID": str(seen.detail.lease)}
            self._gateway.call("/lease/keepalive", body, m.KeptAlive, deadline)
        found = self.read([key], deadline).get(key)
        return found is not None and found.version == seen.version

    # -- waiting --------------------------------------------------------------------------

    def wait(self, key: str, seen: Entry | None, deadline: Deadline) -> bool:
        while True:
            try:
                with self._gateway.watch(self._key(key), deadline) as watch:
                    found = self.read([key], deadline).get(key)
                    if version_of(found) != version_of(seen):
                        return True
                    if watch.next(deadline.capped(LOOK_SECONDS)):
                        return True
            except StoreConnectionError:
                if deadline.expired():
                    raise
                threading.Event().wait(deadline.capped(_WATCH_AGAIN_SECONDS))
            if deadline.expired():
                return False


class EtcdStore(EngineStore):
    """A store on an etcd cluster.

    Args:
        url: see `EtcdEngine`.
        timeout: limit of calls without a timeout, in seconds or a timedelta.
    """

    def __init__(self, url: str, timeout: float | timedelta = DEFAULT_TIMEOUT_SECONDS) -> None:
        super().__init__(EtcdEngine(url), timeout)
