"""`DynamicRendezvousHandler`: a node's part in an elastic run, over any coordinator.

The handler makes no decisions. It describes this node (address, free port, hints), joins the next
round through the coordinator, and returns the answer as a `RendezvousInfo`. Between rounds it
reads the coordinator's view, which needs no request.
"""

import os
import socket
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta

from rallypoint.core.events import Assignment, Refusal, Refused
from rallypoint.core.state import Failure, Node
from rallypoint.deadline import Deadline
from rallypoint.deadline import seconds as to_seconds
from rallypoint.errors import RendezvousError, RendezvousStateError, RendezvousTimeoutError
from rallypoint.net.addresses import HeldPort
from rallypoint.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeout,
)
from rallypoint.rendezvous.coordinator import Coordinator, Report
from rallypoint.rendezvous.parameters import as_int
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.rendezvous.view import View
from rallypoint.store.api import Store
from rallypoint.store.prefix import PrefixStore


class DynamicRendezvousHandler(RendezvousHandler):
    """One node's part in an elastic run; every method may be called from any thread.

    Args:
        coordinator: connects this node to the run; the handler shuts it down.
        settings: what the run is opened with if this node is the first.
        run_id: name of the run; that of the settings if None.
        local_addr: this node's address for its peers; detected if None.
        node_rank: the rank it asks for.
        local_world_size: workers it starts.
        slot: the pod or task it runs as; a new node with the same slot replaces it.
        topology: label; nodes with the same one get neighbouring ranks.
        role: name of its workers' role.
        backend_name: what `get_backend` returns.
        new_incarnation: open the run again if it is closed at the first join.

    The attribute `propose_port` is called at each join with this node's address, and returns the
    port proposed with it: a free one, held until this node is rank 0 of a round. A plug-in that
    must listen there earlier replaces the function.

    Raises:
        ParameterError: names the parameter, its value and what is allowed.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        settings: RendezvousSettings,
        *,
        run_id: str | None = None,
        local_addr: str | None = None,
        node_rank: int | None = None,
        local_world_size: int = 1,
        slot: str | None = None,
        topology: str | None = None,
        role: str = "default",
        backend_name: str = "core",
        new_incarnation: bool = False,
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._run_id = run_id or settings.run_id
        self._local_addr = local_addr or None
        self._node_rank = None if node_rank is None else as_int("node_rank", node_rank, 0)
        self._local_world_size = as_int("local_world_size", local_world_size, 1)
        self._slot, self._topology, self._role = slot, topology, role
        self._backend_name = backend_name
        self._new_incarnation = new_incarnation
        self._port = HeldPort()
        self.propose_port: Callable[[str], int] = self._port.propose
        self._joining = threading.Lock()  # one join at a time
        self._host = socket.gethostname()
        self._node_id = uuid.uuid4().hex
        self._seat: Assignment | None = None
        self._changed, self._waiting = threading.Condition(), 0
        self._shut: bool | None = None
        self._shutting = threading.Lock()
        self._unwatch = coordinator.watch(self._on_view)

    @classmethod
    def from_coordinator(
        cls,
        coordinator: Coordinator,
        settings: RendezvousSettings,
        params: RendezvousParameters,
        backend_name: str,
    ) -> "DynamicRendezvousHandler":
        """Return a handler with the hints in the parameters (slot, topology, role, ...)."""
        return cls(
            coordinator,
            settings,
            local_addr=params.local_addr,
            node_rank=params.node_rank,
            local_world_size=params.local_world_size,
            slot=params.get("slot"),
            topology=params.get("topology"),
            role=params.get("role", "default"),
            backend_name=backend_name,
            new_incarnation=bool(params.get_as_bool("new_incarnation", False)),
        )

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Store,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: float | timedelta = 5,
        keep_alive_max_attempt: int = 3,
        *,
        node_rank: int | None = None,
        local_world_size: int = 1,
    ) -> "DynamicRendezvousHandler":
        """Return a handler whose run is kept in a backend, without a server.

        Args:
            run_id: name of the run.
            store: shared by all nodes.
            backend: holds the run's state.
            min_nodes: fewest nodes of a round.
            max_nodes: most nodes of a round.
            local_addr: this node's address as its peers reach it.
            timeout: join, last call, close, heartbeat.
            keep_alive_interval: seconds or timedelta; times `keep_alive_max_attempt`, the lease.
            keep_alive_max_attempt: see `keep_alive_interval`.
            node_rank: the rank this node asks for.
            local_world_size: workers it starts.

        Raises:
            ParameterError: names the parameter, its value and what is allowed.
        """
        # Imported here: a node with a server never needs it.
        from rallypoint.rendezvous.serverless.coordinator import ServerlessCoordinator

        settings = RendezvousSettings(
            run_id, min_nodes, max_nodes, timeout, keep_alive_interval, keep_alive_max_attempt
        )
        return cls(
            ServerlessCoordinator(backend, store, settings),
            settings,
            local_addr=local_addr,
            node_rank=node_rank,
            local_world_size=local_world_size,
            backend_name=backend.name,
        )

    # -- joining --------------------------------------------------------------------------

    def next_rendezvous(self, why: str = "") -> RendezvousInfo:
        """Join, or join again, and block until a round is agreed, within the join timeout.

        Args:
            why: the reason, which the other nodes are told; taken from the view if empty.

        Returns:
            This node's rank, the number of nodes, the round's store and bootstrap address.

        Raises:
            RendezvousError: as `RendezvousHandler.next_rendezvous`.
        """
        deadline = self._deadline(self._settings.timeout.join)
        if not self._joining.acquire(timeout=deadline.remaining()):
            raise RendezvousTimeoutError(
                f"run {self._run_id!r}: another thread of this handler was joining for "
                f"{deadline.timeout:g} s (join_timeout)"
            )
        try:
            seat = self._join(deadline, why)
            self._seat, self._new_incarnation = seat, False
            if seat.rank == 0:
                self._port.release()
            return self._info(seat)
        except BaseException:
            self._port.release()
            raise
        finally:
            self._joining.release()

    def _join(self, deadline: Deadline, why: str) -> Assignment:
        view = self._coordinator.view()
        if view.fenced is not None:
            self._shut_out(view.fenced)
        why = why or _why(view)
        try:
            return self._ask(deadline, why)
        except RendezvousStateError:
            fenced = self._coordinator.view().fenced
            if fenced is None or fenced.refusal is not Refusal.FENCED:
                raise
            self._shut_out(fenced)  # it learns of its fencing only now
            return self._ask(deadline, why)

    def _shut_out(self, fenced: Refused) -> None:
        self._seat = None
        if fenced.refusal is Refusal.REPLACED:  # I1: another node has its slot
            raise RendezvousStateError(
                f"run {self._run_id!r}: {fenced.why}; a replaced node must not return"
            )
        if fenced.refusal is Refusal.FENCED:  # L2: it joins as a new node
            self._node_id = uuid.uuid4().hex

    def _ask(self, deadline: Deadline, why: str) -> Assignment:
        address = self._local_addr or self._coordinator.local_address(deadline)
        node = Node(
            id=self._node_id,
            address=address,
            port=self.propose_port(address),
            pid=os.getpid(),
            slot=self._slot,
            node_rank=self._node_rank,
            topology=self._topology,
            local_world_size=self._local_world_size,
            role=self._role,
            host=self._host,
        )
        core = self._settings.core()
        return self._coordinator.join(node, core, deadline, why, self._new_incarnation)

    def _info(self, seat: Assignment) -> RendezvousInfo:
        part = f"round/{seat.incarnation}.{seat.round}"
        return RendezvousInfo(
            PrefixStore(part, self._coordinator.store()),
            seat.rank,
            seat.size,
            RendezvousStoreInfo(seat.master_addr, seat.master_port),
            self._participants,
            self._wait_list,
            assignment=seat,
        )

    def _participants(self) -> tuple[Node, ...]:
        return self._coordinator.participants(self._deadline(self._settings.timeout.close))

    def _wait_list(self) -> list[Node]:
        return [member.node for member in self.report().members if member.place == "waiting"]

    # -- what is known ----------------------------------------------------------------------

    def get_backend(self) -> str:
        return self._backend_name

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def settings(self) -> RendezvousSettings:
        """The settings that this node has asked for."""
        return self._settings

    @property
    def node_id(self) -> str:
        """This node's id; a new one after it was fenced."""
        return self._node_id

    @property
    def round(self) -> int:
        """Number of the last round in which this node had a seat, 0 before the first."""
        return self._seat.round if self._seat else 0

    @property
    def incarnation(self) -> int:
        """Incarnation of that round, 0 before the first."""
        return self._seat.incarnation if self._seat else 0

    def view(self) -> View:
        """Return what this node knows of the run; no request.

        Raises:
            RendezvousStateError: the coordinator's background thread failed.
        """
        view = self._coordinator.view()
        if isinstance(view.error, RendezvousError):
            raise view.error
        if view.error is not None:
            raise RendezvousStateError(
                f"run {self._run_id!r}: the coordinator's thread failed: {view.error!r}"
            ) from view.error
        return view

    def is_closed(self) -> bool:
        return self.view().closed is not None

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait for the next round; above zero: join again. No request.

        Spares do not count, and it is 0 for a node without a seat (rule N1). Once the round is
        over (a node was lost, or joined again), it is at least 1, so that an agent that looks at
        nothing else joins again.

        Raises:
            RendezvousStateError: the coordinator's background thread failed.
        """
        view = self.view()
        if view.opened is not None:
            return max(1, view.waiting)
        return view.waiting if view.assignment is not None else 0

    def report(self) -> Report:
        """Return what the run is doing (one request, within the close timeout).

        Raises:
            RendezvousConnectionError: the coordinator cannot be reached.
            RendezvousTimeoutError: no answer came in time.
        """
        return self._coordinator.report(self._deadline(self._settings.timeout.close))

    def waiting_for(self) -> Report:
        """Return the report without members and rounds (one request). Raises as `report`."""
        return self._coordinator.brief_report(self._deadline(self._settings.timeout.close))

    def wait_for_change(self, timeout: float | timedelta, since: View | None = None) -> View:
        """Wait until the view is not `since` any more (None: the view at the call).

        Args:
            timeout: seconds or timedelta.
            since: the last view that the caller knows; no change after it is missed.

        Returns:
            The view now, the same as `since` if the time is up.

        Raises:
            RendezvousStateError: the coordinator's background thread failed.
        """
        known = self.view() if since is None else since
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(
                    lambda: self._coordinator.view() != known, max(0.0, to_seconds(timeout))
                )
            finally:
                self._waiting -= 1
        return self.view()

    def _on_view(self, view: View) -> None:
        if self._waiting:  # a thread that begins to wait now sees this view
            with self._changed:
                self._changed.notify_all()
        self._notify()

    # -- going ------------------------------------------------------------------------------

    def set_closed(self, why: str = "set_closed() was called") -> None:
        """Close the run for all nodes, within the close timeout.

        Args:
            why: the reason, which all nodes are told.

        Raises:
            RendezvousConnectionError: the coordinator cannot be reached.
        """
        self._coordinator.close(why, self._deadline(self._settings.timeout.close))

    def finish(self) -> None:
        """Report that this node's work is done; the last node to do so closes the run.

        Raises:
            RendezvousStateError: it has no seat, or its round is over.
            RendezvousConnectionError: the coordinator cannot be reached.
        """
        self._coordinator.finish(self._deadline(self._settings.timeout.close))

    def fail(self, failure: Failure) -> None:
        """Report that a worker failed; the round is over for all nodes. Raises as `finish`."""
        self._coordinator.fail(failure, self._deadline(self._settings.timeout.close))

    def notice(self, why: str, seconds: float | timedelta | None = None) -> None:
        """Give notice that this node will leave, so that all nodes can save before it does.

        All nodes of the round, this one included, find it in `view().notices`.

        Args:
            why: for people ("SIGTERM of the scheduler").
            seconds: time left, in seconds or as timedelta; None if that is not known.

        Raises:
            RendezvousStateError: it has not joined.
            RendezvousConnectionError: the coordinator cannot be reached.
        """
        left = seconds if seconds is None else to_seconds(seconds)
        self._coordinator.notice(why, left, self._deadline(self._settings.timeout.close))

    def leave(self, why: str = "") -> None:
        """Leave the run; the others are told why. Never closes the run (rule L3).

        With a server, a leave that is not acknowledged is logged and is no error.

        Raises:
            RendezvousConnectionError: without a server: the backend cannot be reached.
        """
        self._port.release()
        self._coordinator.leave(why, self._deadline(self._settings.timeout.close))

    def shutdown(self) -> bool:
        """Leave and release everything, within the close timeout; the run goes on.

        Returns:
            With a server, whether this process hosted it and has stopped it; without a server,
            whether leaving succeeded. The same answer when called again.
        """
        with self._shutting:
            if self._shut is None:
                self._unwatch()
                self._port.close()
                deadline = self._deadline(self._settings.timeout.close)
                self._shut = self._coordinator.shutdown(deadline)
            return self._shut

    def _deadline(self, timeout: timedelta) -> Deadline:
        return Deadline(timeout)


def _why(view: View) -> str:
    if view.opened is not None:
        return view.opened.why
    if view.assignment is not None and view.waiting:
        return f"{view.waiting} nodes wait"
    return ""
