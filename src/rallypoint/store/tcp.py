"""The client of a server's store: many threads on one socket.

Each caller sends its own request. One waiting caller at a time reads (the leader). It passes each
answer to its caller, and when its own answer has come, it passes the lead on. So with a single
thread a call costs two system calls and no thread switch, and a thread that waits for a key
blocks no other: they send, and the leader passes them their answers.

When the connection breaks, the thread that notices it reconnects and sends the unanswered calls
again, in order and under the same ids. The server knows which ids it has carried out, so each
call takes effect exactly once. If the server no longer knows this client (it was restarted), calls
under way fail, since whether they took effect is unknown.

Sending has its own lock: a thread that is blocked in it (a long value, or a server that takes
nothing more before its answers are read) must block neither the leader nor the bookkeeping. For
the same reason only a caller that has sent all of its request can become the leader.
"""

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

import msgspec

from rallypoint.deadline import Deadline, seconds
from rallypoint.errors import (
    AuthenticationError,
    ParameterError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
    StoreTimeoutError,
    StoreValueError,
)
from rallypoint.hosting.in_process import HostedServer, start_for_store
from rallypoint.net import protocol as p
from rallypoint.net.connection import ClientConnection, ConnectionConfig, open_connection
from rallypoint.net.endpoints import server_endpoints
from rallypoint.net.handshake import NotOurProtocolError, goodbye_error
from rallypoint.net.tls import TLS, read_tls
from rallypoint.net.token_sources import read_token
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS, Store

ANSWER_MARGIN_SECONDS = 10.0  # beyond the call's own limit, for a server that is held up
BYE_SECONDS = 1.0  # how long `close` waits for a frame that is being sent
LOOK_SECONDS = 3.0  # how often a blocked leader checks its deadline and the server's heartbeat
_BEAT = p.frame(p.Beat())
_decoder = msgspec.msgpack.Decoder(p.Reply | p.Failure | p.Goodbye | p.Beat)


_ERRORS: dict[str, type[StoreError]] = {
    p.FAIL_TIMEOUT: StoreTimeoutError,
    p.FAIL_VALUE: StoreValueError,
    p.FAIL_LIMIT: StoreLimitError,
    p.FAIL_DENIED: AuthenticationError,
}


class PendingCall:
    """A call under way: its request, its waiting thread and, once received, its answer.

    Args:
        request: to the server.
        timeout: seconds that the server may take to answer; `ANSWER_MARGIN_SECONDS` are added.
    """

    __slots__ = ("_until", "answer", "id", "leads", "request", "timeout", "woken")

    def __init__(self, request: p.StoreRequest, timeout: float) -> None:
        self.id = 0
        self.request = request
        self.timeout = timeout
        self.answer: p.Reply | p.Failure | StoreConnectionError | None = None
        self.woken: threading.Lock | None = None
        self.leads = False
        self._until = monotonic() + timeout + ANSWER_MARGIN_SECONDS

    def remaining(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self._until - monotonic())

    def expired(self) -> bool:
        """Return whether no time is left."""
        return monotonic() >= self._until

    def error(self, where: str) -> StoreError:
        """Return the error of a call that failed or got no answer."""
        answer = self.answer
        if isinstance(answer, p.Failure):
            return _ERRORS.get(answer.code, StoreError)(answer.text)
        if isinstance(answer, StoreConnectionError):
            return answer
        return StoreTimeoutError(
            f"the server at {where} did not answer {type(self.request).__name__} "
            f"within timeout={self.timeout:g} s and {ANSWER_MARGIN_SECONDS:g} s more"
        )

    def in_doubt(self, where: str, error: StoreConnectionError) -> StoreConnectionError:
        """Return the error of a call of which nobody knows whether it took effect."""
        return StoreConnectionError(
            f"{error}; the server that answers at {where} now does not know this client: whether "
            f"{type(self.request).__name__} took effect is not known"
        )


