"""The store client: any number of threads over one blocking socket, no thread of its own.

A caller sends its own request. One of those who wait reads (the leader): it hands each answer
to the caller it belongs to, and when its own has come, passes the lead on. So a single thread
costs two system calls a call and no thread switch, and a thread that waits for a key holds up
nobody: others send, and the leader hands them their answers.

When the connection breaks, whoever notices reconnects, and sends again what has not been
answered, in order and under the same ids; the server knows the ids it has carried out, so
each call takes effect exactly once. If it does not know this client any more (it was started
anew), calls under way fail instead of guessing.

Sending has a lock of its own: whoever is held up in it (a long value, a server that takes
nothing more before its answers are read) must hold up neither the leader nor the bookkeeping.
For the same reason only a caller who has sent all it has to send can become the leader.
"""

import os
import threading
from datetime import timedelta
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
)
from rallypoint.hosting.in_process import HostedServer, start_for_store
from rallypoint.net import protocol as p
from rallypoint.net.connection import (
    ClientConnection,
    ConnectionConfig,
    NotOurProtocolError,
    goodbye_error,
    open_connection,
)
from rallypoint.net.endpoints import server_endpoints
from rallypoint.net.tls import TLS, read_tls
from rallypoint.net.token_sources import read_token
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS, Store
from rallypoint.store.pending_call import ANSWER_MARGIN_SECONDS, PendingCall

BYE_SECONDS = 1.0  # what `close` waits for a frame that is being sent
LOOK_SECONDS = 3.0  # how often a blocked leader looks at its deadline, and for signs of life
_BEAT = p.frame(p.Beat())
_decoder = msgspec.msgpack.Decoder(p.Reply | p.Failure | p.Goodbye | p.Beat)


