"""What happens to an agent, and what it then does: small nouns. PURE.

Events come from the coordinator, the workers' processes, timers and signals; actions are
carried out by `agent.agent`. What joins them is `agent.policy`.
"""

from enum import StrEnum

import msgspec

from rallypoint.core.events import Assignment
from rallypoint.core.state import Failure, Verdict
from rallypoint.worker.change import ChangeKind


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


class WorkerHung(_Value, frozen=True):
    """A worker of `round` stands still: it lives, and its steps have stopped.

    Args:
        round: the round it works in.
        local_rank: its rank on this node.
        step: the last step that it told.
        still_seconds: how long ago that was.
        at: when it was noticed, as a text for people.
        lines: its stack, as far as it could be had.
    """

    round: int
    local_rank: int
    step: int
    still_seconds: float
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


class Notice(_Value, frozen=True):
    """A node of the round will leave.

    Args:
        node: its id.
        label: its label, for people.
        why: for people.
        seconds: how long it still has, None if that is not known.
        mine: whether it is this node.
    """

    node: str
    label: str
    why: str
    seconds: float | None = None
    mine: bool = False


class NoticesStand(_Value, frozen=True):
    """These notices stand now, the oldest first."""

    notices: tuple[Notice, ...]


class WorkersSaved(_Value, frozen=True):
    """All ranks of `round` have saved at `step`, as they were asked to."""

    round: int
    step: int


class AdmitDue(_Value, frozen=True):
    """The admit timer of this number that was started in `round` is over."""

    round: int
    timer: int


class BackoffOver(_Value, frozen=True):
    """The pause before `round`'s workers are started is over."""

    round: int


class RunClosed(_Value, frozen=True):
    """The incarnation ended for everyone."""

    incarnation: int
    by: str
    why: str
    verdict: Verdict
    failures: tuple[Failure, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether all went well."""
        return self.verdict is Verdict.FINISHED


class Fenced(_Value, frozen=True):
    """This node counts as lost and may only come back as a newcomer (rule L2).

    `replaced`: another one has its place, so it must not come back at all (rule I1).
    """

    why: str
    replaced: bool = False


class JoinError(StrEnum):
    """Why a join ended without a round."""

    NOT_NEEDED = "not needed"
    CLOSED = "closed"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    REFUSED = "refused"
    UNHEALTHY = "unhealthy"
    OTHER = "other"


class JoinFailed(_Value, frozen=True):
    """The join ended without a round; `text` is the error's message.

    `verdict` and `failures` are the run's, where it is known to be closed.
    """

    error: JoinError
    text: str
    failures: tuple[Failure, ...] = ()
    verdict: Verdict | None = None


class Signal(_Value, frozen=True):
    """A signal asks this agent to go."""

    name: str
    number: int


class SignalToPassOn(_Value, frozen=True):
    """A signal that is meant for the workers (`--forward-signals`)."""

    name: str
    number: int


class PreemptSignal(_Value, frozen=True):
    """A signal says that this node will be taken away soon (`--preempt-signal`)."""

    name: str
    number: int


class AgentFailed(_Value, frozen=True):
    """Something of the agent's own failed (a background thread, starting a worker)."""

    text: str


Event = (
    Sealed | WorkerExited | WorkerHung | WorkersStopped | RoundOpened | NodesWaiting | NoticesStand
    | WorkersSaved | AdmitDue | BackoffOver | RunClosed | Fenced | JoinFailed | Signal
    | SignalToPassOn | PreemptSignal | AgentFailed
)  # fmt: skip


# -- actions ------------------------------------------------------------------------------


class Join(_Value, frozen=True):
    """Ask for the next round; the answer is `Sealed` or `JoinFailed`.

    Args:
        why: for people.
        told: whether the user was told why already.
    """

    why: str
    told: bool = False


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
    """Answer with `AdmitDue(round, timer)` after `seconds`."""

    round: int
    seconds: float
    timer: int


class AskToSave(_Value, frozen=True):
    """Announce a change to the workers, so that they save.

    Args:
        incarnation: of the run.
        round: that the workers are in.
        kind: of the change.
        who: for people.
        why: for people.
        seconds: how long they have.
        watch: answer with `WorkersSaved` when all ranks have saved.
    """

    incarnation: int
    round: int
    kind: ChangeKind
    who: str
    why: str
    seconds: float
    watch: bool


class TakeBack(_Value, frozen=True):
    """Tell the workers that no change is pending any more."""


class LetGoOn(_Value, frozen=True):
    """Let the workers go on that have saved at `step` for a change that does not come."""

    incarnation: int
    round: int
    step: int


class StartBackoffTimer(_Value, frozen=True):
    """Answer with `BackoffOver(round)` after `seconds`; `why` is told to the user."""

    round: int
    seconds: float
    why: str


class PassOn(_Value, frozen=True):
    """Send a signal to each worker itself; what it started is the worker's business."""

    name: str
    number: int


class GiveNotice(_Value, frozen=True):
    """Tell the coordinator, and through it all nodes, that this node will leave soon.

    `seconds`: how long it still has, None if that is not known.
    """

    why: str
    seconds: float | None = None


class Exit(_Value, frozen=True):
    """End the agent. Failures are those of the run, the first one first."""

    code: int
    text: str = ""
    failures: tuple[Failure, ...] = ()


Action = (
    Join | StartWorkers | StopWorkers | ReportFailure | Finish | Leave | StartAdmitTimer
    | AskToSave | TakeBack | LetGoOn | StartBackoffTimer | PassOn | GiveNotice | Exit
)  # fmt: skip
