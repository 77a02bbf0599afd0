"""The events that a run takes, and the messages that it sends. PURE.

Events come from nodes (`Join`, `Leave`, `Finish`, `Fail`, `Notify`, `Beat`), from people
(`Close`, `Exclude`, `Admit`, `Notify`) or from the host (`Disconnected`, `Reconnected`, `Lost`,
and the ends of timers). An event from a node names the incarnation and round that the node
knows, so that a late one is recognised (rule E1).
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
        after: the last round that it knows of, 0 if none.
        why: why it joins again, for people ("a worker failed", "nodes wait").
        new_incarnation: open a closed run again.
    """

    node: Node
    settings: Settings
    incarnation: int = 0
    after: int = 0
    why: str = ""
    new_incarnation: bool = False


class Leave(Value, frozen=True, tag=True):
    """A node leaves by itself."""

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
    """Somebody closes the run; `incarnation` is the one that is meant, 0 for any."""

    by: str
    why: str
    at: str = ""
    incarnation: int = 0


class Notify(Value, frozen=True, tag=True):
    """A node will leave: the node itself, or somebody else, gives notice.

    Args:
        node: id of the node.
        why: for people ("SIGTERM of the scheduler").
        by: who gives notice, "" for the node itself.
        seconds: time it has left, None if that is not known.
    """

    node: NodeId
    why: str
    by: str = ""
    seconds: float | None = None


class Exclude(Value, frozen=True, tag=True):
    """Somebody excludes nodes (rule H1).

    Args:
        aspect: what `name` is.
        name: of live nodes and of nodes that join later.
        why: for people.
        by: who excludes them.
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
    """Somebody ends the exclusion of `name`."""

    aspect: Aspect
    name: str
    by: str
    at: str = ""


class Beat(Value, frozen=True, tag=True):
    """A heartbeat (serverless; a server keeps heartbeats outside the state)."""

    node: NodeId


# -- events from the host -----------------------------------------------------------------


class Disconnected(Value, frozen=True, tag=True):
    """A node lost its connection without a leave; its grace begins (with a server)."""

    node: NodeId


class Reconnected(Value, frozen=True, tag=True):
    """A disconnected node is connected again (with a server)."""

    node: NodeId


class Cause(StrEnum):
    """How a node was lost."""

    LEASE = "its lease lapsed"
    DISCONNECT = "it disconnected and did not reconnect"
    DIED = "its process died"


class Lost(Value, frozen=True, tag=True):
    """A node is lost. `beats`: its heartbeats when the host decided so."""

    node: NodeId
    cause: Cause
    beats: int = 0


class LastCallOver(Value, frozen=True, tag=True):
    """The timer of last call `call` ended."""

    incarnation: int
    round: int
    call: int


class RejoinOver(Value, frozen=True, tag=True):
    """The time of the previous participants to join round `round` is over."""

    incarnation: int
    round: int


class ReplacementWaitOver(Value, frozen=True, tag=True):
    """Round `round` has waited long enough for replacements."""

    incarnation: int
    round: int


class SteadyOver(Value, frozen=True, tag=True):
    """Round `round` has worked so long that earlier failing rounds no longer count."""

    incarnation: int
    round: int


class ExclusionOver(Value, frozen=True, tag=True):
    """The time of exclusion `number` is over."""

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
    """The previous round is over.

    To each of its participants: join again. To each waiting node and spare: it is a candidate
    now, and need not join again.
    """

    incarnation: int
    round: int
    why: str
    lost: tuple[str, ...] = ()


class Parked(Value, frozen=True, tag=True):
    """To a node that joins during a sealed round: it waits for the next, or is a spare."""

    incarnation: int
    round: int
    spare: bool
    why: str


class WaitingChanged(Value, frozen=True, tag=True):
    """To each participant: how many nodes wait for the next round."""

    incarnation: int
    round: int
    count: int


class NoticeGiven(Value, frozen=True, tag=True):
    """To each participant, and to the node itself: the node will leave, so save.

    It holds until the node has left or the round is over; a repeated notice changes nothing.

    Args:
        incarnation: of the run.
        round: at work, or that nodes are joining.
        node: id of the node that will leave.
        label: its label, for people.
        why: for people.
        by: who gave the notice.
        seconds: time left when it was given, None if that is not known.
    """

    incarnation: int
    round: int
    node: NodeId
    label: str
    why: str
    by: str
    seconds: float | None = None


class SettingsHeld(Value, frozen=True, tag=True):
    """To a new node: it has joined, but the run was opened with other settings than its own."""

    why: str


class RunClosed(Value, frozen=True, tag=True):
    """To every live node: the incarnation has ended; `failures` are in order."""

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
    REPLACED = "replaced"  # fenced, and another node has its slot: it must not return
    EXCLUDED = "excluded"
    STALE = "stale"
    TOKEN = "token"  # noqa: S105 - what this client's token does not allow


SHUT_OUT = (Refusal.FENCED, Refusal.REPLACED)  # under this id, for ever


def shut_out_as(node: NodeId, replaced: Set[NodeId]) -> Refusal:
    """Return the refusal for a fenced node; a replaced one must not return (I1)."""
    return Refusal.REPLACED if node in replaced else Refusal.FENCED


class Refused(Value, frozen=True, tag=True):
    """To one node: its request is refused. `verdict` is that of a closed run."""

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
    """A message and the nodes that it goes to."""

    to: tuple[NodeId, ...]
    message: Message


class Assignment(Value, frozen=True):
    """One node's seat in a sealed round, without the others'.

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
        failing: number of consecutive rounds before it that failing workers ended; all nodes
            derive the same pause before they start workers from it.
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
    """Return the seat of the node with `rank`."""
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
