"""The record of admin actions: who did what to which run, from where, and when.

Each is one line in the log `rallypoint.audit` (which `rallypoint serve` always writes) and part
of the run's state: everyone sees who closed the run or excluded a node. A client's name for
itself is its own claim; its token and its address are what this server has seen.
"""

import logging
from typing import TypeVar

import msgspec

from rallypoint.core.events import Admit, Close, Exclude, Notify
from rallypoint.core.state import NodeId
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.wire import NodeEvent
from rallypoint.wallclock import now_text

T = TypeVar("T", bound=Order)

logger = logging.getLogger("rallypoint.audit")

_DEEDS = {
    Close: "close",
    Exclude: "exclude a node from",
    Admit: "admit a node to",
    Notify: "give notice for a node of",
}


def order(event: NodeEvent, me: NodeId | None) -> Order | None:
    """Return an event that needs admin rights, None if it is a node's own.

    Args:
        event: as the client sent it.
        me: the client's node, None if it takes no part.
    """
    if isinstance(event, Notify):
        return None if event.node == me else event
    return event if isinstance(event, Close | Exclude | Admit) else None


def deed(event: Order) -> str:
    """Return what an order does, to be followed by "run 'x'"."""
    return _DEEDS[type(event)]


def recorded(event: T, run_id: str, who: str, peer: str) -> T:
    """Log an order and return it as it is to be stored, with this server's time.

    Args:
        event: as the client sent it.
        run_id: the run.
        who: the client's token, by its key id; "" where none is asked for.
        peer: the client's address.
    """
    host = peer.rpartition(":")[0] or peer  # the port says nothing to whoever reads it later
    by = f"{event.by} ({who}, {host})" if who else event.by
    whom = "" if isinstance(event, Close) else f" {_named(event)!r}"
    why = "" if isinstance(event, Admit) else event.why
    reason = repr(why) if why else "no reason"
    name = type(event).__name__.lower()
    token = who or "no token"
    logger.info(
        "%s%s of run %r by %r (%s, %s): %s", name, whom, run_id, event.by, token, peer, reason
    )
    if isinstance(event, Notify):  # it has no time of its own
        return msgspec.structs.replace(event, by=by)
    return msgspec.structs.replace(event, by=by, at=now_text())


def _named(event: Exclude | Admit | Notify) -> str:
    return event.node if isinstance(event, Notify) else f"{event.aspect} {event.name}"
