"""What a node says to its server, and when: the session's decisions as functions. PURE.

The session (a thread and a socket) and the simulator (neither) both ask here: what a join
says, what is said first on a new connection, when a join is settled, and when a server that
says nothing counts as gone. What a node was told is folded into its view by `wire.told`.
"""

from collections.abc import Iterable

from rallypoint.core.events import Join, Refused
from rallypoint.core.state import Node, Settings
from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.coordinator import View

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
STANDBY_PAUSE_SECONDS = 0.8
JITTER = 1.5  # the most by which a pause is stretched
ATTEMPT_SECONDS = 5.0  # of one attempt to connect
LONGEST_BEAT_SECONDS = 5.0  # the run may have been opened with a shorter lease than ours
BEAT_OF_SEVERAL_SECONDS = 3.0
ANSWER_SECONDS = 2.0  # to a sign of life, of one of several servers
BEATS_PER_LEASE = 3

Known = tuple[int, int]


def request(
    view: View, before: Join | None, node: Node, settings: Settings, why: str, afresh: bool
) -> tuple[Join, View]:
    """Return a new join, and the view to begin it with: what is known is the last seat.

    Args:
        view: what the node was told so far.
        before: its last join, None if it has none or has left.
        node: who asks now; another id than before knows nothing.
        settings: what it wants the run to be.
        why: for people.
        afresh: open a closed run as a new incarnation.
    """
    same = before is not None and before.node.id == node.id
    seat = view.assignment if same and view.closed is None else None
    incarnation, number = known_of(view) if seat else (0, 0)
    join = Join(node, settings, incarnation, number, why=why, new_incarnation=afresh)
    return join, View(assignment=seat, connected=view.connected, error=view.error)


def known_of(view: View) -> Known:
    """Return incarnation and round of the node's seat, zeros if it has none."""
    seat = view.assignment
    return (seat.incarnation, seat.round) if seat else (0, 0)


def is_settled(join: Join, view: View, refused: Refused | None) -> bool:
    """Return whether a join has its answer: a newer seat, or a reason why there is none."""
    if refused or view.fenced or view.closed or view.error:
        return True
    return view.assignment is not None and known_of(view) != (join.incarnation, join.after)


def greetings(view: View, join: Join | None, asked: Iterable[bytes]) -> list[bytes]:
    """Return the frames that go first on a new connection, those without an answer included.

    A join that has no answer yet is sent again; a node that has its seat resumes; one that
    was shut out, or has not joined, says nothing of itself.
    """
    first: list[bytes] = []
    if join is not None and view.fenced is None and view.closed is None:
        seat = view.assignment
        if seat is not None and seat.round > join.after:
            first = [p.frame(wire.Resume(join.node.id, seat.incarnation, seat.round))]
        else:
            first = [p.frame(wire.Ask(0, join))]
    return [*first, *asked]


def beat_seconds(lease_seconds: float, several: bool = False) -> float:
    """Return the time between two signs of life, to one server or to one of several."""
    longest = BEAT_OF_SEVERAL_SECONDS if several else LONGEST_BEAT_SECONDS
    return min(lease_seconds / BEATS_PER_LEASE, longest)


def silence_seconds(lease_seconds: float, several: bool) -> float:
    """Return how long a server may say nothing: a lease; of several servers, less.

    Another one may lead by now, and a node that asks it in vain loses nothing.
    """
    if not several:
        return lease_seconds
    return min(lease_seconds, BEAT_OF_SEVERAL_SECONDS + ANSWER_SECONDS)


def is_gone(silent_seconds: float, late_seconds: float, limit_seconds: float) -> bool:
    """Return whether a server that said nothing for so long counts as gone.

    `late_seconds`: by how much this look comes too late; who was held up has not listened.
    """
    return silent_seconds > max(limit_seconds, 2 * late_seconds)


def absence_seconds(lease_seconds: float) -> float:
    """Return after which time a node that can come back to a server has done so.

    It takes a server that says nothing as gone after a lease and a beat, and may then just
    have begun an attempt to connect that leads nowhere, and the longest pause.
    """
    attempt = ATTEMPT_SECONDS + JITTER * LONGEST_PAUSE_SECONDS
    return lease_seconds + beat_seconds(lease_seconds) + attempt


def next_pause(pause_seconds: float, standby: bool = False) -> float:
    """Return the pause after the next failed attempt to connect (its caller adds jitter).

    `standby`: a server that stands by has answered, so that one will lead within its lease.
    """
    longest = STANDBY_PAUSE_SECONDS if standby else LONGEST_PAUSE_SECONDS
    return min(2 * pause_seconds, longest)
