"""A session's connection: in use, away or over, and read by one thread at a time.

Whoever waits for an answer reads it (`read_until`); between such waits the process's reactor
does. So a join costs its own thread one write and one read, and wakes no other. The reactor
also says when to beat, every third of the lease; a server that says nothing for a whole lease
counts as gone.

When a connection breaks, whoever notices starts a thread that reconnects with backoff and
jitter, resumes, and ends.

Locks, none of which is held while somebody else's code runs:

* `_reading` is held by whoever reads: the reactor for a moment, or a caller who waits;
* `_sending` orders what goes out;
* `_switch` guards which link is in use and whether it is watched; never held for long.
"""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from rallypoint.deadline import Deadline
from rallypoint.errors import AuthenticationError, StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.connection import Link, Target, open_link
from rallypoint.net.dialer import Attempt
from rallypoint.net.handshake import StandbyError
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client import dialogue
from rallypoint.rendezvous.client.reactor import Reactor, reactor

logger = logging.getLogger("rallypoint")

STOP_SECONDS = 1.0  # for a thread that reads or reconnects to see that it shall end
LONGEST_READ_SECONDS = 86400.0  # then look again: what a kernel takes has its limits
_BEAT = p.frame(wire.Beat())
_BYE = p.frame(p.Bye())


class Owner(Protocol):
    """Whose connection it is."""

    def take(self, data: bytes) -> None:
        """Take one body that has come (StoreConnectionError: the connection shall end)."""

    def greetings(self) -> Iterable[bytes]:
        """Return the frames that go first on a new connection."""

    def tell_connected(self, connected: bool) -> None:
        """The connection is there, or is not any more."""

    def fail(self, error: BaseException) -> None:
        """Nothing will come any more, because of a fault."""


