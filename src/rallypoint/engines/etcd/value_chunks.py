"""Values in etcd: whole, or a pointer to chunks.

By default etcd takes requests of 1.5 MiB (--max-request-bytes). A value that does not fit is
written in chunks beforehand, under a new name and a lease; the commit then writes a pointer to
them and removes them from the lease, in one step. The chunks of a client that dies in between
expire with the lease. The commit that replaces a pointer deletes its chunks.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from rallypoint.deadline import Deadline
from rallypoint.engines.etcd import messages as m
from rallypoint.engines.etcd.gateway import Gateway
from rallypoint.errors import StoreValueError

CHUNK_BYTES = 1 << 20
INLINE_BYTES = 768 << 10  # of all values of a request; the rest is for keys and conditions
UPLOAD_SECONDS = 300
_WHOLE, _PARTS = b"\0", b"\1"
_OUTLINE = 4096  # smaller values are never split


@dataclass
class Upload:
    """What a commit writes instead of its values.

    Args:
        values: by key what is stored in etcd.
        names: by key the name of its chunks.
        ops: remove the chunks from their lease.
        lease: of the chunks, 0 without chunks.
    """

    values: dict[str, bytes]
    names: dict[str, str] = field(default_factory=dict)
    ops: list[m.Op] = field(default_factory=list)
    lease: int = 0


class ValueChunks:
    """Splits large values into chunks and joins them again.

    Args:
        gateway: of the cluster.
        base: prefix of the keys of all chunks.
    """

    def __init__(self, gateway: Gateway, base: bytes) -> None:
        self._gateway = gateway
        self._base = base

    def upload(self, changes: Mapping[str, bytes | None], deadline: Deadline) -> Upload:
        """Write the chunks of values that are too large for one request."""
        values = {key: value for key, value in changes.items() if value is not None}
        upload = Upload({key: _WHOLE + value for key, value in values.items()})
        total = sum(map(len, values.values()))
        for key in sorted(values, key=lambda key: len(values[key]), reverse=True):
            if total <= INLINE_BYTES or len(values[key]) < _OUTLINE:
                break
            total -= len(values[key])
            self._split(key, values[key], upload, deadline)
        return upload

    def _split(self, key: str, value: bytes, upload: Upload, deadline: Deadline) -> None:
        if not upload.lease:
            body = {"TTL": UPLOAD_SECONDS}
            upload.lease = self._gateway.call("/lease/grant", body, m.Lease, deadline).ID
        name = upload.names[key] = uuid.uuid4().hex
        for number, at in enumerate(range(0, len(value), CHUNK_BYTES)):
            part = self._key(name) + b"%06d" % number
            body = m.put(part, value[at : at + CHUNK_BYTES], upload.lease)["request_put"]
            self._gateway.call("/kv/put", body, m.Nothing, deadline)
            upload.ops.append(m.keep(part))
        upload.values[key] = _PARTS + name.encode()

    def abandon(self, upload: Upload, deadline: Deadline) -> None:
        """Delete the chunks of a commit that was refused."""
        if upload.lease:
            self._gateway.call("/lease/revoke", {"ID": str(upload.lease)}, m.Nothing, deadline)

    def drop(self, name: str) -> m.Op:
        """Return the operation that deletes the chunks of that name."""
        key = self._key(name)
        return m.delete(key, m.end_of(key))

    def name_in(self, raw: bytes, key: bytes) -> str:
        """Return the name of the chunks that a stored value points to, "" if it is whole.

        Raises StoreValueError for a value that another program has written.
        """
        if raw[:1] not in (_WHOLE, _PARTS):
            raise StoreValueError(
                f"{self._gateway.address}: {key.decode('utf-8', 'replace')} holds a value of "
                f"{len(raw)} bytes that is not Rallypoint's; does something else write under this "
                "prefix?"
            )
        return raw[1:].decode() if raw[:1] == _PARTS else ""

    def fetch(self, key: bytes, found: m.KeyValue, deadline: Deadline) -> bytes | None:
        """Return the value of a pointer, None if that was replaced since it was read."""
        base = self._key(self.name_in(found.value, key))
        body = {
            "compare": [m.unchanged(key, found.mod_revision)],
            "success": [m.get(base, m.end_of(base))],
        }
        answer = self._gateway.call("/kv/txn", body, m.Txn, deadline)
        return b"".join(kv.value for kv in answer.found()) if answer.succeeded else None

    def _key(self, name: str) -> bytes:
        return self._base + name.encode() + b"/"
