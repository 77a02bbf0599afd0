"""Drives a node's session with a socket: sends, reads, keeps time, reconnects.

A caller that waits for an answer reads the connection itself (`wait_for`); between such waits
the process's reactor reads it. So a join costs its own thread one write and one read, and wakes
no other thread. The reactor also calls `due` when the next heartbeat is due.

When the connection breaks, whichever thread notices starts a thread that reconnects with backoff
and jitter, and then ends. Running workers keep running meanwhile.

Locks, none of which is held while a watcher runs:

* `changed` guards the session; it is notified of each change;
* `_reading` is held by the thread that reads: the reactor for a moment, or a waiting caller;
* `_sending` orders what goes out;
* `_switch` guards which connection is in use and whether it is watched; it is never held for long.
"""

import contextlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from rallypoint.deadline import Deadline
from rallypoint.errors import (
    AuthenticationError,
    RendezvousConnectionError,
    RendezvousStateError,
    StoreConnectionError,
)
from rallypoint.net import protocol as p
from rallypoint.net.connection import ClientConnection, ConnectionConfig, open_connection
from rallypoint.net.dialer import CancellableDeadline
from rallypoint.net.handshake import StandbyError
from rallypoint.rendezvous import timing, wire
from rallypoint.rendezvous.client.reactor import Reactor, reactor
from rallypoint.rendezvous.client.session import Request, Session
from rallypoint.rendezvous.coordinator import Watcher
from rallypoint.rendezvous.view import View

logger = logging.getLogger("rallypoint")

STOP_SECONDS = 1.0  # for a thread that reads or reconnects to notice that it must end
LONGEST_READ_SECONDS = 86400.0  # kernels limit a read's timeout; then it is read again
_BYE = p.frame(p.Bye())
_Result = TypeVar("_Result")


