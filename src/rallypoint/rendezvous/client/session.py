"""A node's session with a server, as a sans-I/O state machine. PURE.

    session = Session("digits", "first:29400", lease_seconds=15.0)
    session.connected()                       # the handshake is done
    join, frame = session.join(node, settings)  # send the frame
    session.receive(body)                     # a frame has arrived: the view changes
    session.outcome(join)                     # None while the join is undecided

The connection comes and goes; the session stays:

    connecting --connected--> connected --disconnected--> reconnecting --connected--> connected
    any state --stop, fail--> over

The caller owns socket, threads, clock and random numbers. It sends what methods return, in
order; what it cannot send while disconnected needs no care, since `greetings` says everything
again on the next connection. It calls `heartbeat` every `heartbeat_seconds`, and `retry_seconds`
after each failed attempt to connect. `transport` and the simulator are such callers.
"""

from collections.abc import Callable

import msgspec

from rallypoint.core.events import (
    SHUT_OUT,
    Assignment,
    Close,
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
from rallypoint.core.state import Failure, Node, Settings
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    StoreConnectionError,
)
from rallypoint.net import protocol as p
from rallypoint.net.handshake import goodbye_error
from rallypoint.rendezvous import timing, wire
from rallypoint.rendezvous.view import NodeMessage, View, fold, known_round

_decoder = msgspec.msgpack.Decoder(wire.ServerBody)
_change = msgspec.structs.replace
_HEARTBEAT = p.frame(wire.Beat())
Response = wire.Done | wire.Answer | wire.Denied


class Request(msgspec.Struct, frozen=True):
    """A request that the server answers under its id.

    Args:
        id: number within the session.
        frame: to be sent.
    """

    id: int
    frame: bytes


class Withdrawn(msgspec.Struct, frozen=True):
    """The outcome of a join that this node has withdrawn, by a leave or by its end."""


Outcome = Assignment | Refused | RunClosed | Withdrawn | BaseException
"""Of a join: its seat, or why there is none; an exception is what ended the session."""


def join_error(outcome: Outcome, run: str, where: str) -> RendezvousError:
    """Return the error for a join without a seat.

    Args:
        outcome: of the join.
        run: id of the run.
        where: the server.
    """
    match outcome:
        case Refused(refusal=refusal, why=why):
            kind = RendezvousClosedError if refusal is Refusal.CLOSED else RendezvousStateError
            return kind(f"run {run!r} on {where}: {why}")
        case RunClosed() as closed:
            when = f" at {closed.at}" if closed.at else ""
            text = f"run {run!r} was closed by {closed.by}{when}: {closed.why}"
            if closed.finished:
                return RendezvousGracefulExitError(f"{text}; this node is not needed any more")
            return RendezvousClosedError(text)
        case BaseException() as error:
            return RendezvousConnectionError(f"the session with {where} has failed: {error}")
    return RendezvousStateError(f"run {run!r}: this node left while it was joining")


