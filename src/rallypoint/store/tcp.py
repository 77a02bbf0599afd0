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
    StoreValueError,
)
from rallypoint.store import protocol as p
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS, Store
from rallypoint.store.hosting import HostedServer, start_for_store
from rallypoint.store.link import Link, NotOurProtocolError, Target, goodbye_error, open_link
from rallypoint.store.tls import TLS, read_tls
from rallypoint.store.token import read_token

ANSWER_MARGIN_SECONDS = 10.0  # beyond the call's own limit, for a server that is held up
BYE_SECONDS = 1.0  # what `close` waits for a frame that is being sent
LOOK_SECONDS = 5.0  # how often a blocked leader looks at its deadline
_decoder = msgspec.msgpack.Decoder(p.Reply | p.Failure | p.Goodbye)
_ERRORS: dict[str, type[StoreError]] = {
    p.FAIL_TIMEOUT: StoreTimeoutError,
    p.FAIL_VALUE: StoreValueError,
    p.FAIL_LIMIT: StoreLimitError,
    p.FAIL_DENIED: AuthenticationError,
}


class _Slot:
    """A call under way: its request, its waiting thread and, once there, its answer."""

    __slots__ = ("answer", "deadline", "leads", "request", "woken")

    def __init__(self, request: p.StoreRequest, deadline: Deadline) -> None:
        self.request = request
        self.deadline = deadline
        self.answer: p.Reply | p.Failure | StoreConnectionError | None = None
        self.woken: threading.Lock | None = None
        self.leads = False


