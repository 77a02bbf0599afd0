"""The coordinator without a server: every node runs the core.

Each request reads the state from a `RendezvousBackend`, advances it, and writes it back with
compare-and-set (`cas_loop`). A thread (`node_loop`) sends heartbeats and watches for changes.

For small jobs: each node writes every third of the lease and all others read each write, so the
traffic grows with the square of the number of nodes.
"""

import logging
import os
import time
from collections.abc import Callable
from typing import NoReturn

from rallypoint.core import explain
from rallypoint.core.advance import Step, timers
from rallypoint.core.events import (
    SHUT_OUT,
    Assignment,
    Beat,
    Close,
    Event,
    Fail,
    Finish,
    Join,
    Leave,
    Notify,
    Refusal,
    Refused,
    RunClosed,
    SettingsHeld,
)
from rallypoint.core.state import (
    Failure,
    Node,
    NodeId,
    RunState,
    Settings,
)
from rallypoint.deadline import Clock, Deadline
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.net import addresses
from rallypoint.rendezvous.api import store_endpoint
from rallypoint.rendezvous.coordinator import Coordinator, Order, Report, Watcher
from rallypoint.rendezvous.join_timeout import wait_for_seat
from rallypoint.rendezvous.reports.report import report_of
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.serverless.cas_loop import Pause, pause
from rallypoint.rendezvous.serverless.node_loop import NodeLoop
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.rendezvous.timing import HEARTBEATS_PER_LEASE
from rallypoint.rendezvous.view import View, run_closed, seat_of
from rallypoint.store.api import Store
from rallypoint.store.prefix import PrefixStore
from rallypoint.wallclock import now_text

_log = logging.getLogger(__name__)


