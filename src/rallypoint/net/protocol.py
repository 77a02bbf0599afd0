"""The wire format, and the typed requests of all stores. PURE.

A frame is a 4-byte big-endian length and a msgpack body. A body is an array: first the tag of
its class below, then the fields in their order. One typed decode (msgspec) checks shape, types
and tag, and rejects what does not fit. Keys are UTF-8 text, values are bytes, durations are
seconds.

A connection begins with the handshake, in small frames (`HANDSHAKE_FRAME_LIMIT`):

    client                                server
    Hello(version, run, nonce, ...)  ->
                                     <-   Challenge(version, nonce, proof)   proof over both nonces
    Proof(proof)                     ->
                                     <-   Welcome(epoch, resumed)        or Goodbye(code, reason)

A client without a token sends its (empty) proof along with the hello.

The Hello names the token by its key id (`tokens.key_id`). Each side's proof is
HMAC-SHA256(token, role | client nonce | server nonce | client | run | key id | binding). The two
sides have different roles, so neither a replay nor a reflection answers a challenge. With TLS
the binding is the hash of the server's certificate (RFC 5929, tls-server-end-point), so a
machine in the middle cannot forward proofs.

After Welcome the client sends `Call(id, request)` and rendezvous messages
(`rallypoint.rendezvous.wire`), the server `Reply(id, result)` or `Failure(id, code, text)`.
"""

import hmac
import struct
from typing import Any

import msgspec

PROTOCOL_VERSION = 1
DEFAULT_PORT = 29400  # torchrun's default rendezvous port
HANDSHAKE_FRAME_LIMIT = 4 * 1024  # bytes
FRAME_LIMIT = 128 * 1024 * 1024  # bytes
KEY_LIMIT = 4 * 1024  # bytes
RUN_LIMIT = 256  # characters
NONCE_BYTES = 16
HEADER = struct.Struct(">I")


