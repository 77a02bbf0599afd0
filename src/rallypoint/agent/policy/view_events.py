"""How views of the run, seats and failed joins become events for the agent's policy. PURE."""

import traceback

from rallypoint.agent.policy import events
from rallypoint.core.events import Assignment, Refusal, RunClosed
from rallypoint.errors import (
    AuthenticationError,
    RallypointError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous.view import View

_KINDS: tuple[tuple[type[Exception], events.JoinError], ...] = (
    (RendezvousGracefulExitError, events.JoinError.NOT_NEEDED),
    (RendezvousClosedError, events.JoinError.CLOSED),
    (RendezvousTimeoutError, events.JoinError.TIMEOUT),
    (RendezvousConnectionError, events.JoinError.CONNECTION),
    (RendezvousStateError, events.JoinError.REFUSED),
    (AuthenticationError, events.JoinError.REFUSED),
)


class ViewTracker:
    """Which view the agent has acted on; views and seats go in, events come out."""

    def __init__(self) -> None:
        self._seen = View()
        self._at_join = View()

    def joins(self, view: View) -> None:
        """A join begins; `view` is the one at that moment."""
        self._at_join = View(fenced=view.fenced)

    def changed(self, view: View, node: str) -> list[events.Event]:
        """Return the events of a new view; `node` is the id of this node."""
        before, self._seen = self._seen, view
        return events_of(view, before, node)

    def sealed(self, seat: Assignment, view: View, node: str) -> list[events.Event]:
        """Return the events of a join's answer.

        What the server pushed after the seat may have arrived before the answer, so the view at
        this moment counts as new.

        Args:
            seat: the node's.
            view: the node's present one.
            node: its id.
        """
        self._seen = view
        return [events.Sealed(seat), *events_of(view, self._at_join, node)]


def events_of(view: View, before: View, node: str = "") -> list[events.Event]:
    """Return the events of a view that the view before did not have.

    An opened round is an event each time: the policy knows by its number what is old.

    Args:
        view: the new view.
        before: the last one.
        node: id of this node.
    """
    found: list[events.Event] = []
    if view.error is not None and before.error is None:
        found.append(events.AgentFailed(f"lost touch with the coordinator: {view.error}"))
    if view.fenced is not None and view.fenced is not before.fenced:
        replaced = view.fenced.refusal is Refusal.REPLACED
        found.append(events.Fenced(view.fenced.why, replaced))
    if view.closed is not None and view.closed != before.closed:
        c = view.closed
        found.append(events.RunClosed(c.incarnation, c.by, c.why, c.verdict, c.failures))
    if view.opened is not None:
        o = view.opened
        found.append(events.RoundOpened(o.incarnation, o.round, o.why, o.lost))
    if view.waiting != before.waiting:
        found.append(events.NodesWaiting(view.waiting))
    if view.notices != before.notices:
        stand = ((n.node, n.label, n.why, n.seconds, n.node == node) for n in view.notices)
        found.append(events.NoticesChanged(tuple(events.Notice(*each) for each in stand)))
    return found


def join_failed(error: BaseException, closed: RunClosed | None) -> events.JoinFailed:
    """Return the event of a join that ended in an error.

    Args:
        error: of the join.
        closed: the end of the run, None while it is open.
    """
    kind = _kind(error)
    text = str(error)
    if not isinstance(error, RallypointError):
        text = "".join(traceback.format_exception(error))
    if closed is None:
        return events.JoinFailed(kind, text)
    failures = () if closed.finished else closed.failures
    return events.JoinFailed(kind, text, failures, closed.verdict)


def _kind(error: BaseException) -> events.JoinError:
    if isinstance(error.__cause__, AuthenticationError):
        return events.JoinError.REFUSED  # a wrong token stays wrong
    kinds = (name for error_type, name in _KINDS if isinstance(error, error_type))
    return next(kinds, events.JoinError.OTHER)