class Transport:
    """The connection of a session, for as long as the session lasts.

    Args:
        target: where the server is, and which run.
        session: of the node.
    """

    def __init__(self, target: ConnectionConfig, session: Session) -> None:
        self.target = target
        self.session = session
        self.changed = threading.Condition()
        self.local_address = ""  # the local end of the connection, "" before there was one
        self.trouble = ""  # why the last attempt to connect failed
        self._watchers: list[Watcher] = []
        self._pid = os.getpid()
        self._starting = threading.Lock()
        self._started = False
        self._stopping = threading.Event()
        self._attempt: CancellableDeadline | None = None
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self._reader = 0  # which thread reads
        self._switch = threading.Lock()
        self._link: ClientConnection | None = None
        self._ready = False  # requests go out now; else the greetings make up for them
        self._disconnected = True  # nobody reads: not connected yet, or not any more
        self._watched = False
        self._reactor: Reactor | None = None
        self._returning: threading.Thread | None = None
        self._heard_at = 0.0
        self._heartbeat_at = 0.0

    # -- for callers ------------------------------------------------------------------------

    def start(self, deadline: Deadline, *, reads: bool = False) -> None:
        """Connect, if not yet.

        Args:
            deadline: until when to try.
            reads: the caller waits for an answer next, so the reactor need not read yet.

        Raises:
            RendezvousConnectionError: what was tried, for how long, or what ended the session.
            RendezvousStateError: after `stop`, or in a forked child.
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
                self._open(deadline)
                self._started = True
        finally:
            self._starting.release()
        if not reads:
            self._give_to_reactor()

    def _open(self, deadline: Deadline) -> None:
        self._attempt = CancellableDeadline(deadline.remaining())
        try:
            link = open_connection(self.target, self._attempt)
        except AuthenticationError as error:
            raise RendezvousConnectionError(str(error)) from error
        except StoreConnectionError as error:
            self._refuse_if_over()
            raise RendezvousConnectionError(
                f"run {self.target.run!r}: {error} (join={deadline.timeout:g} s)"
            ) from error
        with self._sending:
            in_use = self._adopt(link)
        if not in_use:
            self._refuse_if_over()
        self._disconnected = False
        self._reactor = reactor()
        self._heartbeat_at = time.monotonic() + self.session.heartbeat_seconds
        self.update(Session.connected)
        self._reactor.call_at(self._heartbeat_at, self)

    def _refuse_if_over(self) -> None:
        if self.session.over or self._pid != os.getpid():
            how = "shut down" if self.session.over else "made before a fork"
            raise RendezvousStateError(
                f"run {self.target.run!r}: this handler was {how}; make a new one"
            )

    def raise_failure(self) -> None:
        """Raise what ended the session, if something did."""
        error = self.session.view.error
        if error is not None:
            raise RendezvousConnectionError(
                f"the session with {self.target.where} has failed: {error}"
            ) from error

    def update(self, change: Callable[[Session], _Result]) -> _Result:
        """Change the session, and call the watchers if its view has changed."""
        with self.changed:
            before = self.session.view
            result = change(self.session)
            view = self.session.view
            self.changed.notify_all()
        if view is not before and view != before:
            self._notify(view)
        return result

    def _notify(self, view: View) -> None:
        """Call the watchers; one that fails harms nobody else."""
        for watcher in list(self._watchers):
            try:
                watcher(view)
            except Exception:
                logger.exception("a watcher of run %r has failed", self.target.run)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with each new view, until the returned function is called."""
        with self.changed:
            self._watchers.append(watcher)

        def end() -> None:
            with self.changed:
                if watcher in self._watchers:
                    self._watchers.remove(watcher)

        return end

    def send(self, data: bytes) -> None:
        """Send frames; without a connection nothing, since the greetings make up for it."""
        with self._sending:
            link = self._link
            if link is None or not self._ready:
                return
            try:
                link.send(data)
            except StoreConnectionError:
                link.interrupt()  # the thread that reads notices, reconnects and resumes

    def call(self, request: Request, deadline: Deadline) -> wire.Answer | None:
        """Send a request and wait for its response; it is sent again after a reconnect.

        Returns:
            The answer to a question, None for an event that is stored.

        Raises:
            RendezvousStateError: the token does not allow the request.
            RendezvousConnectionError: there is no response before the deadline or the end.
        """
        session, where = self.session, self.target.where
        done = self.wait_for(
            lambda: session.is_answered(request), deadline.remaining(), request.frame
        )
        with self.changed:
            response = session.take_response(request)
        if isinstance(response, wire.Denied):
            raise RendezvousStateError(f"{where}: {response.why}")
        if response is not None:
            return response if isinstance(response, wire.Answer) else None
        self.raise_failure()
        if done:
            raise RendezvousConnectionError(
                f"the session with {where} was ended before the answer came"
            )
        now = "connected" if session.view.connected else f"not connected: {self.trouble}"
        raise RendezvousConnectionError(
            f"the server at {where} did not answer in {deadline.timeout:g} s ({now})"
        )

    def wait_for(self, done: Callable[[], bool], timeout: float, request: bytes = b"") -> bool:
        """Wait until `done`, at most `timeout` seconds; return whether it is.

        `changed` must not be held. What makes `done` true must come from the server, or be
        followed by an answer of the server (as a `leave` of another thread is).

        Args:
            done: called after each change.
            timeout: seconds.
            request: frames, sent after this thread has taken over reading, so that the answer
                wakes only this thread.
        """
        if self._pid != os.getpid():
            self._refuse_if_over()
        deadline = Deadline(timeout)
        link = self._take_reading()
        try:
            if request:
                self.send(request)
            if link is not None and self._read_until(link, done, deadline):
                return True
        finally:
            if link is not None:
                self._reader = 0
                self._reading.release()
                self._give_to_reactor()
        with self.changed:
            return self.changed.wait_for(done, deadline.remaining())

    def stop(self) -> None:
        """End session and connection; within about a second, whatever is being done with them."""
        self.update(Session.stop)  # nobody need wait for answers any more
        if self._pid != os.getpid():  # free what a fork has copied; the parent keeps its own
            if self._link is not None:
                self._link.abandon()
            return
        self._stopping.set()
        if self._attempt is not None:
            self._attempt.cancel()
        with self._switch:
            returning = self._returning
        if returning is not None and returning is not threading.current_thread():
            returning.join(STOP_SECONDS)
        self._close()

    # -- reading ----------------------------------------------------------------------------

    def _give_to_reactor(self) -> None:
        """Let the reactor read from now on."""
        with self._switch:
            if self._watched or self._disconnected or self._link is None or self._reactor is None:
                return
            self._reactor.watch(self._link.sock, self)
            self._watched = True

    def _take_reading(self) -> ClientConnection | None:
        """Take the reading from the reactor; None if another thread reads, or nobody can."""
        if not self._reading.acquire(blocking=False):
            return None
        with self._switch:
            if self._link is not None and not self._disconnected:
                self._unwatch()
                self._reader = threading.get_ident()
                return self._link
        self._reading.release()
        return None

    def _unwatch(self) -> None:
        if self._watched and self._reactor is not None and self._link is not None:
            self._reactor.unwatch(self._link.sock)
        self._watched = False

    def _read_until(
        self, link: ClientConnection, done: Callable[[], bool], deadline: Deadline
    ) -> bool:
        try:
            while not done():
                left = deadline.capped(LONGEST_READ_SECONDS)
                if left <= 0.0:
                    return False
                link.read_timeout(max(0.001, left))
                self._receive(link.receive())
            return True
        except StoreConnectionError as error:
            self._lost(link, error)
        except Exception as error:
            self.failed(error)
        except BaseException:  # a signal's handler has raised: a frame may be half read
            self._lost(link, StoreConnectionError(f"reading from {link.where} was interrupted"))
            raise
        return False

    def _receive(self, bodies: list[bytes]) -> None:
        self._heard_at = time.monotonic()
        session = self.session
        for body in bodies:
            with self.changed:
                before = session.view
                warning = session.receive(body)
                view = session.view
                self.changed.notify_all()
            if warning:
                logger.warning("run %r: %s", self.target.run, warning)
            if view is not before and view != before:
                self._notify(view)

    def readable(self) -> None:
        """The socket can be read; the reactor calls this."""
        if not self._reading.acquire(blocking=False):
            return  # a caller reads
        try:
            self._reader = threading.get_ident()
            link = self._link
            if link is not None and not self._disconnected:
                try:
                    self._receive(link.receive_some())
                except StoreConnectionError as error:
                    self._lost(link, error)
        except BaseException as error:  # handed to the callers, never swallowed
            self.failed(error)
        finally:
            self._reader = 0
            self._reading.release()

    def due(self, now: float) -> float | None:
        """A heartbeat is due; the reactor calls this. Returns when the next one is."""
        late = now - self._heartbeat_at
        self._heartbeat_at = now + self.session.heartbeat_seconds
        link, silent = self._link, now - self._heard_at
        if self._stopping.is_set():
            return None
        if link is None or self._disconnected:
            return self._heartbeat_at
        frame = self.session.heartbeat(silent, late)
        if frame is None:
            self.target.servers.failed(link.endpoint)
            text = f"the server at {link.where} has sent no data for {silent:.1f} s"
            self._lost(link, StoreConnectionError(text))
        elif self._sending.acquire(blocking=False):  # else something else is sent just now
            try:
                if link.takes_more():
                    link.send(frame)
            except StoreConnectionError:
                link.interrupt()  # the thread that reads notices
            finally:
                self._sending.release()
        if not self._reading.locked():
            self._give_to_reactor()
        return self._heartbeat_at

    def failed(self, error: BaseException) -> None:
        """A fault of this thread or of the reactor ends the session."""
        self._stopping.set()
        self.update(lambda session: session.fail(error))
        self._close()  # so that the server need not wait for a lease of heartbeats

    # -- connections that come and go ---------------------------------------------------------

    def _lost(self, link: ClientConnection, error: StoreConnectionError) -> None:
        """Reconnect in a thread that ends once that is done; once for each connection."""
        link.interrupt()  # threads that read or send in it return
        with self._switch:
            if link is not self._link or self._disconnected or self._stopping.is_set():
                return
            self._unwatch()
            self._ready, self._disconnected = False, True
            returning = threading.Thread(
                target=self._return, args=(error,), name="rallypoint-session", daemon=True
            )
            returning.start()
            self._returning = returning

    def _return(self, error: StoreConnectionError) -> None:
        try:
            self._reconnect(error)
        except BaseException as failure:  # handed to the callers, never swallowed
            self.failed(failure)

    def _reconnect(self, error: StoreConnectionError) -> None:
        """Reconnect, as often as it takes; the server decides what becomes of the node."""
        logger.warning("%s; reconnecting, workers keep running", error)
        self.trouble = str(error)
        self.update(Session.disconnected)
        while not self._stopping.is_set():
            self._attempt = CancellableDeadline(timing.ATTEMPT_SECONDS)
            try:
                link = open_connection(self.target, self._attempt, once=True)
                with self._sending:
                    if not self._adopt(link):
                        return
                    with self.changed:
                        greetings = self.session.greetings()
                    for data in greetings:
                        link.send(data)
            except AuthenticationError:
                raise
            except StoreConnectionError as failure:
                self.trouble = str(failure)
                jitter = 0.5 + random.random()  # noqa: S311 - no secret
                standby = isinstance(failure, StandbyError)
                self._stopping.wait(self.session.retry_seconds(standby, jitter))
                continue
            self._disconnected = False
            self.update(Session.connected)
            logger.warning("reconnected to %s", self.target.where)
            self._give_to_reactor()
            return

    def _adopt(self, link: ClientConnection) -> bool:
        """Make `link` the current connection.

        `_sending` is held, so nothing comes before the greetings.
        """
        with self._switch:
            before, self._link = self._link, None if self._stopping.is_set() else link
            self._ready = self._link is not None
        if before is not None:
            self._close_when_unread(before)
        if self._link is None:
            link.close()
            return False
        self._heard_at = time.monotonic()
        self.local_address = link.sock.getsockname()[0].split("%")[0]
        return True

    def _close_when_unread(self, link: ClientConnection) -> None:
        """Close a connection once no thread reads in it: its descriptor may be used again."""
        mine = self._reader == threading.get_ident()
        read = not mine and self._reading.acquire(timeout=STOP_SECONDS)
        link.close()
        if read:
            self._reading.release()

    def _close(self) -> None:
        with self._sending:
            with self._switch:
                self._unwatch()
                link, self._link, self._ready, self._disconnected = self._link, None, False, True
            if link is not None:
                with contextlib.suppress(StoreConnectionError):  # closed already
                    link.send(_BYE)
                link.interrupt()
                self._close_when_unread(link)