class Line:
    """One connection at a time, for as long as the session lasts.

    Args:
        target: where the server is, and which run.
        lease_seconds: as in the run's settings.
        owner: told of all that comes.
    """

    def __init__(self, target: Target, lease_seconds: float, owner: Owner) -> None:
        self.target = target
        self.local_address = ""
        self.trouble = ""
        self._owner = owner
        self._lease = lease_seconds
        self._set_pace()
        self._stopping = threading.Event()
        self._attempt: Attempt | None = None
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self._reader = 0  # which thread reads
        self._switch = threading.Lock()
        self._link: Link | None = None
        self._ready = False  # requests go out now; else the greetings make up for them
        self._away = True  # nobody reads: not connected yet, or not any more
        self._watched = False
        self._reactor: Reactor | None = None
        self._returning: threading.Thread | None = None
        self._heard_at = self._beat_at = 0.0

    # -- for the session ------------------------------------------------------------------

    def open(self, deadline: Deadline) -> bool:
        """Connect; return False if `stop` came first. Raises what `open_link` does."""
        self._attempt = Attempt(deadline.remaining())
        link = open_link(self.target, self._attempt)
        with self._sending:
            if not self._use(link):
                return False
        self._away = False
        self._reactor = reactor()
        self._beat_at = time.monotonic() + self._beat_seconds
        self._owner.tell_connected(True)
        self._reactor.call_at(self._beat_at, self)
        return True

    def send(self, data: bytes) -> None:
        """Send frames; while there is no connection nothing, the greetings make up for it."""
        with self._sending:
            link = self._link
            if link is None or not self._ready:
                return
            try:
                link.send(data)
            except StoreConnectionError:
                link.interrupt()  # whoever reads sees it, reconnects and resumes

    def read_until(
        self, done: Callable[[], bool], deadline: Deadline, request: bytes = b""
    ) -> bool:
        """Read until `done`, the deadline or the end of the connection, where nobody else reads.

        Returns whether it is done, as far as was seen here.

        Args:
            done: becomes true by what the server says, or with the end of the connection.
            deadline: until when.
            request: frames to send first: once the reactor would not wake for their answer.
        """
        link = self._borrow()
        try:
            if request:
                self.send(request)
            return link is not None and self._read_until(link, done, deadline)
        finally:
            if link is not None:
                self._reader = 0
                self._reading.release()
                self.rest()

    def rest(self) -> None:
        """Let the reactor read from now on."""
        with self._switch:
            if self._watched or self._away or self._link is None or self._reactor is None:
                return
            self._reactor.watch(self._link.sock, self)
            self._watched = True

    def stop(self) -> None:
        """End the connection; within about a second, whatever is being done with it."""
        self._stopping.set()
        if self._attempt is not None:
            self._attempt.cancel()
        with self._switch:
            returning = self._returning
        if returning is not None and returning is not threading.current_thread():
            returning.join(STOP_SECONDS)
        self._close()

    def abandon(self) -> None:
        """Free what a fork has copied; the parent goes on with its own."""
        if self._link is not None:
            self._link.abandon()

    # -- reading --------------------------------------------------------------------------

    def _borrow(self) -> Link | None:
        """Take the reading from the reactor; None if another thread reads, or nobody can."""
        if not self._reading.acquire(blocking=False):
            return None
        with self._switch:
            if self._link is not None and not self._away:
                self._unwatch()
                self._reader = threading.get_ident()
                return self._link
        self._reading.release()
        return None

    def _unwatch(self) -> None:
        if self._watched and self._reactor is not None and self._link is not None:
            self._reactor.unwatch(self._link.sock)
        self._watched = False

    def _read_until(self, link: Link, done: Callable[[], bool], deadline: Deadline) -> bool:
        try:
            while not done():
                left = deadline.capped(LONGEST_READ_SECONDS)
                if left <= 0.0:
                    return False
                link.read_timeout(max(0.001, left))
                self._take(link.receive())
            return True
        except StoreConnectionError as error:
            self._lost(link, error)
        except Exception as error:
            self.failed(error)
        except BaseException:  # a signal's handler has raised: a frame may be half read
            self._lost(link, StoreConnectionError(f"reading from {link.where} was interrupted"))
            raise
        return False

    def _take(self, bodies: list[bytes]) -> None:
        self._heard_at = time.monotonic()
        for data in bodies:
            self._owner.take(data)

    def readable(self) -> None:
        if not self._reading.acquire(blocking=False):
            return  # a caller reads
        try:
            self._reader = threading.get_ident()
            link = self._link
            if link is not None and not self._away:
                try:
                    self._take(link.receive_some())
                except StoreConnectionError as error:
                    self._lost(link, error)
        except BaseException as error:  # handed to the callers, never swallowed
            self.failed(error)
        finally:
            self._reader = 0
            self._reading.release()

    def due(self, now: float) -> float | None:
        """Beat; see `reactor.Member`."""
        late, self._beat_at = now - self._beat_at, now + self._beat_seconds
        link, silent = self._link, now - self._heard_at
        if self._stopping.is_set():
            return None
        if link is None or self._away:
            return self._beat_at
        if dialogue.is_gone(silent, late, self._silence_seconds):
            self.target.route.failed(link.place)
            text = f"the server at {link.where} has said nothing for {silent:.1f} s"
            self._lost(link, StoreConnectionError(text))
        elif self._sending.acquire(blocking=False):  # else something else is sent just now
            try:
                if link.takes_more():
                    link.send(_BEAT)
            except StoreConnectionError:
                link.interrupt()  # whoever reads sees it
            finally:
                self._sending.release()
        if not self._reading.locked():
            self.rest()
        return self._beat_at

    def failed(self, error: BaseException) -> None:
        """Tell the owner, and end; see `reactor.Member`."""
        self._stopping.set()
        self._owner.fail(error)
        self._close()  # the server shall not wait a lease for our beats

    # -- connections that come and go -----------------------------------------------------

    def _lost(self, link: Link, error: StoreConnectionError) -> None:
        """Come back, in a thread that ends once that is done; once for each connection."""
        link.interrupt()  # whoever reads or sends in it returns
        with self._switch:
            if link is not self._link or self._away or self._stopping.is_set():
                return
            self._unwatch()
            self._ready, self._away = False, True
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
        """Come back, as often as it takes; the node's fate is the server's to tell."""
        logger.warning("%s; reconnecting, workers are left alone", error)
        self.trouble = str(error)
        self._owner.tell_connected(False)
        pause = dialogue.FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            self._attempt = Attempt(dialogue.ATTEMPT_SECONDS)
            try:
                link = open_link(self.target, self._attempt, once=True)
                with self._sending:
                    if not self._use(link):
                        return
                    for data in self._owner.greetings():
                        link.send(data)
            except AuthenticationError:
                raise
            except StoreConnectionError as failure:
                self.trouble = str(failure)
                self._stopping.wait(pause * (0.5 + random.random()))  # noqa: S311 - jitter
                pause = dialogue.next_pause(pause, isinstance(failure, StandbyError))
                continue
            self._away = False
            self._owner.tell_connected(True)
            logger.warning("reconnected to %s", self.target.where)
            self.rest()
            return

    def _use(self, link: Link) -> bool:
        """Make it the link; `_sending` is held, so nothing comes before the greetings."""
        with self._switch:
            before, self._link = self._link, None if self._stopping.is_set() else link
            self._ready = self._link is not None
        if before is not None:
            self._free(before)
        if self._link is None:
            link.close()
            return False
        self._set_pace()
        self._heard_at = time.monotonic()
        self.local_address = link.sock.getsockname()[0].split("%")[0]
        return True

    def _set_pace(self) -> None:
        """How often to beat, and how long to wait for a sign of life: of several servers less."""
        several = self.target.route.several
        self._beat_seconds = dialogue.beat_seconds(self._lease, several)
        self._silence_seconds = dialogue.silence_seconds(self._lease, several)

    def _free(self, link: Link) -> None:
        """Close a link that has ended, once nobody reads in it: its number may be given anew."""
        mine = self._reader == threading.get_ident()
        read = not mine and self._reading.acquire(timeout=STOP_SECONDS)
        link.close()
        if read:
            self._reading.release()

    def _close(self) -> None:
        with self._sending:
            with self._switch:
                self._unwatch()
                link, self._link, self._ready, self._away = self._link, None, False, True
            if link is not None:
                with contextlib.suppress(StoreConnectionError):  # closed already
                    link.send(_BYE)
                link.interrupt()
                self._free(link)
