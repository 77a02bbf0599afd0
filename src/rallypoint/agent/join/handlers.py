"""The agent's interface to rendezvous handlers, and its two implementations.

`ElasticHandler` wraps a handler with a coordinator, which pushes changes. `StaticHandler` wraps
a static one: nothing is pushed, and since no coordinator counts the run's failed rounds, each
node counts its own.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from rallypoint.core.events import Assignment, RunClosed
from rallypoint.core.state import Failure, Verdict
from rallypoint.errors import RendezvousClosedError, RendezvousError, RendezvousStateError
from rallypoint.rendezvous.api import RendezvousHandler, RendezvousInfo
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.view import View
from rallypoint.wallclock import now_text

if TYPE_CHECKING:
    from rallypoint.rendezvous.handler import DynamicRendezvousHandler

NAMED_NODES = 64  # in larger runs, progress lines name no nodes


class SealedRound(msgspec.Struct, frozen=True):
    """A sealed round; `master` is the workers' bootstrap address."""

    assignment: Assignment
    master: tuple[str, int]


class AgentHandler:
    """One node's rendezvous handler, for the agent. Any thread may call any method.

    The methods implemented here are those of a handler without a coordinator.
    """

    def next_round(self, why: str) -> SealedRound:
        """Join, and wait until the round is sealed; raises the errors of `next_rendezvous`."""
        raise NotImplementedError

    def on_change(self, callback: Callable[[View], None]) -> Callable[[], None]:
        """Call `callback` with each new view; return a function that ends this."""
        return lambda: None

    def view(self) -> View:
        """Return the newest view."""
        raise NotImplementedError

    def finish(self) -> None:
        """Report that this node's work is done."""

    def fail(self, failure: Failure) -> None:
        """Report a worker's failure."""
        raise NotImplementedError

    def leave(self, why: str) -> None:
        """Leave the run; the handler is not used afterwards."""
        raise NotImplementedError

    def notice(self, why: str, seconds: float | None) -> None:
        """Announce that this node will leave, in `seconds` if known."""

    def node_id(self) -> str:
        """Return this node's id, "" without a coordinator."""
        return ""

    def waiting_for(self) -> Report | None:
        """Return the run's report, None without a coordinator. May raise RallypointError."""
        return None


class ElasticHandler(AgentHandler):
    """Wraps a handler with a coordinator."""

    def __init__(self, handler: "DynamicRendezvousHandler") -> None:
        self._handler = handler
        self._is_small = False

    def next_round(self, why: str) -> SealedRound:
        info = self._handler.next_rendezvous(why)
        seat = info.assignment
        if seat is None:
            raise RendezvousStateError("an elastic handler gave a round without an assignment")
        return SealedRound(seat, _master(info) or (seat.master_addr, seat.master_port))

    def on_change(self, callback: Callable[[View], None]) -> Callable[[], None]:
        return self._handler.on_change(lambda: callback(self.view()))

    def view(self) -> View:
        """Return the view; the error of a failed background thread is in its `error`."""
        try:
            return self._handler.view()
        except RendezvousError as error:
            return View(error=error)

    def finish(self) -> None:
        self._handler.finish()

    def fail(self, failure: Failure) -> None:
        self._handler.fail(failure)

    def leave(self, why: str) -> None:
        self._handler.pre_shutdown()
        self._handler.leave(why)
        self._handler.shutdown()

    def notice(self, why: str, seconds: float | None) -> None:
        self._handler.notice(why, seconds)

    def node_id(self) -> str:
        return self._handler.node_id

    def waiting_for(self) -> Report | None:
        """Return the run's report; with its members only in small runs."""
        if not self._is_small:
            found = self._handler.waiting_for()
            settings = found.settings
            self._is_small = settings is not None and settings.max_nodes <= NAMED_NODES
            if not self._is_small:
                return found
        return self._handler.report()


class StaticHandler(AgentHandler):
    """Wraps a static handler.

    Args:
        handler: the static handler.
        local_world_size: number of workers on each node.
        max_restarts: number of failed rounds that this node may have.
    """

    def __init__(
        self, handler: RendezvousHandler, local_world_size: int, max_restarts: int
    ) -> None:
        self._handler = handler
        self._local_world_size = local_world_size
        self._max_restarts = max_restarts
        self._rounds = 0
        self._failures: list[Failure] = []
        self._view = View()

    def next_round(self, why: str) -> SealedRound:
        if len(self._failures) > self._max_restarts:
            first = self._failures[0].label
            text = f"a worker failed and max_restarts={self._max_restarts} is used up: {first}"
            failures = tuple(self._failures)
            closed = RunClosed(
                1, self._rounds, "this node", now_text(), text, Verdict.BUDGET, failures
            )
            self._view = View(closed=closed)
            raise RendezvousClosedError(text)
        info = self._handler.next_rendezvous()
        self._rounds += 1
        master = _master(info)
        if master is None:
            raise RendezvousStateError(
                f"backend {self._handler.get_backend()!r} gave no bootstrap address for the "
                "workers; its RendezvousInfo must contain bootstrap_store_info"
            )
        return SealedRound(self._assignment(info, master, why), master)

    def _assignment(self, info: RendezvousInfo, master: tuple[str, int], why: str) -> Assignment:
        first = info.rank * self._local_world_size
        total = info.world_size * self._local_world_size
        return Assignment(
            incarnation=1,
            round=self._rounds,
            rank=info.rank,
            size=info.world_size,
            worker_offset=first,
            world_size=total,
            role_offset=first,
            role_world_size=total,
            master_addr=master[0],
            master_port=master[1],
            restarts=len(self._failures),
            reason=why or "all nodes have met",
            failing=len(self._failures),
        )

    def view(self) -> View:
        """Return a view that only shows whether this node's own budget is used up."""
        return self._view

    def fail(self, failure: Failure) -> None:
        self._failures.append(failure)

    def leave(self, why: str) -> None:
        self._handler.pre_shutdown()
        self._handler.shutdown()


def _master(info: RendezvousInfo) -> tuple[str, int] | None:
    place = info.bootstrap_store_info
    return None if place is None else (place.master_addr, place.master_port)


def agent_handler(
    handler: RendezvousHandler, local_world_size: int, max_restarts: int
) -> AgentHandler:
    """Wrap a rendezvous handler for the agent (arguments: see `StaticHandler`)."""
    from rallypoint.rendezvous.handler import DynamicRendezvousHandler  # only agents need it

    if isinstance(handler, DynamicRendezvousHandler):
        return ElasticHandler(handler)
    return StaticHandler(handler, local_world_size, max_restarts)