class TCPStore(Store):
    """A store on a Rallypoint server.

    Args:
        host_name: the server's name or address; with `is_master`, the address to listen on.
        port: its port; with `is_master`, 0 picks one (see `port` afterwards).
        world_size: wait until so many clients have come, when given.
        is_master: start the server in this process.
        timeout: limit of calls that name none, and of connecting: seconds or timedelta.
        wait_for_workers: with `world_size`, whether to wait for it.
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
            self._connect(Target(host_name, port, run, secret, tls=files))
            if world_size is not None and wait_for_workers:
                self._wait_for_workers(world_size)
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        """Free what a constructor that fails has taken so far."""
        link = self.__dict__.get("_link")
        if link is not None:
            link.close()
        if self.server is not None:
            self.server.stop()

    def _connect(self, target: Target) -> None:
        self.target = target
        self.host, self.port = target.host, target.port
        self._pid = os.getpid()
        self._lock = threading.Lock()  # ids, slots, and who leads; never held while waiting
        self._sending = threading.Lock()  # one frame after the other
        self._slots: dict[int, _Slot] = {}
        self._acked: list[int] = []  # answered while an older call still waits
        self._last_id = 0
        self._leading = False
        self._closed = False
        self._link = self._open(Deadline(self._timeout_seconds))

    def _open(self, deadline: Deadline) -> Link:
        link = open_link(self.target, deadline)
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
        twin = TCPStore.__new__(TCPStore)
        twin._timeout_seconds = self._timeout_seconds
        twin.server = None
        twin._connect(self.target.another())
        return twin

    def close(self) -> None:
        """End the connection, and the server if this store started it.

        Calls under way fail. After a fork only this process's copy of the connection is freed.
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
        slot = _Slot(request, Deadline(timeout + ANSWER_MARGIN_SECONDS))
        with self._lock:
            if self._closed:
                raise self._unusable()
            call_id = self._last_id = self._last_id + 1
            self._slots[call_id] = slot
            link, data = self._link, self._frame(call_id, slot)
        try:
            self._send(link, data, slot)
            with self._lock:
                if slot.answer is None:
                    if self._leading:
                        slot.woken = threading.Lock()
                        slot.woken.acquire()
                    else:
                        self._leading = slot.leads = True
            if slot.woken is not None:
                limit = min(slot.deadline.remaining(), threading.TIMEOUT_MAX)
                slot.woken.acquire(timeout=limit)
            if slot.leads:
                self._lead(slot)
        except BaseException as error:
            if not isinstance(error, StoreError):
                link.interrupt()  # a half-sent or half-read frame must not be gone on with
            raise
        finally:
            with self._lock:
                self._end(call_id, slot)
        return self._result(slot, timeout)

    def _frame(self, call_id: int, slot: _Slot) -> bytes:
        """Return a new call as a frame; `_slots` holds it already."""
        low = next(iter(self._slots))
        acked, self._acked = tuple(self._acked), []
        data = p.frame(p.Call(call_id, low, slot.request, acked))
        if len(data) <= p.FRAME_LIMIT:
            return data
        del self._slots[call_id]
        raise StoreLimitError(
            f"{type(slot.request).__name__} of {len(data)} bytes is above the limit of "
            f"{p.FRAME_LIMIT} bytes a call; split the value"
        )

    def _send(self, link: Link, data: bytes, slot: _Slot) -> None:
        with self._sending:
            if slot.answer is None:
                try:
                    link.send(data)
                except StoreConnectionError:
                    link.interrupt()  # the reader, this thread or another, sees and reconnects

    def _end(self, call_id: int, slot: _Slot) -> None:
        del self._slots[call_id]
        held_back = bool(self._slots) and next(iter(self._slots)) < call_id
        if held_back and not isinstance(slot.request, p.REPEATABLE):
            self._acked.append(call_id)
        if slot.leads:
            self._pass_lead()

    def _unusable(self) -> StoreConnectionError:
        if self._closed:
            return StoreConnectionError(f"this store of {self.target.where} has been closed")
        return StoreConnectionError(
            f"this store of {self.target.where} was made before a fork; use store.clone() made "
            "in the child, or start processes with spawn"
        )

    def _result(self, slot: _Slot, timeout: float) -> Any:
        answer = slot.answer
        if type(answer) is p.Reply:
            return answer.result
        if isinstance(answer, p.Failure):
            raise _ERRORS.get(answer.code, StoreError)(answer.text)
        if isinstance(answer, StoreConnectionError):
            raise answer
        raise StoreTimeoutError(
            f"the server at {self.target.where} did not answer {type(slot.request).__name__} "
            f"within timeout={timeout:g} s and {ANSWER_MARGIN_SECONDS:g} s more"
        )

    def _pass_lead(self) -> None:
        self._leading = False
        for slot in self._slots.values():
            if slot.answer is None and slot.woken is not None:
                self._leading = slot.leads = True
                slot.woken.release()
                return

    def _lead(self, own: _Slot) -> None:
        """Read and hand out answers until one's own has come."""
        while own.answer is None and not own.deadline.expired():
            link = self._link
            try:
                for body in link.receive():
                    self._hand_out(_decoder.decode(body))
            except NotOurProtocolError as error:  # sent again, it would end in the same way
                self._fail_all(error)
                link.close()
            except StoreConnectionError as error:
                self._reconnect(own, error)
            except msgspec.DecodeError as error:
                self._reconnect(own, StoreConnectionError(f"{self.target.where}: {error}"))

    def _hand_out(self, body: p.Reply | p.Failure | p.Goodbye) -> None:
        if isinstance(body, p.Goodbye):
            raise goodbye_error(self.target.where, body)
        with self._lock:
            slot = self._slots.get(body.id)
            if slot is not None:
                self._answer(slot, body)

    @staticmethod
    def _answer(slot: _Slot, answer: p.Reply | p.Failure | StoreConnectionError) -> None:
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

    def _reconnect(self, own: _Slot, error: StoreConnectionError) -> None:
        """Connect again and send what was not answered; or fail the calls in doubt."""
        while own.answer is None:
            before = self._link.welcome
            self._link.close()
            try:
                link = self._reopen(own)
                if link is None:
                    return
                now = link.welcome
                known = now.resumed and (now.epoch, now.record) == (before.epoch, before.record)
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

    def _reopen(self, own: _Slot) -> Link | None:
        link = None
        if not self._closed:
            try:
                link = self._open(own.deadline)
            except (NotOurProtocolError, AuthenticationError):
                raise
            except StoreConnectionError as failure:
                own.answer = failure
                return None
        if self._is_closed():  # before, or meanwhile
            if link is not None:
                link.close()
            own.answer = self._unusable()
            return None
        return link

    def _is_closed(self) -> bool:
        with self._lock:
            return self._closed

    def _send_again(
        self, link: Link, known: bool, own: _Slot, error: StoreConnectionError
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
                        again.append(p.frame(p.Call(call_id, low, _remaining(slot))))
                    else:
                        self._answer(slot, self._in_doubt(slot, error))
            return link.send_reading(again, own.deadline)

    def _in_doubt(self, slot: _Slot, error: StoreConnectionError) -> StoreConnectionError:
        return StoreConnectionError(
            f"{error}; the server that answers at {self.target.where} now does not know this "
            f"client: whether {type(slot.request).__name__} took effect is not known"
        )


def _remaining(slot: _Slot) -> p.StoreRequest:
    request = slot.request
    if isinstance(request, (p.Get, p.Wait, p.MultiGet, p.QueuePop, p.Watch, p.Gather)):
        left = max(0.0, slot.deadline.remaining() - ANSWER_MARGIN_SECONDS)
        return msgspec.structs.replace(request, timeout=left)
    return request
