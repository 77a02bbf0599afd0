from rallypoint.core.state import Settings
from rallypoint.testing.simulator.forecast import Forecast, Job, Weather

CALM = Weather(24.0, 1e12, stalls_per_hour=0.0)


def forecast(weather: Weather, nodes: int = 8, **settings: float) -> Forecast:
    given = Settings(nodes // 2, nodes, last_call_seconds=1.0, **settings)  # type: ignore[arg-type]
    return Job(nodes, given, weather, stop_seconds=1.0, seed=1).run()


def test_day_without_faults_costs_only_the_start() -> None:
    calm = forecast(CALM)
    assert (calm.failures, calm.rounds, calm.false_losses) == (0, 1, 0)
    assert calm.pauses == []
    assert calm.lost_seconds == 0.0
    assert calm.missing < 0.01


def test_failures_are_detected_by_grace_or_lease() -> None:
    told = forecast(Weather(24.0, 7200.0, silent=0.0, stalls_per_hour=0.0))
    silent = forecast(Weather(24.0, 7200.0, silent=1.0, stalls_per_hour=0.0), lease_seconds=9.0)
    assert told.failures > 5
    assert told.rounds >= 2 * told.failures  # one without the node, one with it again
    assert max(told.detect) < 1.2
    assert silent.silent == silent.failures
    assert 5.0 < max(silent.detect) < 10.0
    assert silent.lost_seconds > told.lost_seconds


def test_short_lease_mistakes_pauses_for_deaths() -> None:
    weather = Weather(24.0, 1e12, stalls_per_hour=4.0, stall_seconds=4.0)
    short, long = forecast(weather, lease_seconds=3.0), forecast(weather, lease_seconds=60.0)
    assert short.stalls == long.stalls > 50
    assert short.false_losses > 10
    assert long.false_losses == 0
