"""A proven connection to a server: frames over a blocking socket, after the handshake.

Used by the store client and by a node's session; what the frames mean is theirs.
"""

import contextlib
import hmac

import secrets
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rallypoint.deadline import Deadline
from rallypoint.errors import AuthenticationError, StoreConnectionError
from rallypoint.store import protocol as p
from rallypoint.store.connect import connect

SOFTWARE = "rallypoint-python"
READ_BYTES = 256 * 1024
_handshake = msgspec.msgpack.Decoder(p.Challenge | p.Welcome | p.Goodbye)

@dataclass(frozen=True)
class Target:
    """Where a client connects, and as whom.

    Args:
        host: name or address of the server.
        port: its TCP port.
        run: run id; it names the store and the run that this client can reach.
        token: shared secret, b"" for none; never shown.
        client: random identity of the client object, kept when it reconnects.
    """

    host: str
    port: int
    run: str
    token: bytes = field(default=b"", repr=False)
    client: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    @property
    def where(self) -> str:
        """HOST:PORT, for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

class Link:
    """Frames over one connected socket; not thread-safe but for one sender and one reader."""

    def __init__(self, sock: socket.socket, where: str) -> None:
        self.sock = sock
        self.where = where
        self.welcome = p.Welcome(0, False)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        """Send whole frames (StoreConnectionError when the connection is broken)."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise self.broken(error) from error

    def receive(self) -> list[bytes]:
        """Return the bodies that have come, at least one unless the read timed out ([])."""
        bodies: list[bytes] = []
        while not bodies:
            try:
                data = self.sock.recv(READ_BYTES)
            except (BlockingIOError, TimeoutError):
                return []
            except OSError as error:
                raise self.broken(error) from error
            if not data:
                raise StoreConnectionError(f"the server at {self.where} closed the connection")
            bodies = self._split(data)
        return bodies

    def _split(self, data: bytes) -> list[bytes]:
        if self._buffer:
            data = self._buffer + data
        size = len(data)
        if size >= 4 and int.from_bytes(data[:4], "big") == size - 4:  # one whole frame: usual
            self._buffer = b""
            return [data[4:]]
        bodies, start = [], 0
        while size - start >= 4:
            length = int.from_bytes(data[start : start + 4], "big")
            if length > p.FRAME_LIMIT:
                raise StoreConnectionError(
                    f"what listens at {self.where} sent a frame of {length} bytes (limit "
                    f"{p.FRAME_LIMIT}): it is not a Rallypoint server"
                )
            end = start + 4 + length
            if end > size:
                break
            bodies.append(data[start + 4 : end])
            start = end
        self._buffer = data[start:]
        return bodies

    def broken(self, error: OSError) -> StoreConnectionError:
        """Return the error for a connection that broke."""
        return StoreConnectionError(
            f"the connection to {self.where} broke: {error.strerror or error}"
        )

    def read_timeout(self, seconds: float) -> None:
        """Let the kernel end a read after so long; cheaper than a poll before each read."""
        whole = int(seconds)
        value = struct.pack("ll", whole, int((seconds - whole) * 1_000_000))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def interrupt(self) -> None:
        """End the connection; a reader blocked in it returns at once."""
        with contextlib.suppress(OSError):  # not connected any more: that is what was wanted
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and free the socket."""
        self.interrupt()
        self.sock.close()

def open_link(target: Target, deadline: Deadline, *, once: bool = False) -> Link:
    """Connect and prove to each other that both sides know the token.

    Raises StoreConnectionError (see `connect`; also version and protocol), AuthenticationError.
    """
    link = Link(connect(target.host, target.port, deadline, once=once), target.where)
    try:
        link.sock.settimeout(max(0.05, deadline.capped(10.0)))
        _shake_hands(link, target)
        link.sock.settimeout(None)
    except BaseException:
        link.close()
        raise
    return link

def _shake_hands(link: Link, target: Target) -> None:
    nonce = secrets.token_bytes(p.NONCE_BYTES)
    hello = p.Hello(p.PROTOCOL_VERSION, target.run, target.client, nonce, SOFTWARE)
    link.send(p.frame(hello))
    challenge = _expect(link, p.Challenge)
    wanted = p.proof(target.token, b"server", hello, challenge.nonce) if target.token else b""
    if not hmac.compare_digest(wanted, challenge.proof):
        raise AuthenticationError(_server_unproven(target, challenge))
    mine = p.proof(target.token, b"client", hello, challenge.nonce) if target.token else b""
    link.send(p.frame(p.Proof(mine)))
    link.welcome = _expect(link, p.Welcome)

def _server_unproven(target: Target, challenge: p.Challenge) -> str:
    if not target.token:
        return (
            f"the server at {target.where} asks for a token and this client has none; set "
            "RALLYPOINT_TOKEN or pass token_file with the server's secret"
        )
    if not challenge.proof:
        return (
            f"the server at {target.where} was started without a token, but this client has "
            "one; start the server with the same token, or unset RALLYPOINT_TOKEN here"
        )
    return (
        f"the server at {target.where} does not know this client's token; give both the same "
        "(RALLYPOINT_TOKEN, token_file), or check that the endpoint is the right one"
    )

def _expect(link: Link, kind: type[Any]) -> Any:
    try:
        bodies = link.receive()
    except StoreConnectionError as error:
        raise StoreConnectionError(
            f"what listens at {link.where} did not answer as a Rallypoint server: {error}"
        ) from error
    if not bodies:
        raise StoreConnectionError(
            f"what listens at {link.where} accepted the connection and said nothing: it is not "
            "a Rallypoint server, or it is stopped"
        )
    try:
        body = _handshake.decode(bodies[0])
    except msgspec.DecodeError as error:
        raise StoreConnectionError(
            f"what listens at {link.where} is not a Rallypoint server: {error}"
        ) from error
    if isinstance(body, p.Goodbye):
        raise goodbye_error(link.where, body)
    if not isinstance(body, kind) or len(bodies) > 1:
        raise StoreConnectionError(f"the server at {link.where} broke the handshake: {body!r}")
    return body

def goodbye_error(where: str, body: p.Goodbye) -> StoreConnectionError:
    """Return the error for a server that ended the connection with a reason."""
    kind = AuthenticationError if body.code == p.GOODBYE_TOKEN else StoreConnectionError
    return kind(f"the server at {where} closed the connection: {body.reason}")