class TCPStore(Store):
    """A store on a Rallypoint server.

    Args:
        host_name: the server's name or address; with `is_master`, the address to listen on.
            A list with commas ("a:29400,b:29400") names servers of which one leads.
        port: its port; with `is_master`, 0 picks one (see `port` afterwards).
        world_size: number of clients; the constructor waits for them, if `wait_for_workers`.
        is_master: start the server in this process.
        timeout: limit of connecting and of calls without a timeout: seconds or timedelta.
        run: id of the run whose store this is; "" is a store outside of all runs.
        token: shared secret; else RALLYPOINT_TOKEN_FILE or RALLYPOINT_TOKEN.
        tls: files for TLS; else RALLYPOINT_TLS_CA and so on (see tls.py).
        insecure: with `is_master`, allow listening off loopback without a token.

    Raises StoreConnectionError, AuthenticationError, ParameterError.
    """

    def __init__(
        self,
        host_name: str,
        port: int = p.DEFAULT_PORT,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: float | timedelta = DEFAULT_TIMEOUT_SECONDS,
        wait_for_workers: bool = True,
        *,
        run: str = "",
        token: str | bytes | None = None,
        tls: TLS | None = None,
        insecure: bool = False,
    ) -> None:
        secret, files = read_token(token), read_tls() if tls is None else tls
        self._timeout_seconds = seconds(timeout)
        self.server: HostedServer | None = None
        if is_master:
            self.server = start_for_store(host_name, port, secret, insecure, files)
            port = self.server.port
        if not 0 < port < 65536:
            raise ParameterError(f"port={port}: must be 1 to 65535 (0 only with is_master)")
        try:
            self._connect(
                ConnectionConfig.at(server_endpoints(host_name, port), run, secret, files)
            )
            if world_size is not None and wait_for_workers:
                self._wait_for_workers(world_size)
        except BaseException:
            self._release()
            raise

    @classmethod
    def at(
        cls, target: ConnectionConfig, timeout: float | timedelta = DEFAULT_TIMEOUT_SECONDS
    ) -> "TCPStore":
        """Return a client of the store that a configuration names."""
        store = cls.__new__(cls)
        store._timeout_seconds = seconds(timeout)
        store.server = None
        store._connect(target)
        return store

    def _release(self) -> None:
        if "_connection" in self.__dict__:
            self._connection.close()
        if self.server is not None:
            self.server.stop()

    def _connect(self, target: ConnectionConfig) -> None:
        self.target = target
        self.host, self.port = target.host, target.port
        self._pid = os.getpid()
        self._lock = threading.Lock()  # ids, calls and the lead; never held while waiting
        self._sending = threading.Lock()  # one frame at a time
        self._calls: dict[int, PendingCall] = {}
        self._acked: list[int] = []  # answered while an older call still waits
        self._last_id = 0
        self._leading = False
        self._closed = False
        self._pinged: ClientConnection | None = None  # it owes us a heartbeat
        self._connection = self._open(Deadline(self._timeout_seconds))

    def _open(self, deadline: Deadline) -> ClientConnection:
        connection = open_connection(self.target, deadline)
        connection.read_timeout(LOOK_SECONDS)
        return connection

    def _wait_for_workers(self, world_size: int) -> None:
        if self.add("rallypoint/workers", 1) >= world_size:
            self.set("rallypoint/workers-are-here", b"1")
        try:
            self.get("rallypoint/workers-are-here")
        except StoreTimeoutError as error:
            came = self.add("rallypoint/workers", 0)
            raise StoreTimeoutError(
                f"{came} of {world_size} clients have come to {self.target.where} within "
                f"timeout={self._timeout_seconds:g} s"
            ) from error

    @property
    def master_addr_port(self) -> tuple[str, int]:
        """Where the server listens: (host, port)."""
        return self.host, self.port

    def clone(self) -> "TCPStore":
        return TCPStore.at(self.target.another(), self._timeout_seconds)

    def close(self) -> None:
        """Close the connection, and stop the server if this store started it.

        Calls under way fail. After a fork only this process's copy of the connection is closed.
        """
        if self._pid != os.getpid():
            self._connection.abandon()
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._sending.acquire(timeout=BYE_SECONDS):  # not within a frame
            try:
                self._connection.send(p.frame(p.Bye()))
            except StoreConnectionError:
                pass  # the connection is gone already
            finally:
                self._sending.release()
        self._connection.close()
        if self.server is not None:
            self.server.stop()

    # -- one call -------------------------------------------------------------------------

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        if self._pid != os.getpid():
            raise self._unusable()
        call = PendingCall(request, timeout)
        with self._lock:
            if self._closed:
                raise self._unusable()
            connection, data = self._connection, self._register(call)
        try:
            with self._sending:
                if call.answer is None:
                    self._send(connection, data)
            if not call.leads:
                self._wait_for_turn(call)
            if call.leads:
                self._lead(call)
        except BaseException as error:
            if not isinstance(error, StoreError):
                connection.interrupt()  # a frame may be half sent or half read
            raise
        finally:
            with self._lock:
                self._unregister(call)
        answer = call.answer
        if type(answer) is p.Reply:
            return answer.result
        raise call.error(self.target.where)

    def _register(self, call: PendingCall) -> bytes:
        """Register a new call; return it as a frame."""
        calls = self._calls
        acked: tuple[int, ...] = ()
        call.id = low = self._last_id = self._last_id + 1
        if calls:
            low = next(iter(calls))
            acked, self._acked = tuple(self._acked), []
        data = p.frame(p.Call(call.id, low, call.request, acked))
        if len(data) > p.FRAME_LIMIT:
            raise StoreLimitError(
                f"{type(call.request).__name__} of {len(data)} bytes is above the limit of "
                f"{p.FRAME_LIMIT} bytes a call; split the value"
            )
        if not calls:  # no other call is under way, so this caller reads
            self._leading = call.leads = True
        calls[call.id] = call
        return data

    @staticmethod
    def _send(connection: ClientConnection, data: bytes) -> None:
        try:
            connection.send(data)
        except StoreConnectionError:
            connection.interrupt()  # the reader, this thread or another, notices and reconnects

    def _wait_for_turn(self, call: PendingCall) -> None:
        """Take the lead, or wait until the leader has the answer or passes the lead on."""
        with self._lock:
            if call.answer is not None:
                return
            if not self._leading:
                self._leading = call.leads = True
                return
            call.woken = threading.Lock()
            call.woken.acquire()
        call.woken.acquire(timeout=min(call.remaining(), threading.TIMEOUT_MAX))

    def _unregister(self, call: PendingCall) -> None:
        calls = self._calls
        del calls[call.id]
        if not calls:
            self._leading = False
            return
        if next(iter(calls)) < call.id and not isinstance(call.request, p.REPEATABLE):
            self._acked.append(call.id)  # `low` stays at the older call
        if call.leads:
            self._leading = False
            self._pass_lead()

    def _unusable(self) -> StoreConnectionError:
        if self._closed:
            return StoreConnectionError(f"this store of {self.target.where} has been closed")
        return StoreConnectionError(
            f"this store of {self.target.where} was made before a fork; use store.clone() made "
            "in the child, or start processes with spawn"
        )

    def _pass_lead(self) -> None:
        for call in self._calls.values():
            if call.answer is None and call.woken is not None:
                self._leading = call.leads = True
                call.woken.release()
                return

    def _lead(self, own: PendingCall) -> None:
        """Read and dispatch answers until the own one has come."""
        while own.answer is None:
            connection = self._connection
            try:
                bodies = connection.receive()
                for data in bodies:
                    body = _decoder.decode(data)
                    if type(body) is p.Reply and body.id == own.id:
                        own.answer, self._pinged = body, None
                    else:
                        self._dispatch(body)
                if own.answer is None and own.expired():
                    return
                if not bodies:
                    self._ping(connection)
            except NotOurProtocolError as error:  # sent again, it would fail in the same way
                self._fail_all(error)
                connection.close()
            except StoreConnectionError as error:
                self._reconnect(own, error)
            except msgspec.DecodeError as error:
                self._reconnect(own, StoreConnectionError(f"{self.target.where}: {error}"))

    def _ping(self, connection: ClientConnection) -> None:
        """Leave a silent server: with several servers, another one may lead by now."""
        if self._pinged is connection:
            self.target.servers.failed(connection.endpoint)
            raise StoreConnectionError(f"the server at {connection.where} says nothing")
        if self.target.servers.several and self._sending.acquire(blocking=False):
            self._pinged = connection  # if the lock is taken, another thread is sending
            try:
                connection.send(_BEAT)
            finally:
                self._sending.release()

    def _dispatch(self, body: p.Reply | p.Failure | p.Goodbye | p.Beat) -> None:
        self._pinged = None
        if isinstance(body, p.Beat):
            return
        if isinstance(body, p.Goodbye):
            raise goodbye_error(self.target.where, body)
        with self._lock:
            call = self._calls.get(body.id)
            if call is not None:
                self._answer(call, body)

    @staticmethod
    def _answer(call: PendingCall, answer: p.Reply | p.Failure | StoreConnectionError) -> None:
        if call.answer is not None:
            return  # a call that was sent again is answered twice
        call.answer = answer
        if call.woken is not None and not call.leads:
            call.woken.release()

    def _fail_all(self, error: StoreConnectionError) -> None:
        with self._lock:
            for call in self._calls.values():
                self._answer(call, error)

    # -- after a disconnect -------------------------------------------------------------------

    def _reconnect(self, own: PendingCall, error: StoreConnectionError) -> None:
        """Connect again and resend the unanswered calls; fail those that may have taken effect."""
        while own.answer is None:
            before = self._connection.welcome
            self._connection.close()
            try:
                connection = self._reopen(own)
                if connection is None:
                    return
                now = connection.welcome
                known = now.resumed and (now.since, now.record) == (before.since, before.record)
                for body in self._send_again(connection, known, own, error):
                    self._dispatch(_decoder.decode(body))
            except (NotOurProtocolError, AuthenticationError) as failure:
                self._fail_all(failure)
            except StoreConnectionError as failure:  # disconnected again
                error = failure
            except msgspec.DecodeError as failure:
                error = StoreConnectionError(f"{self.target.where}: {failure}")
            else:
                return

    def _reopen(self, own: PendingCall) -> ClientConnection | None:
        connection = None
        if not self._closed:
            try:
                connection = self._open(Deadline(own.remaining()))
            except (NotOurProtocolError, AuthenticationError):
                raise
            except StoreConnectionError as failure:
                own.answer = failure
                return None
        with self._lock:
            closed = self._closed  # before or meanwhile
        if closed:
            if connection is not None:
                connection.close()
            own.answer = self._unusable()
            return None
        return connection

    def _send_again(
        self,
        connection: ClientConnection,
        known: bool,
        own: PendingCall,
        error: StoreConnectionError,
    ) -> list[bytes]:
        """Use this connection for the calls under way; return the bodies received meanwhile."""
        with self._sending:
            with self._lock:
                self._connection = connection
                low = next(iter(self._calls), 0)
                again: list[bytes] = []
                for call_id, call in self._calls.items():
                    if call.answer is not None:
                        continue
                    if known or isinstance(call.request, p.REPEATABLE):
                        left = max(0.0, call.remaining() - ANSWER_MARGIN_SECONDS)
                        again.append(p.frame(p.Call(call_id, low, p.within(call.request, left))))
                    else:
                        self._answer(call, call.in_doubt(self.target.where, error))
            return connection.send_reading(again, Deadline(own.remaining()))


class LazyStore(Store):
    """A TCP store that connects at its first call.

    A round hands every node a store, and many nodes never use it: ten thousand nodes should
    not open ten thousand connections for nothing.

    Args:
        open_store: makes the store, at the first call. That call raises its errors, and the
            next call tries again.
        endpoint: (host, port) of its server, known beforehand.
    """

    def __init__(self, open_store: Callable[[], TCPStore], endpoint: tuple[str, int]) -> None:
        self.master_addr_port = endpoint
        self._open_store = open_store
        self._opening = threading.Lock()
        self._opened: TCPStore | None = None
        self._closed = False

    def _store(self) -> TCPStore:
        with self._opening:
            if self._opened is None:
                self._opened = self._open_store()
                if self._closed:
                    self._opened.close()  # its calls then raise that it is closed
            return self._opened

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        return (self._opened or self._store())._call(request, timeout)

    def clone(self) -> Store:
        return self._open_store()

    def close(self) -> None:
        with self._opening:
            self._closed = True
            if self._opened is not None:
                self._opened.close()
