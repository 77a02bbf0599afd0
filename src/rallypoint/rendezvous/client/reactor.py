"""One thread for all sessions of a process: it reads their connections and keeps their timers.

A caller who waits for an answer reads it itself (see `session`), so that no other thread has to
wake for it. In between, a session's socket is watched here; and when its next beat is due it is
called from here. What it then does must not block: it would hold up all others.

The thread begins with the first session and stays, asleep while there is none. A forked child
gets a reactor of its own and leaves its parent's alone, whose selector the two would share.

A selector takes changes while another thread waits in it: epoll and kqueue, which
`DefaultSelector` is on Linux and macOS, are made for that.
"""

import contextlib
import heapq
import itertools
import logging
import math
import os
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rallypoint.net.tls_socket import TLSSocket

logger = logging.getLogger("rallypoint")


class Member(Protocol):
    """What the reactor calls, from its thread; nothing of it may block or raise."""

    def readable(self) -> None:
        """The socket that is watched has something to read, or has ended."""

    def due(self, now: float) -> float | None:
        """Do what is due; return when to be called again (monotonic), None for never."""

    def failed(self, error: BaseException) -> None:
        """The reactor has failed: nothing will be read or called any more."""


class Reactor:
    """Sockets and times of members, and the thread that waits for them."""

    def __init__(self) -> None:
        self.over = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._times: list[tuple[float, int, Member]] = []
        self._numbers = itertools.count()
        self._next = math.inf  # until when the thread sleeps
        threading.Thread(target=self._run, name="rallypoint-reactor", daemon=True).start()

    def watch(self, sock: "socket.socket | TLSSocket", member: Member) -> None:
        """Call `member.readable` whenever the socket can be read, until `unwatch`."""
        self._selector.register(sock, selectors.EVENT_READ, member)

    def unwatch(self, sock: "socket.socket | TLSSocket") -> None:
        """Watch it no more; a call that has begun is not waited for."""
        self._selector.unregister(sock)

    def call_at(self, when: float, member: Member) -> None:
        """Call `member.due` at that monotonic time, and then as often as it says."""
        with self._lock:
            heapq.heappush(self._times, (when, next(self._numbers), member))
            sooner = when < self._next
        if sooner:
            self._wake.send(b"x")

    # -- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                for key, _events in self._selector.select(self._seconds_left()):
                    if key.data is None:
                        self._woken.recv(4096)
                    else:
                        key.data.readable()
                self._call_due()
        except BaseException as error:  # handed to the members, never swallowed
            logger.exception("the thread of all sessions has failed")
            self._fail(error)

    def _seconds_left(self) -> float | None:
        with self._lock:
            if not self._times:
                self._next = math.inf
                return None
            self._next = self._times[0][0]
        return max(0.0, self._next - time.monotonic())

    def _call_due(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                if not self._times or self._times[0][0] > now:
                    return
                member = heapq.heappop(self._times)[2]
            again = member.due(now)
            if again is not None:
                self.call_at(again, member)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self.over = True
            members = {id(member): member for _, _, member in self._times}
        keys = self._selector.get_map() or {}
        members |= {id(key.data): key.data for key in keys.values() if key.data is not None}
        for member in members.values():
            with contextlib.suppress(Exception):  # each must hear of it; the cause is logged
                member.failed(error)
        self._selector.close()
        self._woken.close()
        self._wake.close()


class _Present:
    """This process's reactor, once it has one."""

    def __init__(self) -> None:
        self.making = threading.Lock()
        self.reactor: Reactor | None = None
        self.inherited: list[Reactor | None] = []  # kept, so that nothing of it is closed

    def forget(self) -> None:
        """Begin anew, in a child."""
        self.inherited.append(self.reactor)
        self.making, self.reactor = threading.Lock(), None

    def get(self) -> Reactor:
        with self.making:
            if self.reactor is None or self.reactor.over:
                self.reactor = Reactor()
            return self.reactor


_present = _Present()
os.register_at_fork(after_in_child=_present.forget)


def reactor() -> Reactor:
    """Return this process's reactor."""
    return _present.get()
