"""What happens to an agent, and what it then does: small nouns. PURE.

Events come from the coordinator, the workers' processes, timers and signals; actions are
carried out by `agent.agent`. What joins them is `agent.policy`.
"""

from enum import StrEnum

import msgspec

from rallypoint.rendezvous.core.events import Assignment
from rallypoint.rendezvous.core.state import Failure


class _Value(msgspec.Struct, frozen=True):
    """Base of events and actions."""


# -- events -------------------------------------------------------------------------------


class Sealed(_Value, frozen=True):
    """The round this node asked for is agreed."""

    assignment: Assignment


class WorkerExited(_Value, frozen=True):
    """A worker of `round` ended by itself or was ended.

    Args:
        round: the round it worked in.
        local_rank: its rank on this node.
        exit_code: its exit code, None if a signal ended it.
        signal: name of that signal, or "".
        at: when, as a text for people.
        lines: the last lines of its stderr.
    """

    round: int
    local_rank: int
    exit_code: int | None
    signal: str = ""
    at: str = ""
    lines: tuple[str, ...] = ()


class WorkersStopped(_Value, frozen=True):
    """All workers are gone (or were given up: see `stuck`, their process ids)."""

    stuck: tuple[int, ...] = ()


class RoundOpened(_Value, frozen=True):
    """Round `round` gathers: the one this node works in is over."""

    incarnation: int
    round: int
    why: str
    lost: tuple[str, ...] = ()


class NodesWaiting(_Value, frozen=True):
    """So many nodes wait to be taken in."""

    count: int


class AdmitDue(_Value, frozen=True):
    """The admit timer that was started in `round` is over."""

    round: int


class RunClosed(_Value, frozen=True):
    """The incarnation ended for everyone."""

    incarnation: int
    by: str
    why: str
    finished: bool
    failures: tuple[Failure, ...] = ()


class Fenced(_Value, frozen=True):
    """This node counts as lost and may only come back as a newcomer (rule L2)."""

    why: str


class JoinError(StrEnum):
    """Why a join ended without a round."""

    NOT_NEEDED = "not needed"
    CLOSED = "closed"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    REFUSED = "refused"
    OTHER = "other"


class JoinFailed(_Value, frozen=True):
    """The join ended without a round; `text` is the error's message."""

    error: JoinError
    text: str
    failures: tuple[Failure, ...] = ()


class Signal(_Value, frozen=True):
    """A signal asks this agent to go."""

    name: str
    number: int


class AgentFailed(_Value, frozen=True):
    """Something of the agent's own failed (a background thread, starting a worker)."""

    text: str


Event = (
    Sealed | WorkerExited | WorkersStopped | RoundOpened | NodesWaiting | AdmitDue
    | RunClosed | Fenced | JoinFailed | Signal | AgentFailed
)  # fmt: skip


# -- actions ------------------------------------------------------------------------------


class Join(_Value, frozen=True):
    """Ask for the next round; the answer is `Sealed` or `JoinFailed`."""

    why: str


class StartWorkers(_Value, frozen=True):
    """Start this node's workers for a round."""

    assignment: Assignment


class StopWorkers(_Value, frozen=True):
    """Ask the workers to end, and end them after the grace; answered by `WorkersStopped`.

    Given again, it only shortens the grace.
    """

    grace_seconds: float


class ReportFailure(_Value, frozen=True):
    """Tell the coordinator that a worker failed; the other nodes learn it at once."""

    failure: Failure


class Finish(_Value, frozen=True):
    """Tell the coordinator that this node's work is done."""


class Leave(_Value, frozen=True):
    """Go in good order, so that nobody has to find out."""

    why: str


class StartAdmitTimer(_Value, frozen=True):
    """Answer with `AdmitDue(round)` after `seconds`."""

    round: int
    seconds: float


class Exit(_Value, frozen=True):
    """End the agent. Failures are those of the run, the first one first."""

    code: int
    text: str = ""
    failures: tuple[Failure, ...] = ()


Action = Join | StartWorkers | StopWorkers | ReportFailure | Finish | Leave | StartAdmitTimer | Exit
