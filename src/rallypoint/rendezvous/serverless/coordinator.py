"""The coordinator without a server: every node runs the core in turn.

Each request is one exchange (read -> advance -> compare-and-set) with the state that a
`RendezvousBackend` holds; `shared_host` runs them, and the thread that beats and watches.

Meant for small jobs: each node writes once a third of the lease, and each write is read by
all others, so the traffic grows as the square of the number of nodes.
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
from rallypoint.rendezvous.serverless.failure_detector import BEATS_PER_LEASE
from rallypoint.rendezvous.serverless.host import SharedHost
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.rendezvous.view import View, run_closed, seat_of
from rallypoint.store.api import Store
from rallypoint.store.prefix import PrefixStore
from rallypoint.wallclock import now_text

_log = logging.getLogger(__name__)


class SharedCoordinator(Coordinator):
    """One node's way to a run whose state is in a backend.

    Args:
        backend: holds the run's state.
        store: shared by all nodes of the run; the rounds get parts of it.
        settings: what this node asks for (run id, lease, close timeout).
        clock: monotonic clock in seconds.
        threaded: False leaves it to the caller to call `step` (tests, simulations).
        owns_store: close the store at `shutdown`.
        pause: waits so many seconds, between two tries.
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
        self._host = SharedHost(backend, settings.run_id, where, lease, clock, pause)

    # -- joining --------------------------------------------------------------------------

    def join(
        self, node: Node, settings: Settings, deadline: Deadline, why: str, new_incarnation: bool
    ) -> Assignment:
        """Ask for the next round and wait for it (see the contract)."""
        self.ask_to_join(node, settings, deadline, why, new_incarnation)
        if self._threaded:
            self._host.start()
        while True:
            with self._host.changed:
                if not wait_for_seat(
                    self._host.changed.wait_for,
                    lambda: self._host.view,
                    self._is_decided,
                    deadline,
                ):
                    break
            seat = self.outcome()
            if seat is not None:
                return seat
            # A round was sealed with us and is over before we saw it: join the next.
            self.ask_to_join(node, settings, deadline, why, False)
        return self._give_up(node, deadline)

    def ask_to_join(
        self, node: Node, settings: Settings, deadline: Deadline, why: str, new_incarnation: bool
    ) -> None:
        """Ask for the next round without waiting for it; `outcome` tells what came of it."""
        host = self._host
        same = host.node is not None and host.node.id == node.id
        shut_out = host.view.fenced is not None
        if not same or shut_out or (new_incarnation and host.view.closed is not None):
            host.forget()
        self._label = node.label
        incarnation, after = host.known
        request = Join(node, settings, incarnation, after, why, new_incarnation)
        step = host.ask(lambda _: [request], deadline, joining=node)
        self._check(step, node.id)

    def outcome(self) -> Assignment | None:
        """Return the seat once there is one; None while waiting or when told to join again.

        Raises as `join` does.
        """
        self._host.raise_error()
        view = self._host.view
        if view.closed is not None:
            raise _closed_error(self._run_id, view.closed)
        if view.fenced is not None:
            self._raise_refused(view.fenced)
        if self._host.node is None:
            raise RendezvousStateError(f"run {self._run_id!r}: this node left while it was joining")
        return None if view.opened else view.assignment

    def _is_decided(self) -> bool:
        view = self._host.view
        told_so_far = (view.assignment, view.opened, view.closed, view.fenced, view.error)
        left = self._host.node is None
        return left or any(each is not None for each in told_so_far)

    def _give_up(self, node: Node, deadline: Deadline) -> Assignment:
        seats: list[Assignment | None] = []

        def withdraw(state: RunState) -> list[Event]:
            seats[:] = [seat_of(state, node.id)]
            why = f"it gave up after waiting {deadline.timeout:g} s"
            return [] if seats[0] else [Leave(node.id, why)]

        before = self._host.state
        step = self._host.ask(withdraw, self._close_deadline())
        if seats[0] is not None:  # sealed in the last moment
            return seats[0]
        if (closed := run_closed(step.state)) is not None:
            raise _closed_error(self._run_id, closed)
        self._host.forget()
        text = "the run's state was never seen" if before is None else explain.describe(before)
        missing = () if before is None else explain.missing(before)
        raise RendezvousTimeoutError(
            f"run {self._run_id!r}: no round was complete within {deadline.timeout:g} s "
            f"(join_timeout) at {self._host.where}: {text}"
            + (f"; missing: {', '.join(missing)}" if missing else "")
        )

    # -- other requests -------------------------------------------------------------------

    def leave(self, why: str, deadline: Deadline) -> None:
        """Go in good order; nothing happens if not joined."""
        node = self._host.node
        if node is not None:
            self._host.ask(lambda _: [Leave(node.id, why)], deadline, leaving=True)

    def finish(self, deadline: Deadline) -> None:
        """Say that this node's work in its round is done."""
        node, seat = self._seated("finish")
        event = Finish(node.id, seat.incarnation, seat.round, now_text())
        self._check(self._host.ask(lambda _: [event], deadline), node.id)

    def fail(self, failure: Failure, deadline: Deadline) -> None:
        """Say that a worker failed: the round is over for all."""
        node, seat = self._seated("fail")
        event = Fail(node.id, seat.incarnation, seat.round, failure)
        self._check(self._host.ask(lambda _: [event], deadline), node.id)

    def close(self, why: str, deadline: Deadline) -> None:
        """End the incarnation for everyone."""
        seat = self.view().assignment
        known = seat.incarnation if seat else 0
        self._host.ask(lambda _: [Close(self._label, why, now_text(), known)], deadline)

    def notice(self, why: str, seconds: float | None, deadline: Deadline) -> None:
        """Say that this node will leave; all are told."""
        node = self._host.node
        if node is None:
            raise RendezvousStateError(f"run {self._run_id!r}: notice: this node has not joined")
        self._host.ask(lambda _: [Notify(node.id, why, seconds=seconds)], deadline)

    def order(self, event: Order, deadline: Deadline) -> None:
        """Have something done to the run; whoever can write its state may."""
        self._host.ask(lambda _: [event], deadline)

    def heartbeat(self) -> None:
        """Store one sign of life now."""
        node = self._host.node
        if node is not None:
            limit = Deadline(self._settings.lease / BEATS_PER_LEASE)
            self._host.ask(lambda _: [Beat(node.id)], limit)

    def report(self, deadline: Deadline) -> Report:
        """Return what the run is doing (one read)."""
        state = self._host.ask(lambda _: [], deadline).state
        return report_of(state, self._host.where, timers=[(t, None) for t in timers(state)])

    # -- what is known ----------------------------------------------------------------------

    def participants(self, deadline: Deadline) -> tuple[Node, ...]:
        """Return the participants of this node's round, in rank order; no request."""
        return self._host.members

    def view(self) -> View:
        """Return what was seen so far, without a request."""
        return self._host.view

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with each new view, from the background thread."""
        return self._host.watch(watcher)

    def local_address(self, deadline: Deadline) -> str:
        """Return this node's address as the store's server, or a far host, would see it."""
        host, port = store_endpoint(_unwrapped(self._base_store)) or (None, 0)
        return addresses.local_address(host, port)

    def store(self) -> Store:
        """Return the run's part of the store."""
        return self._store

    def step(self) -> float:
        """Do what the background thread does at each change (see `SharedHost.step`)."""
        return self._host.step()

    def shutdown(self, deadline: Deadline) -> bool:
        """Leave if joined, stop the thread; True if that went well."""
        host, well = self._host, True
        host.halt()
        leaving = host.node is not None
        try:
            self.leave("it shut down", deadline)
        except RendezvousError as error:
            well = False
            _log.warning("run %r: leaving at shutdown failed: %s", self._run_id, error)
        if leaving:  # its own write wakes the thread; otherwise it ends with its pause
            host.wait_for_end(deadline.remaining())
        if self._owns_store:
            self._base_store.close()
        return well

    # -- small things -----------------------------------------------------------------------

    def _close_deadline(self) -> Deadline:
        return Deadline(self._settings.timeout.close)

    def _seated(self, doing: str) -> tuple[Node, Assignment]:
        with self._host.changed:
            node, seat = self._host.node, self._host.view.assignment
        if node is None or seat is None:
            raise RendezvousStateError(f"run {self._run_id!r}: {doing}: this node is in no round")
        return node, seat

    def _check(self, step: Step, node: NodeId) -> None:
        for send in step.messages:
            if isinstance(send.message, SettingsHeld) and node in send.to:
                _log.warning("run %r: %s", self._run_id, send.message.why)
            if isinstance(send.message, Refused) and node in send.to:
                if send.message.refusal in SHUT_OUT:  # maybe before it knew it was in
                    self._host.shut_out(send.message)
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
