"""The rendezvous part of the wire format (see `rallypoint.net.protocol`). PURE.

After the handshake a node's session sends `Ask` (join, leave, finish, fail, close, notify,
exclude, admit), `Beat`, `Resume` after a reconnect, and `Inquire`. The server answers an `Ask`
that has an id with `Done(id)` once the state is stored, and pushes what the core tells the node as
`Push`. A join has no id: its one answer is the pushed seat, or a refusal.
"""

import functools
from typing import Any, TypeVar, get_args

import msgspec

from rallypoint.core.events import (
    Admit,
    Close,
    Event,
    Exclude,
    Fail,
    Finish,
    Join,
    Leave,
    Notify,
)
from rallypoint.core.state import Node, Settings
from rallypoint.net import protocol as p
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.reports.status import ServerStatus
from rallypoint.rendezvous.view import NodeMessage


class _Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of the rendezvous bodies."""


NodeEvent = Join | Leave | Finish | Fail | Close | Notify | Exclude | Admit
_Event = TypeVar("_Event", bound=Event)


class Ask(_Body, frozen=True, tag=120):
    """An event of this node; answered with Done when `id` is not 0."""

    id: int
    event: NodeEvent


Beat = p.Beat  # tag 121: a sign of life, in both directions


class Resume(_Body, frozen=True, tag=122):
    """After a reconnect: the node is still the one that had this seat."""

    node: str
    incarnation: int
    round: int


class Inquire(_Body, frozen=True, tag=123):
    """Ask for a report; with `seats`, for the participants of the sealed round.

    With `server`, for what the server says of itself and its runs; with `brief`, for a report
    without members and rounds, which costs the same whatever their number.
    """

    id: int
    seats: bool = False
    server: bool = False
    brief: bool = False


class Push(_Body, frozen=True, tag=130):
    """A message of the core to this node."""

    message: NodeMessage


class Done(_Body, frozen=True, tag=131):
    """The event of Ask `id` is stored."""

    id: int


class Denied(_Body, frozen=True, tag=133):
    """This client's token does not allow Ask `id` (0: its join or resume)."""

    id: int
    why: str


class Answer(_Body, frozen=True, tag=132):
    """The answer to Inquire `id`."""

    id: int
    report: Report | None = None
    seats: tuple[Node, ...] = ()
    server: ServerStatus | None = None


COUNT_LIMIT = 2**31 - 1  # sums of such fit into what a frame can carry
SECONDS_LIMIT = 10 * 365 * 86400.0  # what event loops take
TEXT_LIMIT = 1024  # characters of one text that a node says of itself


def problem(event: NodeEvent, limit: int = TEXT_LIMIT) -> str:
    """Return why an event cannot come from a client of ours, "" if it can.

    Types are checked in decoding; these are the values that the core takes for granted.
    """
    if not isinstance(event, Join):
        return _problem_of_order(event, limit)
    node = event.node
    counts = (node.node_rank or 0, node.port, node.pid, node.local_world_size - 1)
    if min(counts) < 0 or max(counts) > COUNT_LIMIT:
        return (
            f"a join with node_rank={node.node_rank}, port={node.port}, pid={node.pid}, "
            f"local_world_size={node.local_world_size}"
        )
    if wrong := _problem_of(event.settings):
        return wrong
    texts = (node.id, node.address, node.slot or "", node.topology or "", node.role, node.host)
    if not node.id or max(map(len, texts)) > limit:
        return f"a join without an id, or with a text of more than {limit} characters"
    if not all(map(str.isprintable, texts)):
        return "a join with control characters in a name"
    return ""


@functools.lru_cache(maxsize=64)  # the nodes of a run say the same
def _problem_of(s: Settings) -> str:
    for name in Settings.__struct_fields__:
        value = getattr(s, name)
        if not isinstance(value, int | float):
            continue  # not given, or a text of a fixed set
        limit = SECONDS_LIMIT if name.endswith("_seconds") else COUNT_LIMIT
        if not 0 <= value <= limit:  # nor NaN
            return f"a join with {name}={value}"
    if not 1 <= s.min_nodes <= s.max_nodes:
        return f"a join with min_nodes={s.min_nodes}, max_nodes={s.max_nodes}"
    return ""


def _problem_of_order(event: NodeEvent, limit: int) -> str:
    seconds = event.seconds if isinstance(event, Notify | Exclude) else None
    if seconds is not None and not 0 <= seconds <= SECONDS_LIMIT:  # nor NaN
        kind = "a notify" if isinstance(event, Notify) else "an exclude"
        return f"{kind} with seconds={seconds}"
    if isinstance(event, Notify | Exclude) and max(len(event.why), len(event.by)) > limit:
        return f"a text of more than {limit} characters"  # which would be kept for long
    name = event.name if isinstance(event, Exclude | Admit) else "a node"
    fits = 0 < len(name) <= limit and name.isprintable()
    return "" if fits else "an exclusion without a name, or with one that cannot be shown"


_SAID_BY = {
    kind: tuple(name for name in ("why", "by", "at") if name in kind.__struct_fields__)
    for kind in get_args(Event)
}


def cleaned(event: _Event) -> _Event:
    """Return the event with control characters made visible: terminals and logs will show it.

    What is said of why, by whom and when becomes one line; a failure's message keeps its lines.
    """
    changes: dict[str, Any] = {}
    for name in _SAID_BY[type(event)]:
        text = getattr(event, name)
        if not text.isprintable():
            changes[name] = _visible(" ".join(text.split()))  # one line
    if isinstance(event, Exclude | Admit) and not event.name.isprintable():
        changes["name"] = _visible(" ".join(event.name.split()))
    if isinstance(event, Fail):
        f = event.failure
        texts = {n: _visible(getattr(f, n)) for n in ("node", "signal", "at", "message")}
        changes["failure"] = msgspec.structs.replace(f, **texts)
    return msgspec.structs.replace(event, **changes) if changes else event


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


ClientBody = p.Call | p.Bye | Ask | Beat | Resume | Inquire
HandshakeBody = p.Hello | p.Proof
ServerBody = (
    p.Reply | p.Failure | p.Challenge | p.Welcome | p.Goodbye | Push | Done | Answer | Denied | Beat
)
