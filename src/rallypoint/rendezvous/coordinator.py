"""The Coordinator contract: all that a handler knows of where the state machine runs.

Two modules implement it: `client.coordinator` over a connection to a server, and
`serverless.coordinator`, where every node runs the core over a compare-and-set store. Guarantees
of both:

* `join` returns only what was agreed and stored; it blocks at most its deadline;
* each message updates `view()`, which answers without a request; each change of it calls the
  watchers, from a thread of the coordinator or of a call that joins or leaves; several changes may
  come as one, and a watcher that fails does not affect the others;
* the coordinator sends heartbeats by itself, at least one every third of the lease (and to a
  server at least every 5 s, to one of several every 3 s); if its thread fails, the failure is in
  `view().error` and is raised by the next call;
* all calls may come from any thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from rallypoint.core.events import (
    Admit,
    Assignment,
    Close,
    Exclude,
    Notify,
)
from rallypoint.core.state import Failure, Node, Settings
from rallypoint.deadline import Deadline
from rallypoint.rendezvous.view import View
from rallypoint.store.api import Store


class NodeStatus(msgspec.Struct, frozen=True):
    """One row of a report: a node and where it stands.

    Args:
        node: who it is.
        place: "candidate", "participant", "waiting", "spare" or "finished".
        rank: its rank in the last round it took part in.
        connected: False while it is disconnected and may reconnect.
        since_seconds: how long it has been in its place, None if that is not known.
        heard_seconds: since its last heartbeat, None if that is not known.
    """

    node: Node
    place: str
    rank: int | None = None
    connected: bool = True
    since_seconds: float | None = None
    heard_seconds: float | None = None


class RunningTimer(msgspec.Struct, frozen=True):
    """A wait that ends by itself.

    Args:
        name: what is waited for, in words.
        setting: the parameter that sets its length.
        remaining_seconds: until it ends, None if that is not known.
    """

    name: str
    setting: str
    remaining_seconds: float | None = None


class ExclusionLine(msgspec.Struct, frozen=True):
    """Excluded nodes.

    Args:
        aspect: "node", "address" or "slot": what `name` is.
        name: of the nodes.
        why: for people.
        by: who wants it so; "quarantine": their workers failed too often.
        at: when (a text), "" if that is not known.
        seconds: for how long, None: until they are admitted.
        remaining_seconds: until they are admitted by themselves, None if that is not known.
    """

    aspect: str
    name: str
    why: str
    by: str
    at: str = ""
    seconds: float | None = None
    remaining_seconds: float | None = None


class NoticeLine(msgspec.Struct, frozen=True):
    """Word that a node will leave.

    Args:
        id: of the node.
        node: its label.
        why: for people.
        by: who says so.
        seconds: how long it had when that was said, None if that is not known.
        remaining_seconds: how long it still has, 0 once it should have gone.
    """

    id: str
    node: str
    why: str
    by: str
    seconds: float | None = None
    remaining_seconds: float | None = None


class RoundLine(msgspec.Struct, frozen=True):
    """One round of a run, as it is remembered; all times are seconds before the report.

    Args:
        incarnation: of the run.
        number: of the round.
        opened_seconds: when it was opened, None if that is not known.
        opened_because: why, "" for the first.
        sealed_seconds: when it was sealed, None if it was not.
        sealed_because: why then.
        ended_seconds: when it ended, None while it lasts.
        ended_because: why.
        size: nodes that took part.
        lost: labels of those whose going ended it (the first few).
        left: those of them that left in good order.
        nodes: labels of the participants in rank order; () once it is too long ago.
    """

    incarnation: int
    number: int
    opened_seconds: float | None
    opened_because: str = ""
    sealed_seconds: float | None = None
    sealed_because: str = ""
    ended_seconds: float | None = None
    ended_because: str = ""
    size: int = 0
    lost: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """What a run is doing, for people and errors.

    Durations come from the monotonic clock of whoever reports; no wall clock is compared.

    Args:
        run_id: its name.
        phase: "gathering", "last call", "sealed" or "closed".
        incarnation: of the run.
        round: number of the round.
        reason: one sentence: what it waits for, or why it is where it is.
        missing: labels of nodes that are known and have not come.
        members: every live node.
        settings: what the run was opened with.
        restarts: how much of the failure budget is used up.
        server: where the answer comes from, for people.
        since_seconds: how long it has been in its phase, None if that is not known.
        opened_by: label of the node that opened the run.
        timers: waits that end by themselves.
        rounds: the rounds so far, oldest first (the newest few dozen).
        failures: of the last failing round, first one first, after the first one of the current
            streak of failing rounds.
        shut_out: the newest nodes that were shut out: id and reason.
        failing: number of consecutive rounds that failing workers ended.
        exclusions: in force, the oldest first.
        notices: of nodes that will leave.
    """

    run_id: str
    phase: str
    incarnation: int
    round: int
    reason: str
    missing: tuple[str, ...] = ()
    members: tuple[NodeStatus, ...] = ()
    settings: Settings | None = None
    restarts: int = 0
    server: str = ""
    since_seconds: float | None = None
    opened_by: str = ""
    timers: tuple[RunningTimer, ...] = ()
    rounds: tuple[RoundLine, ...] = ()
    failures: tuple[Failure, ...] = ()
    shut_out: tuple[tuple[str, str], ...] = ()
    failing: int = 0
    exclusions: tuple[ExclusionLine, ...] = ()
    notices: tuple[NoticeLine, ...] = ()


Watcher = Callable[[View], None]
Order = Close | Exclude | Admit | Notify


class Coordinator(ABC):
    """One node's way to the state machine (see the module's guarantees).

    A call that makes a request raises RendezvousConnectionError if the server or backend cannot be
    reached within its deadline, RendezvousTimeoutError if no answer comes in time, and
    RendezvousStateError if the request is refused or the background thread failed.
    """

    @abstractmethod
    def join(
        self, node: Node, settings: Settings, deadline: Deadline, why: str, new_incarnation: bool
    ) -> Assignment:
        """Ask for the next round and wait for it.

        Raises RendezvousTimeoutError (with the report's reason and who is missing; the node
        has withdrawn), RendezvousClosedError, RendezvousGracefulExitError,
        RendezvousStateError (refused), RendezvousConnectionError. A node that was fenced
        gets RendezvousStateError and must come with another id.
        """

    @abstractmethod
    def leave(self, why: str, deadline: Deadline) -> None:
        """Leave the run and notify the others; no effect if not joined.

        With a server, a leave that is not acknowledged is logged and is no error.
        """

    @abstractmethod
    def finish(self, deadline: Deadline) -> None:
        """Say that this node's work in its round is done.

        Raises RendezvousStateError if it has no seat, or its round is over.
        """

    @abstractmethod
    def fail(self, failure: Failure, deadline: Deadline) -> None:
        """Say that a worker failed: the round is over for all, who are told at once.

        Raises RendezvousStateError as `finish` does.
        """

    @abstractmethod
    def close(self, why: str, deadline: Deadline) -> None:
        """End the incarnation for everyone."""

    @abstractmethod
    def notice(self, why: str, seconds: float | None, deadline: Deadline) -> None:
        """Say that this node will leave, in so many seconds if that is known; all are told.

        Raises RendezvousStateError if it has not joined.
        """

    @abstractmethod
    def order(self, event: Order, deadline: Deadline) -> None:
        """Apply an operator's order: close, exclude, admit or notify.

        Raises RendezvousStateError if the caller may not give it.
        """

    @abstractmethod
    def heartbeat(self) -> None:
        """Send one sign of life now (the coordinator also does so by itself)."""

    @abstractmethod
    def view(self) -> View:
        """Return what was told so far, without a request."""

    @abstractmethod
    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with each new view; returns a function that ends it."""

    @abstractmethod
    def report(self, deadline: Deadline) -> Report:
        """Return what the run is doing (one request)."""

    def brief_report(self, deadline: Deadline) -> Report:
        """Return the report without members and rounds, where that is cheaper (one request)."""
        return self.report(deadline)

    @abstractmethod
    def participants(self, deadline: Deadline) -> tuple[Node, ...]:
        """Return the participants in rank order.

        With a server (one request): those of the round that is sealed now, () while there is
        none. Without one (no request): those of the round of this node's last seat.
        """

    @abstractmethod
    def local_address(self, deadline: Deadline) -> str:
        """Return this node's address as its peers reach it; connects where that is needed."""

    @abstractmethod
    def store(self) -> Store:
        """Return a store that all members of the run share."""

    @abstractmethod
    def shutdown(self, deadline: Deadline) -> bool:
        """Leave if joined, and stop the background thread.

        With a server, returns whether this call stopped one that this process hosted (even with
        members still connected); without a server, whether leaving succeeded.
        """