class _Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all wire bodies: immutable, encoded as an array."""


# -- store requests -----------------------------------------------------------------------
# `timeout` is how long the store lets a request wait, in seconds; 0: it does not wait. A wait
# that reaches it fails with FAIL_TIMEOUT. The docstrings name what a request does, and after
# "Result" what its Reply carries.


class Set(_Body, frozen=True, tag=1):
    """Write a value. Result: None."""

    key: str
    value: bytes


class Get(_Body, frozen=True, tag=2):
    """Wait for a key. Result: its value, bytes."""

    key: str
    timeout: float


class Peek(_Body, frozen=True, tag=3):
    """Read a key. Result: bytes, or None without the key."""

    key: str


class Add(_Body, frozen=True, tag=4):
    """Add to a decimal number, 0 without the key. Result: the sum, a 64-bit int."""

    key: str
    amount: int


class CompareSet(_Body, frozen=True, tag=5):
    """Write `desired` if the value is `expected`, or if the key is missing and that is empty.

    Result: the value afterwards; None: the key is missing and `expected` is not empty.
    """

    key: str
    expected: bytes
    desired: bytes


class CompareSwap(_Body, frozen=True, tag=6):
    """Write `desired` if the value is `expected`; None expects no key.

    Result: [written (bool), the value afterwards (bytes or None)].
    """

    key: str
    expected: bytes | None
    desired: bytes


class Check(_Body, frozen=True, tag=7):
    """Look for keys. Result: bool, whether all exist."""

    keys: list[str]


class Wait(_Body, frozen=True, tag=8):
    """Wait for all keys. Result: None."""

    keys: list[str]
    timeout: float


class Delete(_Body, frozen=True, tag=9):
    """Delete a key. Result: bool, whether it existed."""

    key: str


class NumKeys(_Body, frozen=True, tag=10):
    """Count the keys that begin with `prefix`. Result: int."""

    prefix: str


class List(_Body, frozen=True, tag=11):
    """List the keys that begin with `prefix`. Result: list of str, sorted."""

    prefix: str


class MultiGet(_Body, frozen=True, tag=12):
    """Wait for all keys. Result: list of their values, in the order of `keys`."""

    keys: list[str]
    timeout: float


class MultiSet(_Body, frozen=True, tag=13):
    """Write all pairs of key and value in one step. Result: None."""

    pairs: list[tuple[str, bytes]]


class Append(_Body, frozen=True, tag=14):
    """Append to a value, empty without the key. Result: None."""

    key: str
    value: bytes


class QueuePush(_Body, frozen=True, tag=15):
    """Append a value to a queue. Result: None."""

    key: str
    value: bytes


class QueuePop(_Body, frozen=True, tag=16):
    """Wait for a value of a queue and remove the first one. Result: bytes."""

    key: str
    timeout: float


class QueueLen(_Body, frozen=True, tag=17):
    """Count the values of a queue. Result: int."""

    key: str


class Watch(_Body, frozen=True, tag=18):
    """Wait for a version of the key above `since`. Result: [version (int), bytes or None]."""

    key: str
    since: int
    timeout: float


class Gather(_Body, frozen=True, tag=19):
    """Wait until `size` members have called it: a barrier, all-gather or broadcast.

    Result: None, or with `collect` the values in rank order; with `only_first` only rank 0's.

    `name`: of the group, after "b:" (barrier), "g:" (all-gather) or "c:" (broadcast).
    `rank`: of this member, 0 to size - 1; None: members are only counted.
    """

    name: str
    size: int
    rank: int | None
    value: bytes
    collect: bool
    timeout: float
    only_first: bool = False


PlainRequest = (
    Set | Peek | Add | CompareSet | CompareSwap | Check | Delete | NumKeys | List | MultiSet
    | Append | QueuePush | QueueLen
)  # fmt: skip
WaitingRequest = Get | Wait | MultiGet | QueuePop | Watch | Gather


class Pipeline(_Body, frozen=True, tag=20):
    """Carry out requests in order, as one step. Result: list of their results."""

    requests: list[PlainRequest]


StoreRequest = PlainRequest | WaitingRequest | Pipeline
REPEATABLE = (Peek, Get, Check, Wait, NumKeys, List, MultiGet, QueueLen, Watch)
"""Requests without an effect, which may be carried out any number of times."""

# -- handshake ----------------------------------------------------------------------------


class Hello(_Body, frozen=True, tag=100):
    """First frame of a client.

    `version`: `PROTOCOL_VERSION`. `run`: run id, at most `RUN_LIMIT` characters.
    `client`: random bytes of the client object, the same after a reconnect.
    `nonce`: `NONCE_BYTES` random bytes, new each time. `software`: name and version, for logs.
    `key`: key id of the token that the client will prove, empty for none; with `worker`, of the
    token from which its worker token for this run is derived.
    """

    version: int
    run: str
    client: bytes
    nonce: bytes
    software: str
    key: bytes = b""
    worker: bool = False


class Challenge(_Body, frozen=True, tag=101):
    """The server's version, nonce and proof (empty when the server needs no token)."""

    version: int
    nonce: bytes
    proof: bytes


class Proof(_Body, frozen=True, tag=102):
    """The client's proof (empty when the client has no token)."""

    proof: bytes


class Welcome(_Body, frozen=True, tag=103):
    """The handshake is done.

    `epoch`: names this start of the server; grows with each start.
    `resumed`: the server still has the results of this client's last calls.
    `record`, `since`: number of the server's record of this client, and epoch of the server that
    made the record. If the pair differs from that of the client's last handshake, the results
    were dropped in between. The epoch alone does not tell: a server that restarts from its
    journal has the records of its predecessor.
    """

    epoch: int
    resumed: bool
    record: int = 0
    since: int = 0


class Goodbye(_Body, frozen=True, tag=104):
    """The server closes the connection.

    `code`: one of `GOODBYE_*`. `reason`: for people. `leader`: HOST:PORT of the leader, sent by
    a standby server that knows it; else empty.
    """

    code: str
    reason: str
    leader: str = ""


