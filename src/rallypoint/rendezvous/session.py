"""A node's session with a server: one connection, one thread, always the newest view.

The thread is a loop of three lines: wait for bytes or a wake-up, at most until the next beat;
fold what was told into the view; notify. It beats every third of the lease, takes a server
that says nothing for a whole lease as gone, reconnects with backoff and jitter, and then
resumes: running workers are left alone until the server says that the node was shut out.
"""

import logging
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from rallypoint.deadline import Deadline
from rallypoint.errors import (
    AuthenticationError,
    RendezvousConnectionError,
    StoreConnectionError,
)
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.coordinator import View, Watcher
from rallypoint.rendezvous.core.events import (
    Join,
    Parked,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
    WaitingChanged,
)
from rallypoint.store import protocol as p
from rallypoint.store.link import Link, Target, goodbye_error, open_link

logger = logging.getLogger("rallypoint")

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
ATTEMPT_SECONDS = 5.0
_decoder = msgspec.msgpack.Decoder(wire.ServerBody)
_BEAT = p.frame(wire.Beat())


def told(view: View, message: wire.Told) -> View:
    """Return the view after a message (pure: the one place that knows what each one means)."""
    change = msgspec.structs.replace
    match message:
        case wire.Seated(seat):
            return View(assignment=seat, connected=view.connected)
        case RoundOpened():
            return change(view, opened=message, waiting=0)
        case Parked():
            return change(view, assignment=None, opened=None, parked=message)
        case WaitingChanged(count=count):
            return change(view, waiting=count)
        case RunClosed():
            return change(view, closed=message, parked=None, waiting=0)
        case Refused(refusal=Refusal.FENCED):
            return change(view, fenced=message, parked=None, waiting=0)
        case Refused():
            return view


