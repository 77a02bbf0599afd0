"""What an agent is asked to run."""

from collections.abc import Callable, Mapping

import msgspec

from rallypoint.agent.output.destinations import OutputPlan
from rallypoint.agent.policy.membership_change import Rules
from rallypoint.agent.workers.environment import WorkerContext
from rallypoint.net.endpoints import Endpoint
from rallypoint.store.api import Store


class SignalPlan(msgspec.Struct, frozen=True):
    """Which signals mean something else than that the agent shall go.

    Args:
        passed_on: names of those that are sent on to the workers ("SIGUSR1").
        preempt: name of the one that says that this node will be taken away, "" for none.
    """

    passed_on: tuple[str, ...] = ()
    preempt: str = ""


class AgentConfig(msgspec.Struct, frozen=True):
    """What an agent is asked to run.

    Args:
        argv: the workers' command.
        context: what their environments share.
        output: where their output goes.
        node: label of this node in failures.
        base_env: environment that the workers inherit.
        stop_grace_seconds: between SIGTERM and SIGKILL.
        rules: how nodes are let in and out.
        admit_signal: name of the signal that tells the workers of a change, "" for none.
        worker_store: opens the run's store as the workers see it; None where there is none, and
            then a change waits for nobody.
        examine: looks for what keeps the nodes apart, when a join takes long (see `waiting`).
        worker_token: makes the workers' token when they are started, since the nodes' own may
            be exchanged meanwhile; None: the one of `context`.
        signals: which of them mean something else.
        join_seconds: how long a join may take, for what is said meanwhile.
        close_seconds: how long it may take to tell that the work is done.
        health_check: shell command that must succeed before each join, "" for none.
        health_check_seconds: how long it may take.
        hang_seconds: how long a worker that tells its steps may stand still; 0 for ever.
        events_file: JSON lines of what happens are added to it, "" for none.
        health: host and port of the HTTP health endpoint, None for none.
        alone: whether this node meets only itself: a server that is gone then stays away.
    """

    argv: tuple[str, ...]
    context: WorkerContext
    output: OutputPlan
    node: str
    base_env: Mapping[str, str]
    stop_grace_seconds: float = 30.0
    rules: Rules = Rules()
    admit_signal: str = ""
    worker_store: Callable[[], Store] | None = None
    examine: Callable[[], str] | None = None
    worker_token: Callable[[], str] | None = None
    signals: SignalPlan = SignalPlan()
    join_seconds: float = 600.0
    close_seconds: float = 30.0
    health_check: str = ""
    health_check_seconds: float = 60.0
    hang_seconds: float = 0.0
    events_file: str = ""
    health: Endpoint | None = None
    alone: bool = False
