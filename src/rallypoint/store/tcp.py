"""The store client: any number of threads over one blocking socket, no thread of its own.

A caller sends its own request. One of those who wait reads (the leader): it hands each answer
to the caller it belongs to, and when its own has come, passes the lead on. So a single thread
costs two system calls a call and no thread switch, and a thread that waits for a key holds up
nobody: others send, and the leader hands them their answers.

When the connection breaks, whoever notices reconnects, and sends again what has not been
answered, in order and under the same ids; the server knows the ids it has carried out, so
each call takes effect exactly once. If it does not know this client any more (it was started
anew), calls under way fail instead of guessing.
"""

import os
import threading
from datetime import timedelta
from typing import Any

import msgspec

from rallypoint.deadline import Deadline, seconds
from rallypoint.errors import (
    ParameterError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
    StoreTimeoutError,
    StoreValueError,
)
from rallypoint.store import protocol as p
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS, Store
from rallypoint.store.hosting import HostedServer, start_server
from rallypoint.store.link import Link, Target, goodbye_error, open_link
from rallypoint.store.token import read_token

ANSWER_MARGIN_SECONDS = 10.0  # beyond the call's own limit, for a server that is held up
LOOK_SECONDS = 5.0  # how often a blocked leader looks at its deadline
_decoder = msgspec.msgpack.Decoder(p.Reply | p.Failure | p.Goodbye)
_ERRORS: dict[str, type[StoreError]] = {
    p.FAIL_TIMEOUT: StoreTimeoutError,
    p.FAIL_VALUE: StoreValueError,
    p.FAIL_LIMIT: StoreLimitError,
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
        host: the server's name or address; with `is_master`, the address to listen on.
        port: its port; with `is_master`, 0 picks one (see `port` afterwards).
        world_size: wait until so many clients have come, when given.
        is_master: start the server in this process.
        timeout: limit of calls that name none, and of connecting: seconds or timedelta.
        wait_for_workers: with `world_size`, whether to wait for it.
        run: run id whose store this is; "" is a store of its own, outside of runs.
        token: shared secret; else RALLYPOINT_TOKEN_FILE or RALLYPOINT_TOKEN.
        insecure: with `is_master`, allow listening off loopback without a token.

    Raises StoreConnectionError, AuthenticationError, ParameterError.
    """

    def __init__(
        self,
        host: str,
        port: int = p.DEFAULT_PORT,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: float | timedelta = DEFAULT_TIMEOUT_SECONDS,
        wait_for_workers: bool = True,
        *,
        run: str = "",
        token: str | bytes | None = None,
        insecure: bool = False,
    ) -> None:
        secret = read_token(token)
        self._timeout_seconds = seconds(timeout)
        self.server: HostedServer | None = None
        if is_master:
            self.server = _start(host, port, secret, insecure)
            port = self.server.port
        if not 0 < port < 65536:
            raise ParameterError(f"port={port}: must be 1 to 65535 (0 only with is_master)")
        self._connect(Target(host, port, run, secret))
        if world_size is not None and wait_for_workers:
            self._wait_for_workers(world_size)

    def _connect(self, target: Target) -> None:
        self.target = target
        self.host, self.port = target.host, target.port
        self._pid = os.getpid()
        self._lock = threading.Lock()  # ids, slots, sending, and who leads
        self._slots: dict[int, _Slot] = {}
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
        t = self.target
        twin._connect(Target(t.host, t.port, t.run, t.token))
        return twin

    def close(self) -> None:
        """End the connection, and the server if this store started it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._link.send(p.frame(p.Bye()))
        except StoreConnectionError:
            pass  # gone already: nothing to say goodbye to
        self._link.close()
        if self.server is not None:
            self.server.stop()

    # -- one call -------------------------------------------------------------------------

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        slot = _Slot(request, Deadline(timeout + ANSWER_MARGIN_SECONDS))
        with self._lock:
            if self._closed or self._pid != os.getpid():
                raise self._unusable()
            self._last_id += 1
            call_id = self._last_id
            low = next(iter(self._slots), call_id)
            self._slots[call_id] = slot
            data = p.frame(p.Call(call_id, low, request))
            if len(data) > p.FRAME_LIMIT:
                del self._slots[call_id]
                raise StoreLimitError(
                    f"{type(request).__name__} of {len(data)} bytes is above the limit of "
                    f"{p.FRAME_LIMIT} bytes a call; split the value"
                )
            if self._leading:
                slot.woken = threading.Lock()
                slot.woken.acquire()
            else:
                self._leading = slot.leads = True
            link = self._link
            try:
                link.send(data)
            except StoreConnectionError:
                link.interrupt()  # the reader, this thread or another, sees it and reconnects
        try:
            if slot.woken is not None:
                slot.woken.acquire(timeout=slot.deadline.remaining())
            if slot.leads:
                self._lead(slot)
        finally:
            with self._lock:
                del self._slots[call_id]
                if slot.leads:
                    self._pass_lead()
        return self._result(slot, timeout)

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
            except StoreConnectionError as error:
                self._reconnect(own, error)
            except msgspec.DecodeError as error:
                self._reconnect(own, StoreConnectionError(f"{self.target.where}: {error}"))

    def _hand_out(self, body: p.Reply | p.Failure | p.Goodbye) -> None:
        if isinstance(body, p.Goodbye):
            raise goodbye_error(self.target.where, body)
        slot = self._slots.get(body.id)
        if slot is None:
            return
        self._answer(slot, body)

    @staticmethod
    def _answer(slot: _Slot, answer: p.Reply | p.Failure | StoreConnectionError) -> None:
        slot.answer = answer
        if slot.woken is not None and not slot.leads:
            slot.woken.release()

    def _reconnect(self, own: _Slot, error: StoreConnectionError) -> None:
        """Connect again and send what was not answered; or fail all calls under way."""
        epoch = self._link.welcome.epoch
        self._link.close()
        if self._closed:
            own.answer = self._unusable()
            return
        try:
            link = self._open(own.deadline)
        except StoreConnectionError as failure:
            own.answer = failure
            return
        known = link.welcome.resumed and link.welcome.epoch == epoch
        with self._lock:
            self._link = link
            low = next(iter(self._slots), 0)
            for call_id, slot in self._slots.items():
                if slot.answer is not None:
                    continue
                if known or isinstance(slot.request, p.REPEATABLE):
                    link.send(p.frame(p.Call(call_id, low, _remaining(slot))))
                else:
                    self._answer(slot, self._in_doubt(slot, error))

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


def _start(host: str, port: int, token: bytes, insecure: bool) -> HostedServer:
    try:
        return start_server(host, port, token, insecure)
    except OSError as error:
        raise StoreConnectionError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; another program may use "
            "the port: choose another one, or 0 for a free one"
        ) from error