class Session:
    """The connection of one node to a run on a server.

    Args:
        target: where the server is, and which run.
        lease_seconds: as in the run's settings.
        clock: monotonic seconds.
    """

    def __init__(
        self, target: Target, lease_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.target = target
        self.changed = threading.Condition()
        self.view = View(connected=False)
        self.refused: Refused | None = None
        self.join: Join | None = None
        self.answers: dict[int, wire.Answer | None] = {}
        self.local_address = ""
        self._lease = lease_seconds
        self._clock = clock
        self._watchers: list[Watcher] = []
        self._link: Link | None = None
        self._sending = threading.Lock()
        self._last_id = 0
        self._asked: dict[int, bytes] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._heard_at = 0.0

    # -- for callers ----------------------------------------------------------------------

    def start(self, deadline: Deadline) -> None:
        """Connect, if not yet, and start the thread."""
        with self._sending:
            self.raise_failure()
            if self._thread is not None or self._stopping:
                return
            try:
                self._use(open_link(self.target, deadline))
            except AuthenticationError as error:
                raise RendezvousConnectionError(str(error)) from error
            except StoreConnectionError as error:
                raise RendezvousConnectionError(
                    f"run {self.target.run!r}: {error} (join={deadline.timeout:g} s)"
                ) from error
            self._thread = threading.Thread(
                target=self._run, name="rallypoint-session", daemon=True
            )
            self._thread.start()

    def forget_refusal(self) -> None:
        """A new join begins: what was refused before does not count."""
        self.refused = None

    def raise_failure(self) -> None:
        """Raise what ended the background thread, if something did."""
        if self.view.error is not None:
            raise RendezvousConnectionError(
                f"the session with {self.target.where} has failed: {self.view.error}"
            ) from self.view.error

    def send(self, body: msgspec.Struct) -> None:
        """Send a body whose loss in a reconnect is made up for there (join, beat)."""
        self._write(p.frame(body))

    def ask(self, make: Callable[[int], msgspec.Struct]) -> int:
        """Send a request that is answered under its id; it is sent again on a reconnect."""
        with self.changed:
            self._last_id += 1
            number = self._last_id
            data = p.frame(make(number))
            self._asked[number] = data
        self._write(data)
        return number

    def wait(self, number: int, deadline: Deadline) -> wire.Answer | None:
        """Wait for the answer to `ask`; RendezvousConnectionError at the deadline."""
        with self.changed:
            done = self.changed.wait_for(
                lambda: number in self.answers or self.view.error is not None,
                deadline.remaining(),
            )
            self._asked.pop(number, None)
            if number in self.answers:
                return self.answers.pop(number)
        self.raise_failure()
        if not done:
            state = "connected" if self.view.connected else "not connected"
            raise RendezvousConnectionError(
                f"the server at {self.target.where} did not answer within "
                f"{deadline.timeout:g} s (now {state})"
            )
        return None

    def update(self, change: Callable[[View], View]) -> None:
        """Change the view and call the watchers."""
        with self.changed:
            before, self.view = self.view, change(self.view)
            self.changed.notify_all()
            watchers = list(self._watchers)
            view = self.view
        if view != before:
            for watcher in watchers:
                watcher(view)

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
        """End the thread and the connection."""
        self._stopping = True
        self._wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(ATTEMPT_SECONDS + 1.0)
        link = self._link
        if link is not None:
            link.close()
        if thread is None or not thread.is_alive():
            self._wake_sender.close()
            self._wake_receiver.close()

    # -- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._converse()
                except StoreConnectionError as error:
                    if not self._stopping:
                        self._reconnect(error)
        except BaseException as error:  # noqa: BLE001 - handed to the callers, never swallowed
            failure = error
            self.update(lambda v: msgspec.structs.replace(v, error=failure, connected=False))

    def _converse(self) -> None:
        """Read and beat until the connection ends."""
        link = self._link
        if link is None:
            raise StoreConnectionError("not connected")
        beat_every = self._lease / 3
        next_beat = self._clock() + beat_every
        with selectors.DefaultSelector() as selector:
            selector.register(link.sock, selectors.EVENT_READ)
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            while not self._stopping:
                for key, _events in selector.select(max(0.0, next_beat - self._clock())):
                    if key.fileobj is self._wake_receiver:
                        self._wake_receiver.recv(4096)
                    else:
                        self._take(link)
                now = self._clock()
                if now >= next_beat:
                    if now - self._heard_at > max(self._lease, 2 * (now - next_beat)):
                        raise StoreConnectionError(
                            f"the server at {self.target.where} has said nothing for "
                            f"{now - self._heard_at:.1f} s"
                        )
                    link.send(_BEAT)
                    next_beat = now + beat_every

    def _take(self, link: Link) -> None:
        self._heard_at = self._clock()
        for data in link.receive():
            try:
                body = _decoder.decode(data)
            except msgspec.DecodeError as error:
                raise StoreConnectionError(f"{self.target.where}: {error}") from error
            self._handle(body)

    def _handle(self, body: Any) -> None:
        if isinstance(body, wire.Push):
            message = body.message
            if isinstance(message, Refused) and message.refusal is not Refusal.FENCED:
                with self.changed:
                    self.refused = message
                    self.changed.notify_all()
            else:
                self.update(lambda view: told(view, message))
        elif isinstance(body, (wire.Done, wire.Answer)):
            with self.changed:
                self._asked.pop(body.id, None)
                self.answers[body.id] = body if isinstance(body, wire.Answer) else None
                self.changed.notify_all()
        elif isinstance(body, p.Goodbye):
            raise goodbye_error(self.target.where, body)

    def _reconnect(self, error: StoreConnectionError) -> None:
        """Come back, as often as it takes; the node's fate is the server's to tell."""
        logger.warning("%s; reconnecting, workers are left alone", error)
        if self._link is not None:
            self._link.close()
        self.update(lambda view: msgspec.structs.replace(view, connected=False))
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping:
            try:
                link = open_link(self.target, Deadline(ATTEMPT_SECONDS), once=True)
            except AuthenticationError:
                raise
            except StoreConnectionError:
                self._pause(pause * (0.5 + random.random()))  # noqa: S311 - jitter
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                continue
            with self._sending:
                self._use(link)
                self._resume(link)
            logger.warning("reconnected to %s", self.target.where)
            return

    def _resume(self, link: Link) -> None:
        with self.changed:
            seat, node = self.view.assignment, self.join.node.id if self.join else ""
            pending = self.join is not None and not self._is_seated()
            asked = list(self._asked.values())
        if pending and self.join is not None:
            link.send(p.frame(wire.Ask(0, self.join)))
        elif seat is not None and node and self.view.fenced is None and self.view.closed is None:
            link.send(p.frame(wire.Resume(node, seat.incarnation, seat.round)))
        for data in asked:
            link.send(data)

    def _is_seated(self) -> bool:
        seat, join = self.view.assignment, self.join
        return seat is not None and join is not None and seat.round > join.after

    def _use(self, link: Link) -> None:
        self._link = link
        self._heard_at = self._clock()
        self.local_address = link.sock.getsockname()[0].split("%")[0]
        self.update(lambda view: msgspec.structs.replace(view, connected=True))

    def _pause(self, duration_seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            selector.select(duration_seconds)

    def _wake(self) -> None:
        try:
            self._wake_sender.send(b"x")
        except OSError:
            return  # already closed: the thread has ended

    def _write(self, data: bytes) -> None:
        with self._sending:
            link = self._link
            if link is None or not self.view.connected:
                return  # sent by `_resume` when the connection is back
            try:
                link.send(data)
            except StoreConnectionError:
                link.interrupt()  # the thread sees it, reconnects and resumes
