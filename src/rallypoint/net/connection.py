"""A client's connection to a server: its configuration, and frames over a blocking socket.

The store client and a node's session use it, and give the frames their meaning.
"""

import contextlib
import errno
import logging
import secrets
import select
import selectors
import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rallypoint.deadline import Deadline
from rallypoint.errors import AuthenticationError, StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.dialer import (
    FIRST_PAUSE_SECONDS,
    NOTICE_SECONDS,
    UnreachedError,
    connect,
    explain_failure,
    kernel_limit,
    resolved_to,
    wait_before_next,
    what_was_seen,
)
from rallypoint.net.endpoints import Endpoint, ServerList, join_endpoint
from rallypoint.net.handshake import (
    ADVICE,
    ClientHandshake,
    NotOurProtocolError,
    StandbyError,
    UnknownTokenError,
)
from rallypoint.net.protocol import speaks_tls, who_speaks
from rallypoint.net.tls import NO_TLS, TLS
from rallypoint.net.token_sources import current
from rallypoint.net.tokens import Key, for_run, parse

if TYPE_CHECKING:
    from rallypoint.net.tls_socket import TLSSocket

logger = logging.getLogger("rallypoint")

READ_BYTES = 64 * 1024
NOTICE_LEAST_SECONDS = 5.0  # with less time left, the error that follows says it all
HANDSHAKE_SECONDS = 10.0
HANDSHAKE_OF_SEVERAL_SECONDS = 3.0  # then the next server is asked: this one may be stopped
_header = p.HEADER.unpack_from


