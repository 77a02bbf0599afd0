"""The requests and answers of etcd's JSON gateway that Rallypoint uses. PURE.

Requests are plain dictionaries (bytes become base64 when they are encoded); answers are decoded
into the classes here. Field names are etcd's own (`etcd/api/etcdserverpb/rpc.proto`).
"""

from typing import Any

import msgspec

Op = dict[str, Any]


class Header(msgspec.Struct):
    """Part of every answer: the revision of the whole key space."""

    revision: int = 0


class KeyValue(msgspec.Struct):
    """One entry of etcd."""

    key: bytes
    value: bytes = b""
    mod_revision: int = 0
    lease: int = 0


class Range(msgspec.Struct):
    """Entries found."""

    kvs: list[KeyValue] = []


class OpAnswer(msgspec.Struct):
    """The result of one operation of a transaction; empty for a write."""

    response_range: Range | None = None


class Txn(msgspec.Struct):
    """The result of a transaction."""

    header: Header
    succeeded: bool = False
    responses: list[OpAnswer] = []

    def found(self) -> list[KeyValue]:
        """Return the entries of all reading operations."""
        ranges = (each.response_range for each in self.responses)
        return [kv for each in ranges if each is not None for kv in each.kvs]


class Status(msgspec.Struct):
    """The state of a member; leader 0: it knows none."""

    version: str = "?"
    size: int = msgspec.field(name="dbSize", default=0)
    leader: int = 0
    errors: list[str] = []


class Lease(msgspec.Struct):
    """A lease, granted or kept alive; TTL 0 (seconds): no such lease."""

    ID: int = 0
    TTL: int = 0


class KeptAlive(msgspec.Struct):
    """The first message of a keep-alive stream."""

    result: Lease


class Nothing(msgspec.Struct):
    """An answer that is not read."""


def unchanged(key: bytes, revision: int) -> Op:
    """Return the condition that a key has this revision (0: it does not exist)."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def all_older(key: bytes, end: bytes, revision: int) -> Op:
    """Return the condition that no key of a range was written after a revision."""
    most = str(revision + 1)
    return {
        "key": key,
        "range_end": end,
        "target": "MOD",
        "result": "LESS",
        "mod_revision": most,
    }


def get(key: bytes, end: bytes = b"", revision: int = 0, keys_only: bool = False) -> Op:
    """Return the operation that reads a key, or all from it up to `end`, in order."""
    return {
        "request_range": {
            "key": key,
            "range_end": end,
            "revision": str(revision),
            "keys_only": keys_only,
        }
    }


def put(key: bytes, value: bytes, lease: int = 0) -> Op:
    """Return the operation that writes a key."""
    return {"request_put": {"key": key, "value": value, "lease": str(lease)}}


def keep(key: bytes) -> Op:
    """Return the operation that removes a key from its lease and keeps its value."""
    return {"request_put": {"key": key, "ignore_value": True}}


def delete(key: bytes, end: bytes = b"") -> Op:
    """Return the operation that deletes a key, or all from it up to `end`."""
    return {"request_delete_range": {"key": key, "range_end": end}}


def grouped(ops: list[Op], most: int) -> list[Op]:
    """Return operations as at most `most` nested transactions without conditions."""
    if len(ops) <= most:
        return ops
    size = -(-len(ops) // most)
    return [{"request_txn": {"success": ops[at : at + size]}} for at in range(0, len(ops), size)]


def end_of(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with `prefix` (not empty)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