# -- calls --------------------------------------------------------------------------------


class Call(_Body, frozen=True, tag=110):
    """A store request.

    `id`: grows with each call of a client; a call that is sent again keeps it.
    `low`: all calls below it have been answered; the server drops their results.
    `acked`: answered calls above `low`, so that one long wait does not keep all later results.
    """

    id: int
    low: int
    request: StoreRequest
    acked: tuple[int, ...] = ()


class Reply(_Body, frozen=True, tag=111):
    """The result of call `id`."""

    id: int
    result: Any


class Bye(_Body, frozen=True, tag=113):
    """The client will not return: the server may drop what it keeps for it."""


class Beat(_Body, frozen=True, tag=121):
    """A heartbeat: a client sends it, and the server answers with the same."""


class Failure(_Body, frozen=True, tag=112):
    """Call `id` failed. `code`: one of `FAIL_*`. `text`: for people."""

    id: int
    code: str
    text: str


GOODBYE_VERSION = "version"
GOODBYE_TOKEN = "token"  # noqa: S105 - the name of a reason, not a secret
GOODBYE_PROTOCOL = "protocol"
GOODBYE_LIMIT = "limit"
GOODBYE_BUSY = "busy"
GOODBYE_SHUTDOWN = "shutdown"
GOODBYE_STANDBY = "standby"

FAIL_TIMEOUT = "timeout"
FAIL_VALUE = "value"
FAIL_FAULT = "fault"
FAIL_LIMIT = "limit"
FAIL_DENIED = "denied"

TLS_ALERT = b"\x15\x03"
_FIRST_BYTES = (
    (b"HTTP/", "an HTTP server"),
    (b"SSH-", "an SSH server"),
    (TLS_ALERT, "a server that speaks TLS"),
    (b"\x16\x03", "a server that speaks TLS"),
    (b"-ERR", "a Redis server"),
    (b"\x00\x00\x12\x04", "a gRPC (HTTP/2) server, such as etcd"),
)

_encode, _header = msgspec.msgpack.Encoder().encode, HEADER.pack


def within(request: StoreRequest, seconds: float) -> StoreRequest:
    """Return the request with a timeout of `seconds`; one that never waits is unchanged."""
    if isinstance(request, WaitingRequest):
        return msgspec.structs.replace(request, timeout=seconds)
    return request


def frame(body: msgspec.Struct) -> bytes:
    """Return a body as one frame: length and msgpack."""
    data = _encode(body)
    return _header(len(data)) + data


def encoded(result: Any) -> msgspec.Raw:
    """Return an encoded result, for many replies."""
    return msgspec.Raw(_encode(result))


def run_problem(run: str, limit: int = RUN_LIMIT) -> str:
    """Return what is wrong with a run id, "" if nothing is."""
    if len(run) > limit:
        return f"a run id of {len(run)} characters is above the limit of {limit}"
    if not run.isprintable():
        return f"the run id {run!r} has control characters"
    return ""


def proof(
    token: bytes, role: bytes, hello: Hello, server_nonce: bytes, binding: bytes = b""
) -> bytes:
    """Return one side's proof that it knows the token.

    Args:
        token: the secret.
        role: b"client" or b"server".
        hello: as the client sent it.
        server_nonce: of the Challenge.
        binding: of the TLS connection, b"" without TLS.
    """
    run = hello.run.encode("utf-8")
    key = hello.key + (b"worker" if hello.worker else b"")
    parts = (b"rallypoint/1", role, hello.nonce, server_nonce, hello.client, run, key, binding)
    message = b"".join(HEADER.pack(len(part)) + part for part in parts)
    return hmac.digest(token, message, "sha256")


def who_speaks(head: bytes) -> str:
    """Return what kind of server sent these first bytes, "" if that is not known."""
    return next((name for start, name in _FIRST_BYTES if head.startswith(start)), "")


def speaks_tls(head: bytes) -> bool:
    """Return whether the first bytes are those of TLS: an alert, or a handshake."""
    return "TLS" in who_speaks(head)
