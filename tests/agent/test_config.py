import signal

from rallypoint.agent.config import AgentConfig, SignalPlan
from rallypoint.agent.output.destinations import OutputPlan
from rallypoint.agent.workers.environment import WorkerContext


def test_by_default_nothing_special_is_done() -> None:
    config = AgentConfig(("true",), WorkerContext("run", 1), OutputPlan(), "node", {})
    assert config.signals == SignalPlan()
    assert (config.health_check, config.hang_seconds, config.health) == ("", 0.0, None)


def test_signals_are_given_by_name() -> None:
    plan = SignalPlan(("SIGUSR1",), "SIGUSR2")
    assert signal.Signals[plan.passed_on[0]] is signal.SIGUSR1