class TCPStore(Store):
    """A store on a Rallypoint server.

    Args:
        host_name: the server's name or address; with `is_master`, the address to listen on.
            A list with commas ("a:29400,b:29400") names servers of which one leads.
        port: its port; with `is_master`, 0 picks one (see `port` afterwards).
        world_size: wait until so many clients have come, unless not `wait_for_workers`.
        is_master: start the server in this process.
        timeout: limit of calls that name none, and of connecting: seconds or timedelta.
        run: run id whose store this is; "" is a store of its own, outside of runs.
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
        """Return a client of the store that a target names; see the constructor."""
        store = cls.__new__(cls)
        store._timeout_seconds, store.server = seconds(timeout), None
        store._connect(target)
        return store

    def _release(self) -> None:
        if "_link" in self.__dict__:
            self._link.close()
        if self.server is not None:
            self.server.stop()

    def _connect(self, target: ConnectionConfig) -> None:
        self.target = target
        self.host, self.port = target.host, target.port
        self._pid = os.getpid()
        self._lock = threading.Lock()  # ids, slots, and who leads; never held while waiting
        self._sending = threading.Lock()  # one frame after the other
        self._slots: dict[int, PendingCall] = {}
        self._acked: list[int] = []  # answered while an older call still waits
        self._last_id = 0
        self._leading = self._closed = False
        self._asked_in: ClientConnection | None = None  # which owes us a sign of life
        self._link = self._open(Deadline(self._timeout_seconds))

    def _open(self, deadline: Deadline) -> ClientConnection:
        link = open_connection(self.target, deadline)
        link.read_timeout(LOOK_SECONDS)
        return link

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
        """Return another client of the same store, with a connection of its own."""
        return TCPStore.at(self.target.another(), self._timeout_seconds)

    def close(self) -> None:
        """End the connection, and the server if this store started it; calls under way fail.

        After a fork only this process's copy of the connection is freed.
        """
        if self._pid != os.getpid():
            self._link.abandon()
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._sending.acquire(timeout=BYE_SECONDS):  # not into the middle of a frame
            try:
                self._link.send(p.frame(p.Bye()))
            except StoreConnectionError:
                pass  # gone already: nothing to say goodbye to
            finally:
                self._sending.release()
        self._link.close()
        if self.server is not None:
            self.server.stop()

    # -- one call -------------------------------------------------------------------------

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        if self._pid != os.getpid():
            raise self._unusable()
        slot = PendingCall(request, timeout)
        with self._lock:
            if self._closed:
                raise self._unusable()
            link, data = self._link, self._enter(slot)
        try:
            with self._sending:
                if slot.answer is None:
                    self._send(link, data)
            if not slot.leads:
                self._line_up(slot)
            if slot.leads:
                self._lead(slot)
        except BaseException as error:
            if not isinstance(error, StoreError):
                link.interrupt()  # a half-sent or half-read frame must not be gone on with
            raise
        finally:
            with self._lock:
                self._end(slot)
        answer = slot.answer
        if type(answer) is p.Reply:
            return answer.result
        raise slot.error(self.target.where)

    def _enter(self, slot: PendingCall) -> bytes:
        """Take in a new call; return it as a frame."""
        slots = self._slots
        acked: tuple[int, ...] = ()
        slot.id = low = self._last_id = self._last_id + 1
        if slots:
            low = next(iter(slots))
            acked, self._acked = tuple(self._acked), []
        data = p.frame(p.Call(slot.id, low, slot.request, acked))
        if len(data) > p.FRAME_LIMIT:
            raise StoreLimitError(
                f"{type(slot.request).__name__} of {len(data)} bytes is above the limit of "
                f"{p.FRAME_LIMIT} bytes a call; split the value"
            )
        if not slots:  # alone: no answer is under way that somebody must read
            self._leading = slot.leads = True
        slots[slot.id] = slot
        return data

    @staticmethod
    def _send(link: ClientConnection, data: bytes) -> None:
        try:
            link.send(data)
        except StoreConnectionError:
            link.interrupt()  # the reader, this thread or another, sees and reconnects

    def _line_up(self, slot: PendingCall) -> None:
        """Lead, or wait until who leads has the answer or passes the lead on."""
        with self._lock:
            if slot.answer is not None:
                return
            if not self._leading:
                self._leading = slot.leads = True
                return
            slot.woken = threading.Lock()
            slot.woken.acquire()
        slot.woken.acquire(timeout=min(slot.remaining(), threading.TIMEOUT_MAX))

    def _end(self, slot: PendingCall) -> None:
        slots = self._slots
        del slots[slot.id]
        if not slots:
            self._leading = False
            return
        if next(iter(slots)) < slot.id and not isinstance(slot.request, p.REPEATABLE):
            self._acked.append(slot.id)  # an older call holds it back
        if slot.leads:
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
        for slot in self._slots.values():
            if slot.answer is None and slot.woken is not None:
                self._leading = slot.leads = True
                slot.woken.release()
                return

    def _lead(self, own: PendingCall) -> None:
        """Read and hand out answers until one's own has come."""
        while own.answer is None:
            link = self._link
            try:
                bodies = link.receive()
                for data in bodies:
                    body = _decoder.decode(data)
                    if type(body) is p.Reply and body.id == own.id:
                        own.answer, self._asked_in = body, None
                    else:
                        self._hand_out(body)
                if own.answer is None and own.expired():
                    return
                if not bodies:
                    self._ask_for_life(link)
            except NotOurProtocolError as error:  # sent again, it would end in the same way
                self._fail_all(error)
                link.close()
            except StoreConnectionError as error:
                self._reconnect(own, error)
            except msgspec.DecodeError as error:
                self._reconnect(own, StoreConnectionError(f"{self.target.where}: {error}"))

    def _ask_for_life(self, link: ClientConnection) -> None:
        """Of several servers another one may lead by now: leave one that says nothing."""
        if self._asked_in is link:
            self.target.servers.failed(link.endpoint)
            raise StoreConnectionError(f"the server at {link.where} says nothing")
        if self.target.servers.several and self._sending.acquire(blocking=False):
            self._asked_in = link  # else somebody sends just now, or tries to
            try:
                link.send(_BEAT)
            finally:
                self._sending.release()

    def _hand_out(self, body: p.Reply | p.Failure | p.Goodbye | p.Beat) -> None:
        self._asked_in = None
        if isinstance(body, p.Beat):
            return
        if isinstance(body, p.Goodbye):
            raise goodbye_error(self.target.where, body)
        with self._lock:
            slot = self._slots.get(body.id)
            if slot is not None:
                self._answer(slot, body)

    @staticmethod
    def _answer(slot: PendingCall, answer: p.Reply | p.Failure | StoreConnectionError) -> None:
        if slot.answer is not None:
            return  # the same answer to a call that was sent again
        slot.answer = answer
        if slot.woken is not None and not slot.leads:
            slot.woken.release()

    def _fail_all(self, error: StoreConnectionError) -> None:
        with self._lock:
            for slot in self._slots.values():
                self._answer(slot, error)

    # -- after a cut ----------------------------------------------------------------------

    def _reconnect(self, own: PendingCall, error: StoreConnectionError) -> None:
        """Connect again and send what was not answered; or fail the calls in doubt."""
        while own.answer is None:
            before = self._link.welcome
            self._link.close()
            try:
                link = self._reopen(own)
                if link is None:
                    return
                now = link.welcome
                known = now.resumed and (now.since, now.record) == (before.since, before.record)
                for body in self._send_again(link, known, own, error):
                    self._hand_out(_decoder.decode(body))
            except (NotOurProtocolError, AuthenticationError) as failure:
                self._fail_all(failure)
            except StoreConnectionError as failure:  # cut again, meanwhile
                error = failure
            except msgspec.DecodeError as failure:
                error = StoreConnectionError(f"{self.target.where}: {failure}")
            else:
                return

    def _reopen(self, own: PendingCall) -> ClientConnection | None:
        link = None
        if not self._closed:
            try:
                link = self._open(Deadline(own.remaining()))
            except (NotOurProtocolError, AuthenticationError):
                raise
            except StoreConnectionError as failure:
                own.answer = failure
                return None
        with self._lock:
            closed = self._closed  # before, or meanwhile
        if closed:
            if link is not None:
                link.close()
            own.answer = self._unusable()
            return None
        return link

    def _send_again(
        self, link: ClientConnection, known: bool, own: PendingCall, error: StoreConnectionError
    ) -> list[bytes]:
        """Make it the link, and send the calls under way; return what was answered meanwhile."""
        with self._sending:
            with self._lock:
                self._link = link
                low = next(iter(self._slots), 0)
                again: list[bytes] = []
                for call_id, slot in self._slots.items():
                    if slot.answer is not None:
                        continue
                    if known or isinstance(slot.request, p.REPEATABLE):
                        left = max(0.0, slot.remaining() - ANSWER_MARGIN_SECONDS)
                        again.append(p.frame(p.Call(call_id, low, p.within(slot.request, left))))
                    else:
                        self._answer(slot, slot.in_doubt(self.target.where, error))
            return link.send_reading(again, Deadline(own.remaining()))
