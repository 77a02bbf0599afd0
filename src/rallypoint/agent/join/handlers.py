"""What the agent asks of a rendezvous handler, over the two kinds that there are.

`Elastic` passes on to a handler that is told of changes; `Fixed` serves one that only ever
meets (static): nothing is pushed, and as no coordinator counts the run's failing rounds,
each node counts its own.
"""

from abc import ABC, abstractmethod
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

NAMED_NODES = 64  # up to so many, a user who waits is told about each


class Round(msgspec.Struct, frozen=True):
    """A sealed round as the agent uses it; `master` is the workers' bootstrap address."""

    assignment: Assignment
    master: tuple[str, int]


class AgentHandler(ABC):
    """One node's rendezvous, for the agent. All calls may come from any thread."""

    @abstractmethod
    def next_round(self, why: str) -> Round:
        """Join and wait for the round; raises the errors of `next_rendezvous`."""

    @abstractmethod
    def on_change(self, callback: Callable[[View], None]) -> Callable[[], None]:
        """Call back with each new view; returns a function that ends it."""

    @abstractmethod
    def view(self) -> View:
        """Return what was told so far."""

    @abstractmethod
    def finish(self) -> None:
        """Say that this node's work is done."""

    @abstractmethod
    def fail(self, failure: Failure) -> None:
        """Say that a worker failed."""

    @abstractmethod
    def leave(self, why: str) -> None:
        """Go; the handler is not used after it."""

    @abstractmethod
    def notice(self, why: str, seconds: float | None) -> None:
        """Say that this node will leave soon, in so many seconds if that is known."""

    @abstractmethod
    def node_id(self) -> str:
        """Return the id under which this node is known, "" if nobody tells it of nodes."""

    @abstractmethod
    def waiting_for(self) -> Report | None:
        """Return what the run is doing, None if that cannot be known. May raise RallypointError."""


class Elastic(AgentHandler):
    """Over a handler with a coordinator."""

    def __init__(self, handler: "DynamicRendezvousHandler") -> None:
        self._handler = handler
        self._is_small = False

    def next_round(self, why: str) -> Round:
        info = self._handler.next_rendezvous(why)
        seat = info.assignment
        if seat is None:
            raise RendezvousStateError("an elastic handler gave a round without an assignment")
        return Round(seat, _master(info) or (seat.master_addr, seat.master_port))

    def on_change(self, callback: Callable[[View], None]) -> Callable[[], None]:
        return self._handler.on_change(lambda: callback(self.view()))

    def view(self) -> View:
        """A failed background thread is in its `error`, as the agent wants it."""
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
        """Members are asked for only where there are few."""
        if not self._is_small:
            found = self._handler.waiting_for()
            settings = found.settings
            self._is_small = settings is not None and settings.max_nodes <= NAMED_NODES
            if not self._is_small:
                return found
        return self._handler.report()


class Fixed(AgentHandler):
    """Over a handler that only meets.

    Args:
        handler: a static handler.
        local_world_size: workers of each node.
        max_restarts: failing rounds that this node may have.
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

    def next_round(self, why: str) -> Round:
        if len(self._failures) > self._max_restarts:
            first = self._failures[0].label
            text = f"a worker failed and max_restarts={self._max_restarts} is used up: {first}"
            how = (text, Verdict.BUDGET, tuple(self._failures))
            self._view = View(closed=RunClosed(1, self._rounds, "this node", now_text(), *how))
            raise RendezvousClosedError(text)
        info = self._handler.next_rendezvous()
        self._rounds += 1
        master = _master(info)
        if master is None:
            raise RendezvousStateError(
                f"backend {self._handler.get_backend()!r} named no bootstrap address for the "
                "workers; its RendezvousInfo must carry bootstrap_store_info"
            )
        return Round(self._counted(info, master, why), master)

    def _counted(self, info: RendezvousInfo, master: tuple[str, int], why: str) -> Assignment:
        first = info.rank * self._local_world_size
        total = info.world_size * self._local_world_size
        return Assignment(
            1, self._rounds, info.rank, info.world_size, first, total, first, total,
            *master, len(self._failures), why or "all nodes have met", len(self._failures),
        )  # fmt: skip

    def on_change(self, callback: Callable[[View], None]) -> Callable[[], None]:
        """Nothing is ever told."""
        return lambda: None

    def view(self) -> View:
        """Nothing is told but that its own budget is used up."""
        return self._view

    def finish(self) -> None:
        """Nobody needs to know."""

    def fail(self, failure: Failure) -> None:
        self._failures.append(failure)

    def leave(self, why: str) -> None:
        self._handler.pre_shutdown()
        self._handler.shutdown()

    def notice(self, why: str, seconds: float | None) -> None:
        """There is nobody to tell."""

    def node_id(self) -> str:
        return ""

    def waiting_for(self) -> Report | None:
        return None


def _master(info: RendezvousInfo) -> tuple[str, int] | None:
    place = info.bootstrap_store_info
    return None if place is None else (place.master_addr, place.master_port)


def agent_handler(
    handler: RendezvousHandler, local_world_size: int, max_restarts: int
) -> AgentHandler:
    """Return the agent's side of a handler (see `Fixed` for the figures)."""
    from rallypoint.rendezvous.handler import DynamicRendezvousHandler  # only agents need it

    if isinstance(handler, DynamicRendezvousHandler):
        return Elastic(handler)
    return Fixed(handler, local_world_size, max_restarts)
