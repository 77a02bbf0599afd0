"""The rendezvous part of the wire format (see `rallypoint.store.protocol`). PURE.

After the handshake a node's session sends `Ask` (join, leave, finish, fail, close), `Beat`,
`Resume` after a reconnect, and `Inquire`. The server answers an `Ask` that has an id with
`Done(id)` once the state is stored, and pushes what the core tells the node as `Push`. A
join has no id: its one answer is the pushed seat, or a refusal.
"""

import msgspec

from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.core.events import (
    Assignment,
    Close,
    Fail,
    Finish,
    Join,
    Leave,
    Parked,
    Refused,
    RoundOpened,
    RunClosed,
    WaitingChanged,
)
from rallypoint.rendezvous.core.state import Node
from rallypoint.store import protocol as p


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """Base of the rendezvous bodies."""


class Seated(_Body, frozen=True, tag=True):
    """The node's seat in a sealed round."""

    seat: Assignment


NodeEvent = Join | Leave | Finish | Fail | Close
Told = Seated | RoundOpened | Parked | WaitingChanged | RunClosed | Refused


class Ask(_Body, frozen=True, tag=120):
    """An event of this node; answered with Done when `id` is not 0."""

    id: int
    event: NodeEvent


class Beat(_Body, frozen=True, tag=121):
    """A sign of life, in both directions."""


class Resume(_Body, frozen=True, tag=122):
    """After a reconnect: the node is still the one that had this seat."""

    node: str
    incarnation: int
    round: int


class Inquire(_Body, frozen=True, tag=123):
    """Ask for a report; with `seats`, for the participants of the sealed round."""

    id: int
    seats: bool = False


class Push(_Body, frozen=True, tag=130):
    """What the core tells this node."""

    message: Told


class Done(_Body, frozen=True, tag=131):
    """The event of Ask `id` is stored."""

    id: int


class Answer(_Body, frozen=True, tag=132):
    """The answer to Inquire `id`."""

    id: int
    report: Report | None = None
    seats: tuple[Node, ...] = ()


ClientBody = p.Call | p.Bye | Ask | Beat | Resume | Inquire
HandshakeBody = p.Hello | p.Proof
ServerBody = p.Reply | p.Failure | p.Challenge | p.Welcome | p.Goodbye | Push | Done | Answer | Beat
