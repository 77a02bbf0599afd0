"""Asks the network one small question at a time; each has a time limit."""

import errno
import secrets
import selectors
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from rallypoint.deadline import Deadline
from rallypoint.doctor.findings import Answer, Attempt, Greeting, goodbye
from rallypoint.errors import AuthenticationError, StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.connection import ClientConnection, ConnectionConfig, open_connection
from rallypoint.net.dialer import AddressInfo, own_addresses, resolve
from rallypoint.net.handshake import (
    SOFTWARE,
    LoneTokenError,
    NotOurProtocolError,
    StandbyError,
    UnknownTokenError,
)
from rallypoint.net.protocol import TLS_ALERT
from rallypoint.net.tls import CertificateError
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.reports.status import ServerStatus

_handshake = msgspec.msgpack.Decoder(p.Challenge | p.Welcome | p.Goodbye)
_server = msgspec.msgpack.Decoder(wire.ServerBody)
PEERS_AT_ONCE = 16
_Body = TypeVar("_Body")


class ServerConnection:
    """A connection to a Rallypoint server, after the handshake."""

    def __init__(self, link: ClientConnection) -> None:
        self._link = link

    def round_trip(self) -> float:
        """Return the round-trip time of a heartbeat, in seconds."""
        begun = time.monotonic()
        self._link.send(p.frame(wire.Beat()))
        self._next(wire.Beat)
        return time.monotonic() - begun

    def server(self) -> ServerStatus | None:
        """Return the server's status."""
        self._link.send(p.frame(wire.Inquire(1, server=True)))
        answer: wire.Answer = self._next(wire.Answer)
        return answer.server

    def report(self) -> Report | None:
        """Return the report of the run."""
        self._link.send(p.frame(wire.Inquire(2)))
        answer: wire.Answer = self._next(wire.Answer)
        return answer.report

    def certificate_ends(self) -> str:
        """Return when the server's certificate expires (UTC), "" without TLS."""
        return str(getattr(self._link.sock, "certificate_ends", ""))

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _next(self, kind: type[_Body]) -> _Body:
        bodies = self._link.receive()
        if not bodies:
            raise StoreConnectionError("the server has stopped answering")
        body = _server.decode(bodies[0])
        if not isinstance(body, kind):
            raise StoreConnectionError(f"unexpected answer: {body!r}")
        return body


class Probe:
    """Asks the network; tests replace it.

    Args:
        seconds: limit of each request.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def resolve(self, host: str, port: int) -> list[AddressInfo]:
        """Return the addresses of a name. Raises OSError."""
        return resolve(host, port, Deadline(self.seconds))

    def own(self) -> list[str]:
        """Return this machine's addresses."""
        return own_addresses()

    def connect(self, info: AddressInfo) -> tuple[Attempt, socket.socket | None]:
        """Connect to one address; the socket is None if that failed."""
        family, kind, proto, _name, where = info
        begun = time.monotonic()
        try:
            sock = socket.socket(family, kind, proto)
        except OSError as error:
            return self._attempt(info, begun, error.errno or errno.EAFNOSUPPORT), None
        sock.setblocking(False)
        code = sock.connect_ex(where)
        if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
            with selectors.DefaultSelector() as selector:
                selector.register(sock, selectors.EVENT_WRITE)
                ready = selector.select(self.seconds)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ready else errno.ETIMEDOUT
        if code == 0 and sock.getsockname() == sock.getpeername():
            code = errno.ECONNREFUSED  # the socket connected to itself
        if code:
            sock.close()
            return self._attempt(info, begun, code), None
        sock.settimeout(self.seconds)
        return self._attempt(info, begun, 0), sock

    @staticmethod
    def _attempt(info: AddressInfo, begun: float, code: int) -> Attempt:
        where = info[4]
        return Attempt(str(where[0]), int(where[1]), time.monotonic() - begun, code)

    def peers(self, places: list[tuple[str, str, int]]) -> list[tuple[str, Attempt]]:
        """Try the ports of several nodes (label, address, port) in parallel."""

        def attempt(label: str, address: str, port: int) -> tuple[str, Attempt]:
            try:
                info = self.resolve(address, port)[0]
            except OSError as error:
                return label, Attempt(address, port, 0.0, error.errno or errno.EHOSTUNREACH)
            place, sock = self.connect(info)
            if sock is not None:
                sock.close()
            return label, place

        with ThreadPoolExecutor(PEERS_AT_ONCE) as pool:
            return list(pool.map(lambda row: attempt(*row), places))

    def greet(
        self, info: AddressInfo, target: ConnectionConfig
    ) -> tuple[Greeting, ServerConnection | None]:
        """Perform the handshake; the connection is None if it fails.

        First sends a bare hello, to see what listens there; then connects as every client does.
        """
        asks = False
        if not target.tls.for_clients:
            seen = self._hello(info, target)
            if seen.answer is not Answer.OURS:
                return seen, None
            asks = seen.asks_token
        try:
            link = open_connection(target, Deadline(self.seconds), once=True)
        except CertificateError as error:
            return Greeting(Answer.CERTIFICATE, str(error)), None
        except UnknownTokenError:
            return Greeting(Answer.OURS, "", b"", True, False), None
        except LoneTokenError:
            return Greeting(Answer.OURS, "", b"", not target.token, False), None
        except AuthenticationError as error:
            return Greeting(Answer.OURS, str(error), b"", asks, False), None
        except (NotOurProtocolError, StandbyError) as error:
            return Greeting(Answer.REFUSED, str(error)), None
        except StoreConnectionError as error:
            return Greeting(Answer.SILENT, str(error)), None
        link.sock.settimeout(self.seconds)
        leads = "" if link.where == target.where else f"it stands by; the leader is {link.where}"
        return Greeting(
            Answer.OURS, leads, b"", asks or bool(target.token), True
        ), ServerConnection(link)

    def _hello(self, info: AddressInfo, target: ConnectionConfig) -> Greeting:
        """Send a hello without a proof, and look at the first bytes of the answer."""
        nonce = bytes(p.NONCE_BYTES)
        hello = p.Hello(p.PROTOCOL_VERSION, target.run, secrets.token_bytes(16), nonce, SOFTWARE)
        _place, sock = self.connect(info)
        if sock is None:
            return Greeting(Answer.CLOSED)
        with sock:
            link = ClientConnection(sock, target.where)
            try:
                link.send(p.frame(hello))
                first = sock.recv(1 << 16, socket.MSG_PEEK)
            except TimeoutError:
                return Greeting(Answer.SILENT, f"for {self.seconds:g} s")
            except (OSError, StoreConnectionError):
                first = b""
            if not first:
                return self._who_hangs_up(info)
            try:
                body = _handshake.decode(link.receive()[0])
            except (msgspec.DecodeError, StoreConnectionError, IndexError):
                return Greeting(Answer.OTHER, first=first)
        if isinstance(body, p.Goodbye):
            return goodbye(body)
        if not isinstance(body, p.Challenge):
            return Greeting(Answer.OTHER, first=first)
        return Greeting(Answer.OURS, asks_token=bool(body.proof))

    def _who_hangs_up(self, info: AddressInfo) -> Greeting:
        """Return the greeting of a server that closed: it may expect TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only to look
        _place, sock = self.connect(info)
        if sock is None:
            return Greeting(Answer.CLOSED)
        with sock:
            try:
                context.wrap_socket(sock).close()
            except (OSError, ValueError):
                return Greeting(Answer.CLOSED)
        return Greeting(Answer.OTHER, first=TLS_ALERT)
