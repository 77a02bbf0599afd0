"""Runs the core for one node of a serverless run: requests, and the background thread.

`ask` makes one request in the caller's thread. `step` is what the thread does at each change: send
a heartbeat every third of the lease, detect lost nodes (`failure_detector`), derive this node's
view (`rendezvous.view.observe`), and call the watchers. This node's own writes wake the thread as
all others do, so that watchers are called there, in order.

A backend that is out of reach is tried again with growing, jittered pauses: by `ask` until its
deadline, by the thread for ever (`view.connected` is False meanwhile). Any other failure of the
thread is kept in `view.error`, and the next call raises it.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from rallypoint.core.advance import Step
from rallypoint.core.events import Event, Refused
from rallypoint.core.state import Node, RunState, Sealed, find
from rallypoint.deadline import Clock, Deadline
from rallypoint.errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.coordinator import Watcher
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.cas_loop import CasLoop, Decide, Pause, pause
from rallypoint.rendezvous.serverless.failure_detector import FailureDetector
from rallypoint.rendezvous.view import View, observe, run_closed

_log = logging.getLogger(__name__)
_BACKOFF_FIRST_SECONDS, _BACKOFF_MOST_SECONDS = 0.05, 2.0
_THREAD_END_SECONDS = 1.0


def _backoff(failures: int) -> float:
    most = min(_BACKOFF_MOST_SECONDS, _BACKOFF_FIRST_SECONDS * 2 ** min(failures, 10))
    return random.uniform(most / 2, most)  # noqa: S311 - jitter


def _cleaned(events: Iterable[Event]) -> list[Event]:
    return [wire.cleaned(event) for event in events]


class NodeLoop:
    """Runs the core for one node over a backend.

    Args:
        backend: holds the run's state.
        run_id: name of the run.
        where: the backend's place, for people.
        lease_seconds: limit of one step of the thread.
        clock: monotonic clock in seconds, for the failure detector.
        pause: waits between two attempts, for a number of seconds.
    """

    def __init__(
        self,
        backend: RendezvousBackend,
        run_id: str,
        where: str,
        lease_seconds: float,
        clock: Clock,
        pause: Pause = pause,
    ) -> None:
        self.where = where
        self._backend = backend
        self._run_id = run_id
        self._lease_seconds = lease_seconds
        self._turn_lock = threading.Lock()  # one request at a time; guards the next two
        self._wait = pause
        self._cas_loop = CasLoop(backend, run_id, pause)
        self._detector = FailureDetector(clock)
        self.changed = threading.Condition()  # guards everything below
        self.view = View()
        self.node: Node | None = None  # None while not a member
        self.state: RunState | None = None  # last seen as a member
        self.known = (0, 0)  # incarnation and round of the last seat
        self.members: tuple[Node, ...] = ()  # of that round, in rank order
        self._queued = self.view  # the last one that watchers were called with, or will be
        self._untold: deque[View] = deque()
        self._watchers: dict[object, Watcher] = {}
        self._thread: threading.Thread | None = None
        self._halt = threading.Event()

    # -- requests -------------------------------------------------------------------------

    def ask(
        self,
        decide: Decide,
        deadline: Deadline,
        joining: Node | None = None,
        leaving: bool = False,
    ) -> Step:
        """Make one request, trying again while the backend is out of reach.

        Args:
            decide: returns the events for a state; may be called again.
            deadline: of the whole request.
            joining: the node that the request lets join.
            leaving: whether this node leaves by it.

        Raises:
            RendezvousConnectionError, RendezvousTimeoutError: the deadline has passed.
            RendezvousStateError: the stored state cannot be used.
        """
        self.raise_error()
        failures = 0
        while True:
            try:
                with self._turn(deadline):
                    step = self._cas_loop.run(lambda state: _cleaned(decide(state)), deadline)
                    self._observe(step.state, joining, leaving)
                return step
            except RendezvousConnectionError as error:
                failures += 1
                pause = _backoff(failures)
                if deadline.remaining() <= pause:
                    raise RendezvousConnectionError(
                        f"run {self._run_id!r}: {self.where} was out of reach for "
                        f"{deadline.elapsed():.1f} s ({failures} attempts): {error}"
                    ) from error
                self._wait(pause)

    def raise_error(self) -> None:
        """Raise the failure of the background thread, if there is one."""
        error = self.view.error
        if error is not None:
            raise RendezvousStateError(
                f"run {self._run_id!r}: the background thread of {self.where} failed: {error!r}"
            ) from error

    def forget(self) -> None:
        """Forget earlier rounds: this node joins as a new one."""
        with self.changed:
            self.node, self.state, self.known, self.members = None, None, (0, 0), ()
            self._replace_view(View(connected=self.view.connected))

    def shut_out(self, refused: Refused) -> None:
        """Set in the view that this node's id is refused (rule L2)."""
        self._set_view(fenced=refused, parked=None, waiting=0)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with each new view, from the background thread."""
        key = object()
        with self.changed:
            self._watchers[key] = watcher

        def end() -> None:
            with self.changed:
                self._watchers.pop(key, None)

        return end

    @contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        if not self._turn_lock.acquire(timeout=max(deadline.remaining(), 0.001)):
            raise RendezvousTimeoutError(
                f"run {self._run_id!r}: another call of this node was busy with {self.where} "
                f"for {deadline.timeout:g} s"
            )
        try:
            yield
        finally:
            self._turn_lock.release()

    # -- the background thread --------------------------------------------------------------

    def step(self) -> float:
        """Read the state, send what is due, and call the watchers.

        Returns:
            Seconds until the next step, if nothing changes before.

        Raises:
            RendezvousConnectionError, RendezvousStateError: as the backend does.
        """
        due: list[Event] = []

        def decide(state: RunState) -> list[Event]:
            due[:] = self._detector.look(state, self.node.id if self.node else None)
            return due

        limit = Deadline(self._lease_seconds)
        with self._turn(limit):
            try:
                step = self._cas_loop.run(decide, limit)
            except RendezvousError:
                self._detector.interrupted()
                raise
            self._detector.settle(due)
            self._observe(step.state)
            pause = self._detector.pause()
        self._tell()
        return pause

    def start(self) -> None:
        """Start the background thread if it does not run."""
        with self.changed:
            if self._thread is None:
                name = f"rallypoint-serverless-{self._run_id}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def halt(self) -> None:
        """Let the thread end after its present wait."""
        self._halt.set()

    def wait_for_end(self, seconds: float) -> None:
        """Wait a while for the thread to end; one that waits for a change may need longer."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(min(seconds, _THREAD_END_SECONDS))

    def _run(self) -> None:
        failures = 0
        while not self._halt.is_set():
            try:
                pause = self.step()
                failures = 0
                self._backend.wait_for_change(self._cas_loop.token, pause)
            except (RendezvousConnectionError, RendezvousTimeoutError) as error:
                failures += 1
                self._disconnected(error)
                self._halt.wait(_backoff(failures))
            except Exception as error:  # kept in the view, and raised by the next call
                if self._halt.is_set():
                    return  # shutdown closes the store under a thread that waits for a change
                _log.error("run %r: the thread of %s failed: %r", self._run_id, self.where, error)
                self._set_view(error=error)
                self._tell()
                return

    def _disconnected(self, error: RendezvousError) -> None:
        if self.view.connected and not self._halt.is_set():
            _log.warning("run %r: %s is out of reach: %s", self._run_id, self.where, error)
        self._set_view(connected=False)
        self._tell()

    def _tell(self) -> None:
        """Call the watchers, in order: only the background thread does.

        A watcher that fails must not end the thread: the node would be lost.
        """
        while True:
            with self.changed:
                if not self._untold:
                    return
                view, watchers = self._untold.popleft(), list(self._watchers.values())
            for watcher in watchers:
                try:
                    watcher(view)
                except Exception:
                    _log.exception("a watcher of run %r has failed", self._run_id)

    # -- what was seen ------------------------------------------------------------------------

    def _observe(self, state: RunState, joining: Node | None = None, leaving: bool = False) -> None:
        """Update the view from a state that was read or stored; called in their order."""
        with self.changed:
            if joining is not None and find(state, joining.id) is not None:
                if self.node is None or self.node.id != joining.id:
                    self._detector.beaten()  # it begins to be seen; joining again is no beat
                self.node = joining
                # Joining again answers the end of the round before, and of a closed run.
                self.view = View(connected=self.view.connected, error=self.view.error)
            if leaving:
                self.node, self.view = None, View()
            if self.node is None:
                self.state = None
                self._set_view(connected=True, closed=run_closed(state))
                return
            before, self.state = self.state, state
            view = observe(self.view, state, self.node.id, before)
            self._remember(state, view)
            self._replace_view(view)

    def _remember(self, state: RunState, view: View) -> None:
        seat = view.assignment
        if seat is None or view.opened is not None or not isinstance(state.phase, Sealed):
            return
        if (seat.incarnation, seat.round) != self.known:
            self.known = (seat.incarnation, seat.round)
            self.members = tuple(each.node for each in state.phase.record.seats)

    def _set_view(self, **changes: Any) -> None:
        with self.changed:
            self._replace_view(msgspec.structs.replace(self.view, **changes))

    def _replace_view(self, view: View) -> None:
        with self.changed:
            if view != self._queued:
                self._queued = view
                self._untold.append(view)
            self.view = view
            self.changed.notify_all()