class ServerlessCoordinator(Coordinator):
    """One node's way to a run whose state is in a backend.

    Args:
        backend: holds the run's state.
        store: shared by all nodes of the run; each round gets a part of it.
        settings: what this node asks for (run id, lease, close timeout).
        clock: monotonic clock in seconds.
        threaded: False: no thread; the caller calls `step` (tests, simulations).
        owns_store: close the store at `shutdown`.
        pause: waits between two attempts, for a number of seconds.
    """

    def __init__(
        self,
        backend: RendezvousBackend,
        store: Store,
        settings: RendezvousSettings,
        *,
        clock: Clock = time.monotonic,
        threaded: bool = True,
        owns_store: bool = False,
        pause: Pause = pause,
    ) -> None:
        self._base_store = store
        self._store = PrefixStore(f"rallypoint/run/{settings.run_id}", store)
        self._run_id = settings.run_id
        self._settings = settings
        self._threaded = threaded
        self._owns_store = owns_store
        self._label = f"a node that has not joined (pid {os.getpid()})"
        where = f"backend {backend.name} ({_unwrapped(store)!r})"
        lease = settings.lease.total_seconds()
        self._loop = NodeLoop(backend, settings.run_id, where, lease, clock, pause)

    # -- joining --------------------------------------------------------------------------

    def join(
        self, node: Node, settings: Settings, deadline: Deadline, why: str, new_incarnation: bool
    ) -> Assignment:
        self.ask_to_join(node, settings, deadline, why, new_incarnation)
        if self._threaded:
            self._loop.start()
        while True:
            with self._loop.changed:
                left = wait_for_seat(
                    self._loop.changed.wait_for,
                    lambda: self._loop.view,
                    self._is_decided,
                    deadline,
                )
            if left is None:
                return self._give_up(node, deadline)
            deadline = left
            seat = self.outcome()
            if seat is not None:
                return seat
            # A round with this node was sealed and is over already: join the next one.
            self.ask_to_join(node, settings, deadline, why, False)

    def ask_to_join(
        self, node: Node, settings: Settings, deadline: Deadline, why: str, new_incarnation: bool
    ) -> None:
        """Ask for the next round without waiting for it; `outcome` returns the result."""
        loop = self._loop
        same = loop.node is not None and loop.node.id == node.id
        shut_out = loop.view.fenced is not None
        if not same or shut_out or (new_incarnation and loop.view.closed is not None):
            loop.forget()
        self._label = node.label
        incarnation, after = loop.known
        request = Join(node, settings, incarnation, after, why, new_incarnation)
        step = loop.ask(lambda _: [request], deadline, joining=node)
        self._check(step, node.id)

    def outcome(self) -> Assignment | None:
        """Return the seat once there is one, None while waiting or if the round is over.

        Raises as `join` does.
        """
        self._loop.raise_error()
        view = self._loop.view
        if view.closed is not None:
            raise _closed_error(self._run_id, view.closed)
        if view.fenced is not None:
            self._raise_refused(view.fenced)
        if self._loop.node is None:
            raise RendezvousStateError(f"run {self._run_id!r}: this node left while it was joining")
        return None if view.opened else view.assignment

    def _is_decided(self) -> bool:
        view = self._loop.view
        told_so_far = (view.assignment, view.opened, view.closed, view.fenced, view.error)
        left = self._loop.node is None
        return left or any(each is not None for each in told_so_far)

    def _give_up(self, node: Node, deadline: Deadline) -> Assignment:
        seats: list[Assignment | None] = []

        def withdraw(state: RunState) -> list[Event]:
            seats[:] = [seat_of(state, node.id)]
            why = f"it gave up after waiting {deadline.timeout:g} s"
            return [] if seats[0] else [Leave(node.id, why)]

        before = self._loop.state
        step = self._loop.ask(withdraw, self._close_deadline())
        if seats[0] is not None:  # sealed at the last moment
            return seats[0]
        if (closed := run_closed(step.state)) is not None:
            raise _closed_error(self._run_id, closed)
        self._loop.forget()
        text = "the run's state was never seen" if before is None else explain.describe(before)
        missing = () if before is None else explain.missing(before)
        raise RendezvousTimeoutError(
            f"run {self._run_id!r}: no round was complete within {deadline.timeout:g} s "
            f"(join_timeout) at {self._loop.where}: {text}"
            + (f"; missing: {', '.join(missing)}" if missing else "")
        )

    # -- other requests -------------------------------------------------------------------

    def leave(self, why: str, deadline: Deadline) -> None:
        node = self._loop.node
        if node is not None:
            self._loop.ask(lambda _: [Leave(node.id, why)], deadline, leaving=True)

    def finish(self, deadline: Deadline) -> None:
        node, seat = self._seated("finish")
        event = Finish(node.id, seat.incarnation, seat.round, now_text())
        self._check(self._loop.ask(lambda _: [event], deadline), node.id)

    def fail(self, failure: Failure, deadline: Deadline) -> None:
        node, seat = self._seated("fail")
        event = Fail(node.id, seat.incarnation, seat.round, failure)
        self._check(self._loop.ask(lambda _: [event], deadline), node.id)

    def close(self, why: str, deadline: Deadline) -> None:
        seat = self.view().assignment
        known = seat.incarnation if seat else 0
        self._loop.ask(lambda _: [Close(self._label, why, now_text(), known)], deadline)

    def notice(self, why: str, seconds: float | None, deadline: Deadline) -> None:
        node = self._loop.node
        if node is None:
            raise RendezvousStateError(f"run {self._run_id!r}: notice: this node has not joined")
        self._loop.ask(lambda _: [Notify(node.id, why, seconds=seconds)], deadline)

    def order(self, event: Order, deadline: Deadline) -> None:
        """Any node that can write the state may do this."""
        self._loop.ask(lambda _: [event], deadline)

    def heartbeat(self) -> None:
        """Store one heartbeat now."""
        node = self._loop.node
        if node is not None:
            limit = Deadline(self._settings.lease / HEARTBEATS_PER_LEASE)
            self._loop.ask(lambda _: [Beat(node.id)], limit)

    def report(self, deadline: Deadline) -> Report:
        """Return what the run is doing (one read)."""
        state = self._loop.ask(lambda _: [], deadline).state
        return report_of(state, self._loop.where, timers=[(t, None) for t in timers(state)])

    # -- what is known ----------------------------------------------------------------------

    def participants(self, deadline: Deadline) -> tuple[Node, ...]:
        return self._loop.members  # of the round of the last seat; no request

    def view(self) -> View:
        return self._loop.view

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        return self._loop.watch(watcher)

    def local_address(self, deadline: Deadline) -> str:
        """The address from which this node reaches the store's server, or a far host."""
        host, port = store_endpoint(_unwrapped(self._base_store)) or (None, 0)
        return addresses.local_address(host, port)

    def store(self) -> Store:
        return self._store

    def step(self) -> float:
        """Do what the background thread does at each change (see `NodeLoop.step`)."""
        return self._loop.step()

    def shutdown(self, deadline: Deadline) -> bool:
        """Leave if joined, stop the thread; True if that went well."""
        loop, well = self._loop, True
        loop.halt()
        leaving = loop.node is not None
        try:
            self.leave("it shut down", deadline)
        except RendezvousError as error:
            well = False
            _log.warning("run %r: leaving at shutdown failed: %s", self._run_id, error)
        if leaving:  # the write wakes the thread; without one it ends after its pause
            loop.wait_for_end(deadline.remaining())
        if self._owns_store:
            self._base_store.close()
        return well

    # -- helpers ----------------------------------------------------------------------------

    def _close_deadline(self) -> Deadline:
        return Deadline(self._settings.timeout.close)

    def _seated(self, doing: str) -> tuple[Node, Assignment]:
        with self._loop.changed:
            node, seat = self._loop.node, self._loop.view.assignment
        if node is None or seat is None:
            raise RendezvousStateError(f"run {self._run_id!r}: {doing}: this node is in no round")
        return node, seat

    def _check(self, step: Step, node: NodeId) -> None:
        for send in step.messages:
            if isinstance(send.message, SettingsHeld) and node in send.to:
                _log.warning("run %r: %s", self._run_id, send.message.why)
            if isinstance(send.message, Refused) and node in send.to:
                if send.message.refusal in SHUT_OUT:  # maybe before it knew that it had joined
                    self._loop.shut_out(send.message)
                self._raise_refused(send.message)

    def _raise_refused(self, refused: Refused) -> NoReturn:
        if refused.refusal is Refusal.CLOSED:
            raise RendezvousClosedError(refused.why)
        raise RendezvousStateError(f"run {self._run_id!r}: {refused.why}")


def _unwrapped(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _closed_error(run_id: str, closed: RunClosed) -> RendezvousError:
    when = f" at {closed.at}" if closed.at else ""
    if closed.finished:
        return RendezvousGracefulExitError(
            f"run {run_id!r} has finished{when}: {closed.why}; this node is not needed any more"
        )
    failures = "".join(f"; {failure.label}" for failure in closed.failures)
    return RendezvousClosedError(
        f"run {run_id!r} was closed{when} by {closed.by}: {closed.why}{failures}"
    )
