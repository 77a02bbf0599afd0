"""The wire format, and the typed requests that all stores share. PURE.

A frame is a 4-byte big-endian length and a msgpack body. Every body is an array whose
first element is the tag of its class below, so one typed decode checks shape, types and
tag at once (msgspec); what does not fit is refused before any code of ours looks at it.

A connection begins with the handshake, small frames only (`HANDSHAKE_FRAME_LIMIT`):

    client                                server
    Hello(version, run, nonce, ...)  ->
                                     <-   Challenge(version, nonce, proof)   proof over both nonces
    Proof(proof)                     ->
                                     <-   Welcome(epoch, resumed)        or Goodbye(code, reason)

A client that has no token to prove sends its (empty) proof along with the hello.

The Hello names the token by its key id (`keyring.key_id`). Each side's proof is
HMAC-SHA256(token, role | client nonce | server nonce | client | run | key id | binding), with
another role for each side, so neither a replay nor a reflection answers a challenge. The
binding is the hash of the server's certificate where TLS is on (RFC 5929,
tls-server-end-point), so that nobody in between can pass proofs on.
After Welcome the client sends `Call(id, request)` and rendezvous messages
(`rallypoint.rendezvous.wire`), the server `Reply(id, result)` or `Failure(id, code, text)`.
"""

import hmac
import struct
from typing import Any

import msgspec

PROTOCOL_VERSION = 1
DEFAULT_PORT = 29400  # torchrun's default rendezvous port
HANDSHAKE_FRAME_LIMIT = 4 * 1024
FRAME_LIMIT = 128 * 1024 * 1024
KEY_LIMIT = 4 * 1024
RUN_LIMIT = 256  # characters
NONCE_BYTES = 16
HEADER = struct.Struct(">I")


class _Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all wire bodies: immutable, encoded as an array."""


# -- store requests -----------------------------------------------------------------------
# A request that may wait has `timeout`: seconds, 0 for "do not wait", judged by the store.


class Set(_Body, frozen=True, tag=1):
    """-> None."""

    key: str
    value: bytes


class Get(_Body, frozen=True, tag=2):
    """-> bytes; waits for the key."""

    key: str
    timeout: float


class Peek(_Body, frozen=True, tag=3):
    """-> bytes or None."""

    key: str


class Add(_Body, frozen=True, tag=4):
    """-> int."""

    key: str
    amount: int


class CompareSet(_Body, frozen=True, tag=5):
    """-> bytes that stand afterwards, or None: no key and something was expected."""

    key: str
    expected: bytes
    desired: bytes


class CompareSwap(_Body, frozen=True, tag=6):
    """-> [swapped, bytes or None]; expected None means "no key"."""

    key: str
    expected: bytes | None
    desired: bytes


class Check(_Body, frozen=True, tag=7):
    """-> bool: all are there."""

    keys: list[str]


class Wait(_Body, frozen=True, tag=8):
    """-> None; waits for all keys."""

    keys: list[str]
    timeout: float


class Delete(_Body, frozen=True, tag=9):
    """-> bool: it was there."""

    key: str


class NumKeys(_Body, frozen=True, tag=10):
    """-> int: keys that begin with `prefix`."""

    prefix: str


class List(_Body, frozen=True, tag=11):
    """-> sorted list of keys that begin with `prefix`."""

    prefix: str


class MultiGet(_Body, frozen=True, tag=12):
    """-> list of bytes; waits for all keys."""

    keys: list[str]
    timeout: float


class MultiSet(_Body, frozen=True, tag=13):
    """-> None."""

    pairs: list[tuple[str, bytes]]


class Append(_Body, frozen=True, tag=14):
    """-> None."""

    key: str
    value: bytes


class QueuePush(_Body, frozen=True, tag=15):
    """-> None."""

    key: str
    value: bytes


class QueuePop(_Body, frozen=True, tag=16):
    """-> bytes; waits for a value."""

    key: str
    timeout: float


class QueueLen(_Body, frozen=True, tag=17):
    """-> int."""

    key: str


class Watch(_Body, frozen=True, tag=18):
    """-> [version, bytes or None]; waits for a version above `since`."""

    key: str
    since: int
    timeout: float


class Gather(_Body, frozen=True, tag=19):
    """-> values in rank order (`collect`), or None; waits until `size` members have come.

    `rank` None counts members only. With `only_first`, the answer is rank 0's value alone.
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
    """-> one result a request, in order; nothing of others comes in between."""

    requests: list[PlainRequest]


StoreRequest = PlainRequest | WaitingRequest | Pipeline
REPEATABLE = (Peek, Get, Check, Wait, NumKeys, List, MultiGet, QueueLen, Watch)
"""Requests without an effect: they may be carried out any number of times."""

# -- handshake ----------------------------------------------------------------------------


class Hello(_Body, frozen=True, tag=100):
    """First frame of a client. `client` is random for each client object, kept on reconnect.

    `key` names the token that it will prove, empty for none; with `worker`, the one that is
    derived from it for this run's workers.
    """

    version: int
    run: str
    client: bytes
    nonce: bytes
    software: str
    key: bytes = b""
    worker: bool = False


class Challenge(_Body, frozen=True, tag=101):
    """The server's nonce and its proof (empty when the server asks for no token)."""

    version: int
    nonce: bytes
    proof: bytes


class Proof(_Body, frozen=True, tag=102):
    """The client's proof (empty when the client has no token)."""

    proof: bytes


class Welcome(_Body, frozen=True, tag=103):
    """The handshake is done. `resumed`: the server still knows this client's last calls.

    `record` numbers what it knows of them, among what the server of epoch `since` has come to
    know: another pair than at the client's last handshake means that they were forgotten, and
    that an answer which said so was lost. The epoch alone means no such thing: a server that
    was started again from its journal knows what the one before it knew.
    """

    epoch: int
    resumed: bool
    record: int = 0
    since: int = 0


class Goodbye(_Body, frozen=True, tag=104):
    """The server closes the connection, and says why. Code: see `GOODBYE_*`.

    `leader`: HOST:PORT of the server that leads, of one that stands by and knows it.
    """

    code: str
    reason: str
    leader: str = ""


# -- calls --------------------------------------------------------------------------------


class Call(_Body, frozen=True, tag=110):
    """A store request; `id` grows with each call of a client and is kept when sent again.

    Calls below `low` have been answered to the client: the server forgets their results.
    `acked` are answered calls above it, since one long wait must not hold back all others.
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
    """The client will not come back: what is kept for it may be forgotten."""


class Beat(_Body, frozen=True, tag=121):
    """A sign of life: asked for by a client, and answered with the same."""


class Failure(_Body, frozen=True, tag=112):
    """Call `id` failed: code is one of `FAIL_*`, text is for people."""

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
    """Return a request that waits at most so long; one that does not wait as it is."""
    if isinstance(request, WaitingRequest):
        return msgspec.structs.replace(request, timeout=seconds)
    return request


def frame(body: msgspec.Struct) -> bytes:
    """Return a body as one frame: length and msgpack."""
    data = _encode(body)
    return _header(len(data)) + data


def encoded(result: Any) -> msgspec.Raw:
    """Return a result that many replies carry, encoded."""
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
    """Return one side's proof that it knows the token (role: b"client" or b"server").

    `binding` ties it to the TLS connection that carries it, b"" without TLS.
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
