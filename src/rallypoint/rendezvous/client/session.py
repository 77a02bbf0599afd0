"""A node's session with a server: what it has said and asked, and always the newest view.

Whoever waits for an answer reads the connection meanwhile (see `line`): what comes is folded
into the view, whosever it is, and all who wait are told. Running workers are left alone while
the connection is away, until the server says that the node was shut out.

`changed` guards what was told; it is never held while somebody else's code runs. `stop` may
come at any moment: it ends an attempt to connect, a pause and a read.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from rallypoint.core.events import SHUT_OUT, Join, Refusal, Refused, SettingsHeld
from rallypoint.core.state import Node, Settings
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    AuthenticationError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreConnectionError,
)
from rallypoint.net import protocol as p
from rallypoint.net.connection import Target, goodbye_error
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client import dialogue
from rallypoint.rendezvous.client.transport import Line
from rallypoint.rendezvous.coordinator import View, Watcher

logger = logging.getLogger("rallypoint")

_decoder = msgspec.msgpack.Decoder(wire.ServerBody)


class Session:
    """The connection of one node to a run on a server.

    Args:
        target: where the server is, and which run.
        lease_seconds: as in the run's settings.
    """

    def __init__(self, target: Target, lease_seconds: float) -> None:
        self.target = target
        self.changed = threading.Condition()
        self.view = View(connected=False)
        self.refused: Refused | None = None
        self.join: Join | None = None
        self.answers: dict[int, wire.Answer | wire.Denied | None] = {}
        self.stopping = False
        self._line = Line(target, lease_seconds, self)
        self._watchers: list[Watcher] = []
        self._starting = threading.Lock()
        self._started = False
        self._last_id = 0
        self._asked: dict[int, bytes] = {}
        self._pid = os.getpid()

    # -- for callers ----------------------------------------------------------------------

    @property
    def local_address(self) -> str:
        """The local end of the connection, "" before there was one."""
        return self._line.local_address

    def start(self, deadline: Deadline, *, reads: bool = False) -> None:
        """Connect, if not yet.

        Args:
            deadline: until when to try.
            reads: the caller goes on to wait for an answer, so nobody else need read yet.

        Raises RendezvousConnectionError (what was tried, for how long, or what ended the
        session), RendezvousStateError after `stop`.
        """
        self.raise_failure()
        self._refuse_if_over()
        if self._started:
            return
        if not self._starting.acquire(timeout=deadline.capped(threading.TIMEOUT_MAX)):
            raise RendezvousConnectionError(
                f"run {self.target.run!r}: another thread has been connecting to "
                f"{self.target.where} for {deadline.timeout:g} s"
            )
        try:
            if not self._started:
                self._connect(deadline)
                self._started = True
        finally:
            self._starting.release()
        if not reads:
            self._line.rest()

    def _connect(self, deadline: Deadline) -> None:
        try:
            if not self._line.open(deadline):
                self._refuse_if_over()
        except AuthenticationError as error:
            raise RendezvousConnectionError(str(error)) from error
        except StoreConnectionError as error:
            self._refuse_if_over()
            raise RendezvousConnectionError(
                f"run {self.target.run!r}: {error} (join={deadline.timeout:g} s)"
            ) from error

    def _refuse_if_over(self) -> None:
        if self.stopping or self._pid != os.getpid():
            how = "shut down" if self.stopping else "made before a fork"
            raise RendezvousStateError(
                f"run {self.target.run!r}: this handler was {how}; make a new one"
            )

    def raise_failure(self) -> None:
        """Raise what ended the session, if something did."""
        if self.view.error is not None:
            raise RendezvousConnectionError(
                f"the session with {self.target.where} has failed: {self.view.error}"
            ) from self.view.error

    def begin(self, node: Node, settings: Settings, why: str, afresh: bool) -> Join:
        """Begin a join: forget what an earlier one was told (see `dialogue.request`)."""
        with self.changed:
            before = self.view
            join, view = dialogue.request(before, self.join, node, settings, why, afresh)
            self.join, self.refused, self.view = join, None, view
            self.changed.notify_all()
        self._tell(before, view)
        return join

    def send(self, body: msgspec.Struct) -> None:
        """Send a body whose loss in a reconnect is made up for there (join, beat)."""
        self._refuse_fork()
        self._line.send(p.frame(body))

    def asking(self, body: msgspec.Struct) -> "Asking":
        """Return what to wait on for the outcome of `body`; the first wait sends it."""
        return Asking(self, p.frame(body))

    def call(self, make: Callable[[int], msgspec.Struct], deadline: Deadline) -> wire.Answer | None:
        """Send a request that is answered under its id, and wait for the answer.

        It is sent again on a reconnect. Raises RendezvousConnectionError at the deadline.
        """
        with self.changed:
            self._last_id += 1
            number = self._last_id
            data = p.frame(make(number))
            self._asked[number] = data
        done = self.wait_for(
            lambda: number in self.answers or self.view.error is not None or self.stopping,
            deadline.remaining(),
            data,
        )
        with self.changed:
            self._asked.pop(number, None)
            if number in self.answers:
                answer = self.answers.pop(number)
                if isinstance(answer, wire.Denied):
                    raise RendezvousStateError(f"{self.target.where}: {answer.why}")
                return answer
        self.raise_failure()
        if done:
            raise RendezvousConnectionError(
                f"the session with {self.target.where} was ended before the answer came"
            )
        now = "connected" if self.view.connected else f"not connected: {self._line.trouble}"
        raise RendezvousConnectionError(
            f"the server at {self.target.where} did not answer in {deadline.timeout:g} s ({now})"
        )

    def wait_for(self, done: Callable[[], bool], timeout: float, request: bytes = b"") -> bool:
        """Wait until `done`, at most `timeout` seconds; return whether it is.

        `changed` must not be held. What makes `done` true must be told by the server, or be
        followed by an answer of the server's (as a `leave` of another thread is).

        Args:
            done: looked at after each change.
            timeout: seconds.
            request: frames to send first.
        """
        self._refuse_fork()
        deadline = Deadline(timeout)
        if self._line.read_until(done, deadline, request):
            return True
        with self.changed:
            return self.changed.wait_for(done, deadline.remaining())

    def _refuse_fork(self) -> None:
        if self._pid != os.getpid():
            self._refuse_if_over()

    def update(self, change: Callable[[View], View]) -> None:
        """Change the view and call the watchers; one that fails harms nobody else."""
        with self.changed:
            before, view = self.view, change(self.view)
            self.view = view
            self.changed.notify_all()
        self._tell(before, view)

    def _tell(self, before: View, view: View) -> None:
        if view == before:
            return
        for watcher in list(self._watchers):
            try:
                watcher(view)
            except Exception:
                logger.exception("a watcher of run %r has failed", self.target.run)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with each new view."""
        with self.changed:
            self._watchers.append(watcher)

        def end() -> None:
            with self.changed:
                if watcher in self._watchers:
                    self._watchers.remove(watcher)

        return end

    def stop(self) -> None:
        """End the connection; within about a second, whatever is being done with it."""
        with self.changed:
            self.stopping = True
            self.changed.notify_all()  # nobody need wait for answers any more
        if self._pid == os.getpid():
            self._line.stop()
        else:
            self._line.abandon()

    # -- for the line ---------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        try:
            body = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise StoreConnectionError(f"{self.target.where}: {error}") from error
        self._handle(body)

    def _handle(self, body: Any) -> None:
        if isinstance(body, wire.Push):
            message = body.message
            if isinstance(message, Refused) and message.refusal not in SHUT_OUT:
                with self.changed:
                    self.refused = message
                    self.changed.notify_all()
            if isinstance(message, SettingsHeld):
                logger.warning("run %r: %s", self.target.run, message.why)
            self.update(lambda view: wire.told(view, message))
        elif isinstance(body, wire.Denied) and body.id == 0:
            with self.changed:
                self.refused = Refused(Refusal.TOKEN, body.why)
                self.changed.notify_all()
        elif isinstance(body, (wire.Done, wire.Answer, wire.Denied)):
            with self.changed:
                if self._asked.pop(body.id, None) is not None:  # else nobody waits any more
                    self.answers[body.id] = None if isinstance(body, wire.Done) else body
                    self.changed.notify_all()
        elif isinstance(body, p.Goodbye):
            raise goodbye_error(self.target.where, body)

    def greetings(self) -> list[bytes]:
        with self.changed:
            return dialogue.greetings(self.view, self.join, list(self._asked.values()))

    def tell_connected(self, connected: bool) -> None:
        self.update(lambda view: msgspec.structs.replace(view, connected=connected))

    def fail(self, error: BaseException) -> None:
        self.update(lambda v: msgspec.structs.replace(v, error=error, connected=False))


class Asking:
    """A request and the wait for its outcome; see `patience.Waits`."""

    def __init__(self, session: Session, request: bytes) -> None:
        self._session, self._request = session, request

    def wait_for(self, predicate: Callable[[], bool], timeout: float, /) -> bool:
        request, self._request = self._request, b""
        return self._session.wait_for(predicate, timeout, request)
