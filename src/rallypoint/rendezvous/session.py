"""A node's session with a server: one connection, one thread, always the newest view.

The thread is a loop of three lines: wait for bytes or a wake-up, at most until the next beat;
fold what was told into the view; notify. It beats every third of the lease, takes a server
that says nothing for a whole lease as gone, reconnects with backoff and jitter, and then
resumes: running workers are left alone until the server says that the node was shut out.

Two locks: `_sending` orders what goes out and is never held while somebody else's code runs;
`changed` guards what was told. `stop` may come at any moment: it ends an attempt to connect,
a pause and a read.
"""

import contextlib
import logging
import os
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
    RendezvousStateError,
    StoreConnectionError,
)
from rallypoint.rendezvous import dialogue, wire
from rallypoint.rendezvous.coordinator import View, Watcher
from rallypoint.rendezvous.core.events import Join, Refusal, Refused
from rallypoint.store import protocol as p
from rallypoint.store.connect import Attempt
from rallypoint.store.link import Link, Target, goodbye_error, open_link

logger = logging.getLogger("rallypoint")

ATTEMPT_SECONDS = 5.0
STOP_SECONDS = 1.0  # for the thread to see that it shall end
_decoder = msgspec.msgpack.Decoder(wire.ServerBody)
_BEAT = p.frame(wire.Beat())


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
        self.answers: dict[int, wire.Answer | wire.Denied | None] = {}
        self.local_address = ""
        self._lease = lease_seconds
        self._clock = clock
        self._watchers: list[Watcher] = []
        self._link: Link | None = None
        self._attempt: Attempt | None = None
        self._starting = threading.Lock()
        self._sending = threading.Lock()
        self._ready = False  # requests go out now; else `_resume` sends them
        self._last_id = 0
        self._asked: dict[int, bytes] = {}
        self._trouble = ""
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._pid = os.getpid()
        self._heard_at = 0.0

    # -- for callers ----------------------------------------------------------------------

    def start(self, deadline: Deadline) -> None:
        """Connect, if not yet, and start the thread.

        Raises RendezvousConnectionError (what was tried, for how long, or what ended the
        session), RendezvousStateError after `stop`.
        """
        self.raise_failure()
        self._refuse_if_over()
        if self._thread is None:
            if not self._starting.acquire(timeout=deadline.capped(threading.TIMEOUT_MAX)):
                raise RendezvousConnectionError(
                    f"run {self.target.run!r}: another thread has been connecting to "
                    f"{self.target.where} for {deadline.timeout:g} s"
                )
            try:
                self._start_once(deadline)
            finally:
                self._starting.release()

    def _start_once(self, deadline: Deadline) -> None:
        if self._thread is None:
            link = self._first_link(deadline)
            with self._sending:
                self._use(link)
            self._wake = socket.socketpair()
            thread = threading.Thread(target=self._run, name="rallypoint-session", daemon=True)
            self._thread = thread
            self._tell_connected(True)
            thread.start()

    def _first_link(self, deadline: Deadline) -> Link:
        self._attempt = Attempt(deadline.remaining())
        try:
            link = open_link(self.target, self._attempt)
        except AuthenticationError as error:
            raise RendezvousConnectionError(str(error)) from error
        except StoreConnectionError as error:
            self._refuse_if_over()
            raise RendezvousConnectionError(
                f"run {self.target.run!r}: {error} (join={deadline.timeout:g} s)"
            ) from error
        if self._stopping:
            link.close()
            self._refuse_if_over()
        return link

    def _refuse_if_over(self) -> None:
        if self._stopping or self._pid != os.getpid():
            how = "shut down" if self._stopping else "made before a fork"
            raise RendezvousStateError(
                f"run {self.target.run!r}: this handler was {how}; make a new one"
            )

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
                lambda: number in self.answers or self.view.error is not None or self._stopping,
                deadline.remaining(),
            )
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
        now = "connected" if self.view.connected else f"not connected: {self._trouble}"
        raise RendezvousConnectionError(
            f"the server at {self.target.where} did not answer in {deadline.timeout:g} s ({now})"
        )

    def update(self, change: Callable[[View], View]) -> None:
        """Change the view and call the watchers; one that fails harms nobody else."""
        with self.changed:
            before, self.view = self.view, change(self.view)
            self.changed.notify_all()
            watchers = list(self._watchers)
            view = self.view
        if view != before:
            for watcher in watchers:
                try:
                    watcher(view)
                except Exception:
                    logger.exception("a watcher of run %r has failed", self.target.run)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

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
        """End the thread and the connection; within about a second, whatever it is doing."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()  # nobody need wait for answers any more
        if self._pid != os.getpid():
            self._abandon()  # what a fork has copied; the parent goes on with its own
            return
        if self._attempt is not None:
            self._attempt.cancel()
        self._send_wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_SECONDS)
        if thread is None or thread is threading.current_thread() or thread.is_alive():
            self._close_link()

    def _abandon(self) -> None:
        if self._link is not None:
            self._link.abandon()
        for sock in self._wake or ():
            sock.close()

    # -- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._converse()
                except StoreConnectionError as error:
                    if not self._stopping:
                        self._reconnect(error)
        except BaseException as error:  # handed to the callers, never swallowed
            failure = error
            self._ready = False
            self.update(lambda v: msgspec.structs.replace(v, error=failure, connected=False))
        finally:
            self._close_link()  # the server shall not wait a lease for our beats
            for sock in self._wake or ():
                sock.close()

    def _close_link(self) -> None:
        with self._sending:
            link, self._link, self._ready = self._link, None, False
            if link is not None:
                with contextlib.suppress(StoreConnectionError):  # closed already
                    link.send(p.frame(p.Bye()))
                link.close()

    def _converse(self) -> None:
        """Read and beat until the connection ends."""
        link, wake = self._link, self._wake
        if link is None or wake is None:
            raise StoreConnectionError("not connected")
        beat_every = dialogue.beat_seconds(self._lease)
        next_beat = self._clock() + beat_every
        with selectors.DefaultSelector() as selector:
            selector.register(link.sock, selectors.EVENT_READ)
            selector.register(wake[0], selectors.EVENT_READ)
            while not self._stopping:
                for key, _events in selector.select(max(0.0, next_beat - self._clock())):
                    if key.fileobj is wake[0]:
                        wake[0].recv(4096)
                    else:
                        self._take(link)
                now = self._clock()
                if now >= next_beat:
                    if dialogue.is_gone(now - self._heard_at, now - next_beat, self._lease):
                        raise StoreConnectionError(
                            f"the server at {self.target.where} has said nothing for "
                            f"{now - self._heard_at:.1f} s"
                        )
                    with self._sending:
                        link.send(_BEAT)
                    next_beat = now + beat_every

    def _take(self, link: Link) -> None:
        self._heard_at = self._clock()
        for data in link.receive_some():
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

    def _reconnect(self, error: StoreConnectionError) -> None:
        """Come back, as often as it takes; the node's fate is the server's to tell."""
        logger.warning("%s; reconnecting, workers are left alone", error)
        self._trouble = str(error)
        with self._sending:
            self._ready = False
            if self._link is not None:
                self._link.close()
        self._tell_connected(False)
        pause = dialogue.FIRST_PAUSE_SECONDS
        while not self._stopping:
            self._attempt = Attempt(ATTEMPT_SECONDS)
            try:
                link = open_link(self.target, self._attempt, once=True)
                with self._sending:
                    self._use(link)
                    self._resume(link)
            except AuthenticationError:
                raise
            except StoreConnectionError as failure:
                self._trouble = str(failure)
                self._pause(pause * (0.5 + random.random()))  # noqa: S311 - jitter
                pause = dialogue.next_pause(pause)
                continue
            self._tell_connected(True)
            logger.warning("reconnected to %s", self.target.where)
            return

    def _resume(self, link: Link) -> None:
        with self.changed:
            frames = dialogue.greetings(self.view, self.join, list(self._asked.values()))
        for data in frames:
            link.send(data)

    def _use(self, link: Link) -> None:
        """Make it the link; `_sending` is held, so nothing comes before what resumes."""
        if self._link is not None:
            self._link.close()
        self._link, self._ready = link, True
        self._heard_at = self._clock()
        self.local_address = link.sock.getsockname()[0].split("%")[0]

    def _tell_connected(self, connected: bool) -> None:
        self.update(lambda view: msgspec.structs.replace(view, connected=connected))

    def _pause(self, duration_seconds: float) -> None:
        if self._wake is None or self._stopping:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake[0], selectors.EVENT_READ)
            selector.select(duration_seconds)

    def _send_wake(self) -> None:
        if self._wake is not None:
            with contextlib.suppress(OSError):  # closed already: the thread has ended
                self._wake[1].send(b"x")

    def _write(self, data: bytes) -> None:
        if self._pid != os.getpid():
            self._refuse_if_over()
        with self._sending:
            link = self._link
            if link is None or not self._ready:
                return  # sent by `_resume` when the connection is back
            try:
                link.send(data)
            except StoreConnectionError:
                link.interrupt()  # the thread sees it, reconnects and resumes
