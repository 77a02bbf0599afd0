"""What happens to a run, and what it answers: small nouns. PURE.

Events come from nodes (`Join`, `Leave`, `Finish`, `Fail`, `Notify`, `Beat`), from people
(`Close`, `Exclude`, `Admit`, `Notify`) or from the host (`Disconnected`, `Reconnected`, `Lost`,
and the ends of timers). An event from a node names the incarnation and round that the node
knows, so one that comes late is recognised (E1).
"""

from collections.abc import Set
from enum import StrEnum

from rallypoint.core.state import (
    Aspect,
    Failure,
    Node,
    NodeId,
    Round,
    Settings,
    Value,
    Verdict,
)

# -- events from nodes --------------------------------------------------------------------


class Join(Value, frozen=True, tag=True):
    """A node asks for the next round.

    Args:
        node: who asks.
        settings: what it wants the run to be.
        incarnation: the one it knows, 0 if none.
        after: the last round it took part in or was told of, 0 if none.
        why: what made it ask again, for people ("a worker failed", "nodes wait").
        new_incarnation: open a closed run afresh.
    """

    node: Node
    settings: Settings
    incarnation: int = 0
    after: int = 0
    why: str = ""
    new_incarnation: bool = False


class Leave(Value, frozen=True, tag=True):
    """A node goes in good order."""

    node: NodeId
    why: str = ""


class Finish(Value, frozen=True, tag=True):
    """A participant's work is done."""

    node: NodeId
    incarnation: int
    round: int
    at: str = ""


class Fail(Value, frozen=True, tag=True):
    """A participant's worker failed; its node will join again."""

    node: NodeId
    incarnation: int
    round: int
    failure: Failure


class Close(Value, frozen=True, tag=True):
    """Someone ends the incarnation that it knows (0: whichever is open)."""

    by: str
    why: str
    at: str = ""
    incarnation: int = 0


class Notify(Value, frozen=True, tag=True):
    """Word that a node will leave, from itself or from someone else.

    Args:
        node: who will leave.
        why: for people ("SIGTERM of the scheduler").
        by: who says so, "" for the node itself.
        seconds: how long it still has, None if that is not known.
    """

    node: NodeId
    why: str
    by: str = ""
    seconds: float | None = None


class Exclude(Value, frozen=True, tag=True):
    """Someone wants nodes kept out (rule H1).

    Args:
        aspect: what `name` is.
        name: of the nodes that are meant, now and later.
        why: for people.
        by: who wants it so.
        seconds: for how long, None: until they are admitted.
        at: when, as a text.
    """

    aspect: Aspect
    name: str
    why: str
    by: str
    seconds: float | None = None
    at: str = ""


class Admit(Value, frozen=True, tag=True):
    """Someone ends the exclusion of `name`."""

    aspect: Aspect
    name: str
    by: str
    at: str = ""


class Beat(Value, frozen=True, tag=True):
    """A node is alive (shared host only; the server counts silence outside the state)."""

    node: NodeId


# -- events from the host -----------------------------------------------------------------


class Disconnected(Value, frozen=True, tag=True):
    """A node's connection was cut without a leave; its grace runs (hosted)."""

    node: NodeId


class Reconnected(Value, frozen=True, tag=True):
    """The connection came back in time (hosted)."""

    node: NodeId


class Cause(StrEnum):
    """How a node was lost."""

    LEASE = "its lease lapsed"
    DISCONNECT = "its connection was cut and did not come back"
    DIED = "its process died"


class Lost(Value, frozen=True, tag=True):
    """A node's lease lapsed or its grace is over. `beats`: what the host had seen by then."""

    node: NodeId
    cause: Cause
    beats: int = 0


class LastCallOver(Value, frozen=True, tag=True):
    """The timer of last call `call` ended."""

    incarnation: int
    round: int
    call: int


class RejoinOver(Value, frozen=True, tag=True):
    """The participants of the round before have had their time to join round `round`."""

    incarnation: int
    round: int


class ReplacementWaitOver(Value, frozen=True, tag=True):
    """Round `round` has waited long enough for replacements."""

    incarnation: int
    round: int


class SteadyOver(Value, frozen=True, tag=True):
    """Round `round` has worked for so long that failures before it count no more."""

    incarnation: int
    round: int


class ExclusionOver(Value, frozen=True, tag=True):
    """Exclusion `number` has lasted as long as it should."""

    number: int


Timer = LastCallOver | RejoinOver | ReplacementWaitOver | SteadyOver | ExclusionOver
Event = (
    Join | Leave | Finish | Fail | Close | Notify | Exclude | Admit | Beat
    | Disconnected | Reconnected | Lost
    | LastCallOver | RejoinOver | ReplacementWaitOver | SteadyOver | ExclusionOver
)  # fmt: skip


