"""The configuration of an agent."""

from collections.abc import Callable, Mapping

import msgspec

from rallypoint.agent.output import OutputPlan
from rallypoint.agent.policy.membership_change import MembershipRules
from rallypoint.agent.workers.environment import WorkerContext
from rallypoint.net.endpoints import Endpoint
from rallypoint.store.api import Store


class SignalPlan(msgspec.Struct, frozen=True):
    """The signals that do not end the agent.

    Args:
        forwarded: names of those that are forwarded to the workers ("SIGUSR1").
        preempt: name of the one that announces that this node will be preempted, "" for none.
    """

    forwarded: tuple[str, ...] = ()
    preempt: str = ""


class Supervision(msgspec.Struct, frozen=True):
    """How an agent watches its node and workers, and reports about them.

    Args:
        signals: those that do not end the agent.
        health_check: shell command that must succeed before each join, "" for none.
        health_check_seconds: limit for that command.
        hang_seconds: after which a worker without progress counts as hung; 0 for never.
        events_file: JSON Lines file that the event log is appended to, "" for none.
        health: host and port of the HTTP health server, None for none.
    """

    signals: SignalPlan = SignalPlan()
    health_check: str = ""
    health_check_seconds: float = 60.0
    hang_seconds: float = 0.0
    events_file: str = ""
    health: Endpoint | None = None


class AgentConfig(msgspec.Struct, frozen=True):
    """What an agent runs, and how.

    Args:
        argv: the workers' command.
        context: what their environments share.
        output: where their output goes.
        node: label of this node in failures.
        base_env: environment that the workers inherit.
        stop_grace_seconds: from SIGTERM to SIGKILL.
        rules: when nodes join and leave a round at work.
        admit_signal: name of the signal that tells the workers of a membership change, "" for
            none.
        worker_store: opens the run's store as the workers see it; None without a store, and
            then no change waits for the workers to save.
        examine: returns what keeps the nodes apart when a join takes long (`join.progress`).
        worker_token: makes the workers' token each time they start, since the nodes' token may
            be rotated; None: the token of `context`.
        supervision: how it watches its node and workers.
        join_seconds: after which a join times out; for the progress that is shown.
        close_seconds: limit for a failure report and for the finish.
        alone: whether this is the run's only node, so that a server that is gone stays gone.
    """

    argv: tuple[str, ...]
    context: WorkerContext
    output: OutputPlan
    node: str
    base_env: Mapping[str, str]
    stop_grace_seconds: float = 30.0
    rules: MembershipRules = MembershipRules()
    admit_signal: str = ""
    worker_store: Callable[[], Store] | None = None
    examine: Callable[[], str] | None = None
    worker_token: Callable[[], str] | None = None
    supervision: Supervision = Supervision()
    join_seconds: float = 600.0
    close_seconds: float = 30.0
    alone: bool = False
