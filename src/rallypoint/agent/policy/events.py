"""The events an agent reacts to, and the actions it takes. PURE.

Events come from the coordinator, the worker processes, timers and signals. `policy.decisions`
maps events to actions, and `agent.loop` carries the actions out.
"""

from enum import StrEnum

import msgspec

from rallypoint.core.events import Assignment
from rallypoint.core.state import Failure, Verdict
from rallypoint.worker.change import ChangeKind

# -- events -------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True):
    """Base of the events."""


class Sealed(Event, frozen=True):
    """The round this node joined is sealed."""

    assignment: Assignment


class WorkerExited(Event, frozen=True):
    """A worker exited, or was killed.

    Args:
        round: number of the worker's round.
        local_rank: its rank on this node.
        exit_code: its exit code, None if a signal killed it.
        signal: name of that signal, or "".
        at: wall-clock time of the exit, for people.
        lines: the last lines of its stderr.
    """

    round: int
    local_rank: int
    exit_code: int | None
    signal: str = ""
    at: str = ""
    lines: tuple[str, ...] = ()


class WorkerHung(Event, frozen=True):
    """A worker is alive but reports no progress.

    Args:
        round: number of the worker's round.
        local_rank: its rank on this node.
        step: the last step that it reported.
        still_seconds: seconds since that report.
        at: wall-clock time of the detection, for people.
        lines: its stack, as far as it could be read.
    """

    round: int
    local_rank: int
    step: int
    still_seconds: float
    at: str = ""
    lines: tuple[str, ...] = ()


class WorkersStopped(Event, frozen=True):
    """All workers have ended, except the process ids in `stuck`, which even SIGKILL did not end."""

    stuck: tuple[int, ...] = ()


class RoundOpened(Event, frozen=True):
    """Round `round` has opened, so this node's current round is over."""

    incarnation: int
    round: int
    why: str
    lost: tuple[str, ...] = ()


class NodesWaiting(Event, frozen=True):
    """`count` nodes wait to be admitted."""

    count: int


class Notice(msgspec.Struct, frozen=True):
    """A node of the round has announced that it will leave.

    Args:
        node: its id.
        label: its label, for people.
        why: reason, for people.
        seconds: until it leaves, None if unknown.
        mine: whether it is this node.
    """

    node: str
    label: str
    why: str
    seconds: float | None = None
    mine: bool = False


class NoticesChanged(Event, frozen=True):
    """The current notices, oldest first."""

    notices: tuple[Notice, ...]


class WorkersSaved(Event, frozen=True):
    """All ranks of `round` have saved at `step`, as asked."""

    round: int
    step: int


class ChangeTimerElapsed(Event, frozen=True):
    """The timer of this number, started in `round` by `StartChangeTimer`, has elapsed."""

    round: int
    timer: int


class BackoffElapsed(Event, frozen=True):
    """The pause before starting `round`'s workers is over."""

    round: int


class RunClosed(Event, frozen=True):
    """The run's incarnation was closed for all nodes."""

    incarnation: int
    by: str
    why: str
    verdict: Verdict
    failures: tuple[Failure, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether the run succeeded."""
        return self.verdict is Verdict.FINISHED


class Fenced(Event, frozen=True):
    """The coordinator counts this node as lost; it may only rejoin as a newcomer (rule L2).

    `replaced`: another node has taken its slot, so it must not rejoin at all (rule I1).
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


class JoinFailed(Event, frozen=True):
    """The join ended without a round; `text` is the error's message.

    `verdict` and `failures` are those of the run, if it is known to be closed.
    """

    error: JoinError
    text: str
    failures: tuple[Failure, ...] = ()
    verdict: Verdict | None = None


class Signal(Event, frozen=True):
    """A signal asks this agent to end."""

    name: str
    number: int


class SignalToForward(Event, frozen=True):
    """A signal meant for the workers (`--forward-signals`)."""

    name: str
    number: int


class PreemptSignal(Event, frozen=True):
    """A signal announces that this node will be preempted (`--preempt-signal`)."""

    name: str
    number: int


class AgentFailed(Event, frozen=True):
    """A part of the agent failed, such as a background thread or the start of a worker."""

    text: str


# -- actions ------------------------------------------------------------------------------


class Action(msgspec.Struct, frozen=True):
    """Base of the actions."""


class Join(Action, frozen=True):
    """Join the next round; answered by `Sealed` or `JoinFailed`.

    Args:
        why: reason, for people.
        announced: whether the user has already seen the reason.
    """

    why: str
    announced: bool = False


class StartWorkers(Action, frozen=True):
    """Start this node's workers for a round."""

    assignment: Assignment


class StopWorkers(Action, frozen=True):
    """Terminate the workers, and kill them after the grace; answered by `WorkersStopped`.

    A second one can only shorten the grace.
    """

    grace_seconds: float


class ReportFailure(Action, frozen=True):
    """Report a worker's failure to the coordinator, which notifies the other nodes."""

    failure: Failure


class Finish(Action, frozen=True):
    """Report to the coordinator that this node's work is done."""


class Leave(Action, frozen=True):
    """Leave the run, so that the others need not wait for a failure detector."""

    why: str


class StartChangeTimer(Action, frozen=True):
    """Answer with `ChangeTimerElapsed(round, timer)` after `seconds`."""

    round: int
    seconds: float
    timer: int


class AskToSave(Action, frozen=True):
    """Announce a membership change to the workers, so that they save first.

    Args:
        incarnation: of the run.
        round: number of the workers' round.
        kind: of the change.
        who: the node or nodes, for people.
        why: reason, for people.
        seconds: time in which to save.
        watch: answer with `WorkersSaved` when all ranks have saved.
    """

    incarnation: int
    round: int
    kind: ChangeKind
    who: str
    why: str
    seconds: float
    watch: bool


class CancelChange(Action, frozen=True):
    """Tell the workers that the announced change will not happen."""


class ReleaseWorkers(Action, frozen=True):
    """Release the workers that saved at `step` and wait for a change that will not happen."""

    incarnation: int
    round: int
    step: int


class StartBackoffTimer(Action, frozen=True):
    """Answer with `BackoffElapsed(round)` after `seconds`; show `why` to the user."""

    round: int
    seconds: float
    why: str


class ForwardSignal(Action, frozen=True):
    """Send a signal to each worker process, but not to its children."""

    name: str
    number: int


class GiveNotice(Action, frozen=True):
    """Announce to all nodes, through the coordinator, that this node will leave.

    `seconds`: until it leaves, None if unknown.
    """

    why: str
    seconds: float | None = None


class Exit(Action, frozen=True):
    """End the agent. `failures` are those of the run, oldest first."""

    code: int
    text: str = ""
    failures: tuple[Failure, ...] = ()