class Session:
    """What a node has said to its server, what it waits for, and what it knows.

    Args:
        run: the run's id.
        where: the server, for error messages.
        lease_seconds: as in the node's settings.
        several: whether there are several servers, of which one leads.
    """

    def __init__(self, run: str, where: str, lease_seconds: float, several: bool = False) -> None:
        self.run = run
        self.where = where
        self.heartbeat_seconds = timing.heartbeat_seconds(lease_seconds, several)
        self._silence_seconds = timing.silence_seconds(lease_seconds, several)
        self._pause = timing.FIRST_PAUSE_SECONDS
        self.view = View(connected=False)
        self.over = False
        self.joined: Join | None = None  # the last join, None once it has ended
        self._refused: Refused | None = None
        self._last_id = 0
        self._pending: dict[int, bytes] = {}  # requests without a response
        self._responses: dict[int, Response] = {}

    # -- the connection ---------------------------------------------------------------------

    def greetings(self) -> list[bytes]:
        """Return the frames to send first on a new connection.

        A join without an answer is sent again. A node with a seat resumes. One that is shut out,
        or has not joined, says nothing of itself. Requests without a response follow.
        """
        first: list[bytes] = []
        view, join = self.view, self.joined
        if join is not None and view.fenced is None and view.closed is None:
            seat = view.assignment
            if seat is not None and seat.round > join.after:
                first = [p.frame(wire.Resume(join.node.id, seat.incarnation, seat.round))]
            else:
                first = [p.frame(wire.Ask(0, join))]
        return [*first, *self._pending.values()]

    def connected(self) -> None:
        """The handshake is done and the greetings are sent."""
        self._pause = timing.FIRST_PAUSE_SECONDS
        self.view = _change(self.view, connected=True)

    def disconnected(self) -> None:
        """The connection is lost; workers continue until the server says otherwise."""
        self.view = _change(self.view, connected=False)

    def retry_seconds(self, standby: bool, jitter: float) -> float:
        """Return the pause before the next attempt to connect.

        Args:
            standby: whether the failed attempt reached a standby server.
            jitter: a random factor, 0.5 to 1.5.
        """
        pause = self._pause * jitter
        self._pause = timing.next_pause(self._pause, standby)
        return pause

    def heartbeat(self, silent_seconds: float, late_seconds: float) -> bytes | None:
        """Return the frame of a heartbeat, None if the server counts as gone (`timing`)."""
        if timing.is_gone(silent_seconds, late_seconds, self._silence_seconds):
            return None
        return _HEARTBEAT

    def fail(self, error: BaseException) -> None:
        """A fault ends the session; the next call of the node raises it."""
        self.over = True
        self.view = _change(self.view, error=error, connected=False)

    def stop(self) -> None:
        """The node ends the session."""
        self.over = True
        self.joined = None

    def receive(self, body: bytes) -> str:
        """Take the body of a frame that has arrived; return a warning for the log, "" if none.

        Raises:
            StoreConnectionError: the connection must be closed.
        """
        try:
            message = _decoder.decode(body)
        except msgspec.DecodeError as error:
            raise StoreConnectionError(f"{self.where}: {error}") from error
        if isinstance(message, wire.Push):
            return self._notified(message.message)
        if isinstance(message, wire.Denied) and message.id == 0:  # a join or resume
            self._refused = Refused(Refusal.TOKEN, message.why)
        elif isinstance(message, Response):
            if self._pending.pop(message.id, None) is not None:  # else it was given up
                self._responses[message.id] = message
        elif isinstance(message, p.Goodbye):
            raise goodbye_error(self.where, message)
        return ""

    def _notified(self, message: NodeMessage) -> str:
        self.view = fold(self.view, message)
        if isinstance(message, Refused) and message.refusal not in SHUT_OUT:
            self._refused = message
        return message.why if isinstance(message, SettingsHeld) else ""

    # -- joining ----------------------------------------------------------------------------

    def join(
        self, node: Node, settings: Settings, why: str = "", new_incarnation: bool = False
    ) -> tuple[Join, bytes]:
        """Begin a join; return it and its frame. Of the past, only the node's seat is kept.

        Args:
            node: the caller; under another id than before it knows no earlier round.
            settings: what it wants the run to be.
            why: for people.
            new_incarnation: open a closed run as a new incarnation.
        """
        view = self.view
        same = self.joined is not None and self.joined.node.id == node.id
        seat = view.assignment if same and view.closed is None else None
        self.view = View(assignment=seat, connected=view.connected, error=view.error)
        incarnation, number = known_round(self.view)
        self.joined = join = Join(node, settings, incarnation, number, why, new_incarnation)
        self._refused = None
        return join, p.frame(wire.Ask(0, join))

    def outcome(self, join: Join) -> Outcome | None:
        """Return what came of a join, None while that is open."""
        view = self.view
        if view.error is not None:
            return view.error
        refused = self._refused or view.fenced
        if refused is not None:
            return refused
        if view.closed is not None:
            return view.closed
        if self.joined is not join or self.over:
            return Withdrawn()
        if view.assignment is None or known_round(view) == (join.incarnation, join.after):
            return None
        return view.assignment

    def end_join(self, join: Join) -> None:
        """A join has no seat: it is not sent again."""
        if self.joined is join:
            self.joined = None

    def leave(self, why: str) -> Request | None:
        """Return the request to leave, None if the node is no member."""
        join, self.joined = self.joined, None
        view = self.view
        if join is None or view.closed is not None or view.fenced is not None:
            return None
        self.view = View(connected=view.connected, error=view.error)
        return self.ask(Leave(join.node.id, why))

    # -- other requests -----------------------------------------------------------------------

    def request(self, make: Callable[[int], msgspec.Struct]) -> Request:
        """Return a request made with a new id; it is sent again after a reconnect."""
        self._last_id += 1
        request = Request(self._last_id, p.frame(make(self._last_id)))
        self._pending[request.id] = request.frame
        return request

    def ask(self, event: wire.NodeEvent) -> Request:
        """Return the request for an event to be applied to the run."""
        return self.request(lambda number: wire.Ask(number, event))

    def is_answered(self, request: Request) -> bool:
        """Return whether a request has a response, or the session's end took its place."""
        return request.id in self._responses or self.view.error is not None or self.over

    def take_response(self, request: Request) -> Response | None:
        """Return the response to a request, None without one; the request has then ended."""
        self._pending.pop(request.id, None)
        return self._responses.pop(request.id, None)

    def finish(self, at: str) -> Request:
        """Return the request that says that this node's work in its round is done.

        Args:
            at: the time, as a text for people.

        Raises:
            RendezvousStateError: the node is in no round.
        """
        join, seat = self._seat("finish")
        return self.ask(Finish(join.node.id, seat.incarnation, seat.round, at=at))

    def report_failure(self, failure: Failure) -> Request:
        """Return the request that says that a worker failed; raises as `finish` does."""
        join, seat = self._seat("fail")
        return self.ask(Fail(join.node.id, seat.incarnation, seat.round, failure))

    def notice(self, why: str, seconds: float | None) -> Request:
        """Return the request that says that this node will leave.

        Args:
            why: for people.
            seconds: until it leaves, None if that is not known.

        Raises:
            RendezvousStateError: the node has not joined, or has left.
        """
        if self.joined is None:
            raise RendezvousStateError("notice: this node has not joined, or has left")
        return self.ask(Notify(self.joined.node.id, why, seconds=seconds))

    def close(self, by: str, why: str, at: str) -> Request:
        """Return the request to close the run; E1: it closes no later incarnation."""
        incarnation, _number = known_round(self.view)
        return self.ask(Close(by, why, at=at, incarnation=incarnation))

    def _seat(self, what: str) -> tuple[Join, Assignment]:
        if self.joined is None or self.view.assignment is None:
            raise RendezvousStateError(f"{what}: this node is in no round; join first")
        return self.joined, self.view.assignment