@dataclass(frozen=True)
class ConnectionConfig:
    """The configuration of a client's connection.

    Args:
        host: name or address of the server, the first one of several.
        port: its TCP port.
        run: run id; it names the store and the run that this client can reach.
        token: secrets, one a line (see tokens.py), b"" for none; never shown.
        client: random identity of the client object, kept when it reconnects.
        tls: files for TLS; none: plain TCP.
        servers: all servers, and the last leader; shared with the clients that `another` makes.
    """

    host: str
    port: int
    run: str
    token: bytes = field(default=b"", repr=False)
    client: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    tls: TLS = NO_TLS
    servers: ServerList = field(default_factory=lambda: ServerList(()), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.servers.endpoints:
            object.__setattr__(self, "servers", ServerList(((self.host, self.port),)))

    @classmethod
    def at(
        cls, endpoints: tuple[Endpoint, ...], run: str, token: bytes = b"", tls: TLS = NO_TLS
    ) -> "ConnectionConfig":
        """Return the configuration for one server, or for several of which one leads."""
        host, port = endpoints[0]
        return cls(host, port, run, token, tls=tls, servers=ServerList(endpoints))

    @property
    def where(self) -> str:
        """HOST:PORT, or several with commas, for people."""
        return ",".join(join_endpoint(*endpoint) for endpoint in self.servers.endpoints)

    def another(self) -> "ConnectionConfig":
        """Return the same for another client object."""
        return replace(self, client=secrets.token_bytes(16))


class ClientConnection:
    """Frames over one connected socket; not thread-safe but for one sender and one reader."""

    def __init__(self, sock: "socket.socket | TLSSocket", where: str, binding: bytes = b"") -> None:
        self.sock = sock
        self.where = where
        self.endpoint: Endpoint | None = None  # of the server, if there was a choice
        self.binding = binding
        self.welcome = p.Welcome(0, False)
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Send whole frames (StoreConnectionError when the connection is broken)."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise self.broken(error) from error

    def send_reading(self, frames: list[bytes], deadline: Deadline) -> list[bytes]:
        """Send frames and read at the same time; return the bodies that have come.

        A server takes no requests from a client that leaves its answers unread, so a client
        with much to send must read meanwhile.

        Raises:
            StoreConnectionError: the connection broke, or the frames were not sent in time.
            NotOurProtocolError: what came is not of a Rallypoint server.
        """
        bodies: list[bytes] = []
        view = memoryview(b"".join(frames))
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while view:
                for _, events in selector.select(deadline.capped(1.0)):
                    try:
                        if events & selectors.EVENT_READ:
                            bodies += self.receive_some()
                        if events & selectors.EVENT_WRITE:
                            view = view[self.sock.send(view, socket.MSG_DONTWAIT) :]
                    except BlockingIOError:
                        continue
                    except StoreConnectionError:
                        raise
                    except OSError as error:
                        raise self.broken(error) from error
                if view and deadline.expired():
                    raise self.broken(TimeoutError(errno.ETIMEDOUT, "requests are not taken"))
        return bodies

    def receive(self) -> list[bytes]:
        """Return the bodies that have come, at least one; [] if the read timed out.

        Raises:
            StoreConnectionError: the connection broke, or the server closed it.
            NotOurProtocolError: what came is not of a Rallypoint server.
        """
        while True:
            data = self._read_in_time()
            if data is None:
                return []
            if not self._buffer and len(data) >= 4 and _header(data)[0] == len(data) - 4:
                return [data[4:]]  # usual: one whole frame
            if bodies := self._split(data):
                return bodies

    def takes_more(self) -> bool:
        """Return whether a small frame can be sent without waiting."""
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        return any(events & select.POLLOUT for _, events in poll.poll(0))

    def receive_some(self) -> list[bytes]:
        """Read what is there without waiting; return the bodies that are whole now.

        Raises as `receive`.
        """
        data = self._read_in_time(socket.MSG_DONTWAIT)
        return [] if data is None else self._split(data)

    def _read_in_time(self, flags: int = 0) -> bytes | None:
        try:
            data = self.sock.recv(READ_BYTES, flags)
        except (BlockingIOError, TimeoutError):
            return None
        except StoreConnectionError:
            raise
        except OSError as error:
            raise self.broken(error) from error
        if not data:
            raise StoreConnectionError(f"the server at {self.where} closed the connection")
        return data

    def _split(self, data: bytes) -> list[bytes]:
        """Return the bodies that are whole now, and keep a partial one.

        A long frame comes in many pieces, and is copied only once it is whole.
        """
        buffer = self._buffer
        bodies: list[bytes] = []
        start = 0
        view: bytes | bytearray = data
        if buffer:
            buffer += data
            view = buffer
        size = len(view)
        while size - start >= 4:
            end = start + 4 + _header(view, start)[0]
            if end > size:
                self._check_length(view, start)
                break
            bodies.append(bytes(view[start + 4 : end]))
            start = end
        if view is buffer:
            del buffer[:start]
        elif start < size:
            self._buffer += view[start:]
        return bodies

    def _check_length(self, view: bytes | bytearray, start: int) -> None:
        length = _header(view, start)[0]
        if length <= p.FRAME_LIMIT:
            return
        head = bytes(view[start : start + 8])
        if speaks_tls(head):
            raise NotOurProtocolError(
                f"the server at {self.where} speaks TLS and this client does not: give the "
                "authority of its certificate (RALLYPOINT_TLS_CA, tls_ca)"
            )
        who = (
            who_speaks(head)
            or f"it sent {head!r}, a frame of {length} bytes (limit: {p.FRAME_LIMIT})"
        )
        raise NotOurProtocolError(
            f"what listens at {self.where} is not a Rallypoint server: {who}; {ADVICE}"
        )

    def broken(self, error: OSError) -> StoreConnectionError:
        """Return the error for a connection that broke."""
        return StoreConnectionError(
            f"the connection to {self.where} broke: {error.strerror or error}"
        )

    def read_timeout(self, seconds: float) -> None:
        """Let the kernel end each read after `seconds` (0: never); cheaper than a poll first."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, kernel_limit(seconds))

    def interrupt(self) -> None:
        """End the connection; a blocked reader returns at once."""
        with contextlib.suppress(OSError):  # it is not connected any more
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and free the socket."""
        self.interrupt()
        self.sock.close()

    def abandon(self) -> None:
        """Close only this process's copy of the socket after a fork; the parent keeps its own."""
        self.sock.close()


def open_connection(
    target: ConnectionConfig, deadline: Deadline, *, once: bool = False
) -> ClientConnection:
    """Connect and prove to each other that both sides know the token.

    The caller sets how long a read may take (`read_timeout`).

    Of several servers it connects to the one that leads. It retries after a refused or broken
    connection and after a server that says nothing (stopped, or a proxy without a server behind
    it), but not when another program answers.

    Args:
        target: which servers, and as whom.
        deadline: until when to try.
        once: give up after the first failed attempt (each server once).

    Raises StoreConnectionError (it names what was tried, at which addresses and for how long,
    what was seen, and what to do), AuthenticationError.
    """
    pause, noticed = FIRST_PAUSE_SECONDS, False
    while True:
        try:
            return _ask_all(target, deadline)
        except (AuthenticationError, NotOurProtocolError):
            raise
        except StoreConnectionError as error:
            last = error
        left = deadline.remaining()
        late = deadline.elapsed() > NOTICE_SECONDS
        if late and not noticed and not once and left >= NOTICE_LEAST_SECONDS:
            noticed = True
            logger.warning("%s; trying for %.0f s more", last, left)
        if not once:
            pause = wait_before_next(pause, deadline)
        if once or deadline.expired():  # an attempt without time would tell less than the last one
            raise last


def _ask_all(target: ConnectionConfig, deadline: Deadline) -> ClientConnection:
    """Ask each server once, the last known leader first, then whom a standby names."""
    servers, said = target.servers, dict[Endpoint, StoreConnectionError]()
    left = list(servers.order())
    limit = HANDSHAKE_SECONDS if len(left) == 1 else HANDSHAKE_OF_SEVERAL_SECONDS
    while left:
        try:
            sock, endpoint = connect(left, deadline)
        except UnreachedError as error:
            said |= _unreached(error, deadline, alone=len(left) + len(said) == 1)
            break
        left.remove(endpoint)
        try:
            link = _attempt(sock, endpoint, target, Deadline(deadline.capped(limit)))
        except StoreConnectionError as error:
            said[endpoint] = error
            leader = error.leader if isinstance(error, StandbyError) else None
            if leader is not None and leader not in said:
                left = list(dict.fromkeys((leader, *left)))
        else:
            servers.found(endpoint)
            link.endpoint = endpoint
            return link
    for endpoint in said:
        servers.failed(endpoint)
    raise _nobody(said, deadline)


def _unreached(
    error: UnreachedError, deadline: Deadline, alone: bool
) -> dict[Endpoint, StoreConnectionError]:
    said: dict[Endpoint, StoreConnectionError] = {}
    for endpoint, (seen, addresses) in error.errors.items():
        text = f"{what_was_seen(seen, addresses)} ({resolved_to(addresses)})"
        if alone:
            text = explain_failure(endpoint, seen, addresses, deadline)
        said[endpoint] = StoreConnectionError(text)
        said[endpoint].__cause__ = seen
    return said


def _nobody(said: dict[Endpoint, StoreConnectionError], deadline: Deadline) -> StoreConnectionError:
    """Return the error for an attempt at all servers that found no leader."""
    errors = list(said.values())
    if len(errors) == 1:
        return errors[0]
    final = all(isinstance(e, AuthenticationError | NotOurProtocolError) for e in errors)
    kind = type(errors[0]) if final else StoreConnectionError
    each = "; ".join(f"{join_endpoint(*endpoint)}: {error}" for endpoint, error in said.items())
    text = (
        f"none of {len(said)} servers could be used after {deadline.elapsed():.1f} s: {each}. With "
        "several endpoints no node starts a server itself: start `rallypoint serve --state URL` at "
        "each"
    )
    if any(isinstance(error, StandbyError) for error in errors):
        return StandbyError(text, None)
    return kind(text)


def _attempt(
    sock: socket.socket, endpoint: Endpoint, target: ConnectionConfig, limit: Deadline
) -> ClientConnection:
    """Do the handshake, with each of our tokens until the server knows one."""
    keys: list[Key | None] = [*for_run(parse(current(target.token)), target.run)]
    if target.token and not keys:
        sock.close()
        raise AuthenticationError(_not_for(target))
    keys = keys or [None]
    while True:
        link = _secured(sock, endpoint, target, limit)
        try:
            link.read_timeout(max(0.05, limit.remaining()))
            _shake_hands(link, target, keys[0])
            return link
        except UnknownTokenError:
            link.close()
            del keys[0]
            if not keys:
                raise
            sock = _again(endpoint, limit)
        except BaseException:
            link.close()
            raise


def _shake_hands(link: ClientConnection, target: ConnectionConfig, key: Key | None) -> None:
    """Prove to each other that both sides know the token; set `link.welcome`."""
    nonce = secrets.token_bytes(p.NONCE_BYTES)
    handshake = ClientHandshake(
        link.where, target.run, target.client, nonce, key, binding=link.binding
    )
    link.send(handshake.begin())
    while handshake.welcome is None:
        if answer := handshake.receive(_received(link)):
            link.send(answer)
    link.welcome = handshake.welcome


def _received(link: ClientConnection) -> list[bytes]:
    try:
        return link.receive()
    except (NotOurProtocolError, AuthenticationError):
        raise
    except StoreConnectionError as error:
        raise StoreConnectionError(
            f"what listens at {link.where} did not answer as a Rallypoint server: {error}; {ADVICE}"
        ) from error


def _not_for(target: ConnectionConfig) -> str:
    """Return what to do when no token is for this run."""
    said = f"none of this client's tokens is for run {target.run!r}"
    names = [key.run for key in parse(current(target.token)) if key.run is not None]
    if target.run or not names:
        return said
    return f"this client's token is for run {names[0]!r} alone: give --run-id {names[0]}"


def _again(endpoint: Endpoint, limit: Deadline) -> socket.socket:
    """Connect once more, for another token."""
    try:
        return connect([endpoint], limit)[0]
    except UnreachedError as error:
        raise _unreached(error, limit, alone=True)[endpoint] from error


def _secured(
    sock: socket.socket, endpoint: Endpoint, target: ConnectionConfig, limit: Deadline
) -> ClientConnection:
    where = join_endpoint(*endpoint)
    if not target.tls.for_clients:
        return ClientConnection(sock, where)
    import ssl  # slow to import, and rarely needed

    from rallypoint.net.tls_socket import TLSSocket

    try:
        sock.settimeout(max(0.05, limit.remaining()))
        secured = TLSSocket(sock, target.tls, endpoint[0])
        sock.settimeout(None)
        return ClientConnection(secured, where, secured.binding)
    except BaseException as error:
        sock.close()
        if isinstance(error, ssl.SSLError):
            raise NotOurProtocolError(
                f"what listens at {where} does not speak TLS as this client does "
                f"({error.reason or error}): start the server with --tls-cert, or unset "
                "RALLYPOINT_TLS_CA here"
            ) from error
        if isinstance(error, OSError) and not isinstance(error, StoreConnectionError):
            raise StoreConnectionError(f"TLS with {where}: {error}") from error
        raise
