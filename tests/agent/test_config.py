import signal

from rallypoint.agent.config import AgentConfig, SignalPlan, Supervision
from rallypoint.agent.output import OutputPlan
from rallypoint.agent.workers.environment import WorkerContext


def test_optional_features_are_off_by_default() -> None:
    config = AgentConfig(("true",), WorkerContext("run", 1), OutputPlan(), "node", {})
    assert config.supervision == Supervision(signals=SignalPlan())
    watch = config.supervision
    assert (watch.health_check, watch.hang_seconds, watch.health) == ("", 0.0, None)


def test_signal_names_are_those_of_the_signal_module() -> None:
    plan = SignalPlan(("SIGUSR1",), "SIGUSR2")
    assert signal.Signals[plan.forwarded[0]] is signal.SIGUSR1