# -- messages -----------------------------------------------------------------------------


class RoundSealed(Value, frozen=True, tag=True):
    """To each participant: the round is agreed."""

    record: Round


class RoundOpened(Value, frozen=True, tag=True):
    """To each participant of the round before: it is over, join again."""

    incarnation: int
    round: int
    why: str
    lost: tuple[str, ...] = ()


class Parked(Value, frozen=True, tag=True):
    """To a newcomer during a sealed round: it waits for the next, or is a spare."""

    incarnation: int
    round: int
    spare: bool
    why: str


class WaitingChanged(Value, frozen=True, tag=True):
    """To each participant: so many nodes wait for the next round."""

    incarnation: int
    round: int
    count: int


class NoticeGiven(Value, frozen=True, tag=True):
    """To each participant, and to the node itself: it will leave, so save what must be saved.

    It stands until the node has gone or the round is over; giving it again changes nothing.

    Args:
        incarnation: of the run.
        round: that is at work, or for which nodes are joining.
        node: id of who will leave.
        label: its label, for people.
        why: for people.
        by: who says so.
        seconds: how long it had when the notice was given, None if that is not known.
    """

    incarnation: int
    round: int
    node: NodeId
    label: str
    why: str
    by: str
    seconds: float | None = None


class SettingsHeld(Value, frozen=True, tag=True):
    """To a newcomer: it is in, but the run was opened with other values than it gave."""

    why: str


class RunClosed(Value, frozen=True, tag=True):
    """To every live node: the incarnation has ended; `failures`: the first one first."""

    incarnation: int
    round: int
    by: str
    at: str
    why: str
    verdict: Verdict
    failures: tuple[Failure, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether all went well."""
        return self.verdict is Verdict.FINISHED


class Refusal(StrEnum):
    """Why a request was refused."""

    CLOSED = "closed"
    SETTINGS = "settings"
    NODE_RANK = "node-rank"
    FENCED = "fenced"
    REPLACED = "replaced"  # fenced, and another node has its place: it must not come back
    EXCLUDED = "excluded"
    STALE = "stale"
    TOKEN = "token"  # noqa: S105 - what this client's token does not allow


SHUT_OUT = (Refusal.FENCED, Refusal.REPLACED)  # for good, under this id


def shut_out_as(node: NodeId, replaced: Set[NodeId]) -> Refusal:
    """Return how a fenced node is told of it: a replaced one must not come back (I1)."""
    return Refusal.REPLACED if node in replaced else Refusal.FENCED


class Refused(Value, frozen=True, tag=True):
    """To one node: what it asked for cannot be had. `verdict`: of a run that is closed."""

    refusal: Refusal
    why: str
    incarnation: int = 0
    round: int = 0
    failures: tuple[Failure, ...] = ()
    verdict: Verdict | None = None

    @property
    def finished(self) -> bool:
        """Whether a run is closed to this node because all went well."""
        return self.verdict is Verdict.FINISHED


Message = (
    RoundSealed | RoundOpened | Parked | WaitingChanged | NoticeGiven | SettingsHeld
    | RunClosed | Refused
)  # fmt: skip


class Send(Value, frozen=True):
    """One message, and the nodes it goes to."""

    to: tuple[NodeId, ...]
    message: Message


class Assignment(Value, frozen=True):
    """What one node needs of a sealed round: its seat, without the others'.

    Args:
        incarnation: of the run.
        round: number of the round.
        rank: of the node among the nodes.
        size: number of nodes.
        worker_offset: global rank of the node's first worker.
        world_size: number of all workers.
        role_offset: rank of the node's first worker among its role's.
        role_world_size: number of workers of the node's role.
        master_addr: bootstrap address (rank 0's).
        master_port: bootstrap port.
        restarts: how much of the failure budget is used up.
        reason: why the round was sealed when it was.
        failing: how many rounds before it, without a break, were ended by failing workers; the
            same on all nodes, so that all wait alike before they start workers again.
    """

    incarnation: int
    round: int
    rank: int
    size: int
    worker_offset: int
    world_size: int
    role_offset: int
    role_world_size: int
    master_addr: str
    master_port: int
    restarts: int
    reason: str
    failing: int = 0


def assignment(record: Round, rank: int) -> Assignment:
    """Return what the node of `rank` needs of a sealed round."""
    seat = record.seats[rank]
    return Assignment(
        record.incarnation,
        record.number,
        rank,
        len(record.seats),
        seat.worker_offset,
        record.world_size,
        seat.role_offset,
        seat.role_world_size,
        record.master_addr,
        record.master_port,
        record.restarts,
        record.reason,
        record.failing,
    )
