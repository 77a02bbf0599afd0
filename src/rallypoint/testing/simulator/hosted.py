"""A simulated node whose coordinator is the server, as `rendezvous.dynamic` and `hosted`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rallypoint.agent.policy import events
from rallypoint.core.events import (
    Fail,
    Finish,
    Leave,
    Refusal,
    Refused,
    RunClosed,
)
from rallypoint.core.state import Failure
from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client import dialogue
from rallypoint.rendezvous.coordinator import View
from rallypoint.testing.simulator.node import CLOSE_SECONDS, LEAVE_SECONDS, Agent, is_lost
from rallypoint.testing.simulator.session import NodeSession

if TYPE_CHECKING:
    from rallypoint.testing.simulator.hosted_world import HostedWorld


class HostedNode(Agent):
    """A node whose coordinator is the server (`rendezvous.hosted`)."""

    def __init__(self, world: "HostedWorld", host: int, number: int) -> None:
        super().__init__(world, host, number)
        lease = world.plan.settings.lease_seconds
        self.session = NodeSession(world, self.process, lease, self._changed)
        self._comes_again = False  # as another, if it turns out that it is fenced
        self._why = ""
        self._waits = False  # a join is under way

    def begin(self) -> None:
        """Start the agent; it connects first."""
        self.session.connect()
        super().begin()

    def view(self) -> View:
        return self.session.view

    def _changed(self, view: View) -> None:
        self.put(view)
        self._look()

    # -- joining: rendezvous.dynamic and rendezvous.hosted -------------------------------------

    def join(self, why: str) -> None:
        self._why, self._waits = why, True
        if is_lost(self.session.view):  # L2; who was replaced is refused (I1)
            self.new_id()
        self._comes_again = True
        self._ask()
        limit = self.world.plan.join_seconds
        self.process.call_later(limit, self._timed_out, self.asking)

    def _ask(self) -> None:
        session, view = self.session, self.session.view
        asked, fresh = dialogue.request(
            view, session.join, self.describe(), self.world.plan.settings, self._why, False
        )
        session.join, session.refused = asked, None
        self.world.truth.joined.add(self.node_id)
        session.update(fresh)
        session.write(p.frame(wire.Ask(0, asked)))

    def _look(self) -> None:
        join, session = self.session.join, self.session
        if (
            self._waits
            and join is not None
            and dialogue.is_settled(join, session.view, session.refused)
        ):
            self.process.soon(self._settled, self.asking)

    def _settled(self, asking: int) -> None:
        session, view, join = self.session, self.session.view, self.session.join
        refused = session.refused or view.fenced
        if asking != self.asking or join is None or not self._waits:
            return
        if not dialogue.is_settled(join, view, session.refused):
            return
        if view.closed is not None:
            session.join = None
            self._answer(_join_failed_closed(view.closed))
        elif refused is not None:
            self._refused(refused)
        elif view.assignment is not None:
            self._answer(events.Sealed(view.assignment))

    def _refused(self, refused: Refused) -> None:
        session = self.session
        session.join = None
        if refused.refusal is Refusal.CLOSED:
            kind = events.JoinError.NOT_NEEDED if refused.finished else events.JoinError.CLOSED
            self._answer(events.JoinFailed(kind, refused.why))
        elif self._comes_again and is_lost(session.view):
            self.new_id()
            self._comes_again = False
            self._ask()
        else:
            self._answer(events.JoinFailed(events.JoinError.REFUSED, refused.why))

    def _answer(self, event: events.Event) -> None:
        self._waits = False
        self.put(event)

    def _timed_out(self, asking: int) -> None:
        if asking != self.asking or not self._waits:
            return
        self._waits = False
        text = f"no round was complete within {self.world.plan.join_seconds:g} s"
        failed = events.JoinFailed(events.JoinError.TIMEOUT, text)
        self._say_leave("its join timed out", 2.0, lambda _done: self.put(failed))

    # -- other requests ------------------------------------------------------------------------

    def fail(self, failure: Failure) -> None:
        join, seat = self.session.join, self.session.view.assignment
        if join is not None and seat is not None:
            event = Fail(join.node.id, seat.incarnation, seat.round, failure)
            self.block()
            self.session.ask(lambda i: wire.Ask(i, event), CLOSE_SECONDS, self.unblock)

    def finish(self) -> None:
        join, seat = self.session.join, self.session.view.assignment
        if join is not None and seat is not None:
            event = Finish(join.node.id, seat.incarnation, seat.round)
            self.world.truth.done.add((join.node.id, seat.round))
            self.block()
            self.session.ask(lambda i: wire.Ask(i, event), CLOSE_SECONDS, self.unblock)

    def leave(self, why: str) -> None:
        self.block()
        self._say_leave(why, LEAVE_SECONDS, self._left)

    def _left(self, done: bool) -> None:
        self.session.stop()
        self.unblock(done)

    def _say_leave(self, why: str, limit: float, then: Callable[[bool], object]) -> None:
        session = self.session
        join, session.join = session.join, None
        if join is None or session.view.closed is not None or session.view.fenced is not None:
            self.process.soon(then, False)
            return
        node = join.node.id
        self.world.truth.left.add(node)
        session.update(View(connected=session.view.connected))
        session.ask(lambda i: wire.Ask(i, Leave(node, why)), limit, then)

    def gone(self) -> None:
        self.process.kill()


def _join_failed_closed(closed: RunClosed) -> events.JoinFailed:
    kind = events.JoinError.NOT_NEEDED if closed.finished else events.JoinError.CLOSED
    failures = () if closed.finished else closed.failures
    return events.JoinFailed(kind, f"closed by {closed.by}: {closed.why}", failures)
