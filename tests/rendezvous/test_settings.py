"""Settings: torch's positional form, the lease, and what goes into the state."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from rallypoint.core.state import Newcomers, Settings
from rallypoint.errors import ParameterError
from rallypoint.rendezvous import defaults
from rallypoint.rendezvous.parameters import RendezvousParameters, RendezvousTimeout
from rallypoint.rendezvous.settings import RETURN_SECONDS, RendezvousSettings, least_rejoin


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def test_defaults() -> None:
    settings = RendezvousSettings("run", 1, 2)
    assert settings.timeout == RendezvousTimeout()
    assert settings.lease == seconds(15)
    assert settings.keep_alive_interval == seconds(5)
    assert settings.keep_alive_max_attempt == 3
    assert settings.core() == Settings(1, 2, None, None, 30, 60, 0, 15, 1)


def test_parameters_are_a_dataclass() -> None:
    settings = dataclasses.replace(RendezvousSettings("run", 1, 4), min_nodes=2)
    assert (settings.min_nodes, settings.core().min_nodes) == (2, 2)
    assert not [name for name in dataclasses.asdict(settings) if name.startswith("_")]


def test_positional_form_of_torch() -> None:
    timeout = RendezvousTimeout(join=9)
    settings = RendezvousSettings("run", 1, 2, timeout, seconds(2), 4)
    assert settings.timeout is timeout
    assert settings.keep_alive_interval == seconds(2)
    assert settings.keep_alive_max_attempt == 4
    assert settings.lease == seconds(8)


def test_heartbeat_timeout_is_the_lease() -> None:
    settings = RendezvousSettings("run", 1, 2, RendezvousTimeout(heartbeat=6))
    assert settings.lease == seconds(6)
    assert settings.keep_alive_interval == seconds(2)


def test_lease_wins_over_heartbeat_and_must_agree_with_keep_alive() -> None:
    assert RendezvousSettings("run", 1, 2, lease=3).lease == seconds(3)
    assert RendezvousSettings("run", 1, 2, None, 1, 3, lease=3).lease == seconds(3)
    with pytest.raises(ParameterError, match="lease=4 s"):
        RendezvousSettings("run", 1, 2, None, 1, 3, lease=4)


def test_grace_is_never_longer_than_the_lease() -> None:
    settings = RendezvousSettings("run", 1, 2, lease=3, disconnect_grace=10)
    assert settings.disconnect_grace == seconds(3)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"run_id": ""}, "run_id"),
        ({"run_id": None}, "run_id"),
        ({"min_nodes": 0}, "min_nodes"),
        ({"max_nodes": 1, "min_nodes": 2}, "max_nodes"),
        ({"target_nodes": 9}, "target_nodes"),
        ({"target_nodes": 1, "min_nodes": 2}, "target_nodes"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"lease": 0}, "lease"),
        ({"keep_alive_interval": -1}, "keep_alive_interval"),
        ({"keep_alive_max_attempt": 0}, "keep_alive_max_attempt"),
        ({"disconnect_grace": -1}, "disconnect_grace"),
        ({"replacement_wait": float("nan")}, "replacement_wait"),
        ({"rejoin_timeout": 0}, "rejoin_timeout"),
        ({"rejoin_timeout": 9, "stop_grace": 30}, "rejoin_timeout"),
        ({"stop_grace": -1}, "stop_grace"),
        ({"admit": "soon"}, "admit"),
    ],
)
def test_refuses_by_name(arguments: dict[str, Any], name: str) -> None:
    given = {"run_id": "run", "min_nodes": 1, "max_nodes": 4, **arguments}
    with pytest.raises(ParameterError, match=f"^{name}="):
        RendezvousSettings(**given)


def test_from_params() -> None:
    params = RendezvousParameters(
        "core",
        "h:1",
        "run",
        2,
        5,
        join=7,
        last_call_timeout=8,
        lease="3",
        target_nodes="4",
        max_restarts=2,
        disconnect_grace="0.5",
        replacement_wait="0",
        rejoin_timeout=9,
    )
    settings = RendezvousSettings.from_params(params)
    assert settings.timeout.join == seconds(7)
    assert settings.core() == Settings(2, 5, 4, 2, 8, 9, 0, 3, 0.5)


def test_from_params_with_keep_alive() -> None:
    params = RendezvousParameters("core", "h:1", "run", 2, 5, keep_alive_interval="0.5")
    settings = RendezvousSettings.from_params(params)
    assert settings.lease == seconds(1.5)


@pytest.mark.parametrize(
    ("stop_grace", "rejoin"), [(None, 60), (0, 60), (25, 60), (30, 60), (31, 61), ("300", 330)]
)
def test_default_rejoin_timeout_exceeds_the_stop_grace(
    stop_grace: float | None, rejoin: float
) -> None:
    assert defaults.value("stop_grace") + 30 == defaults.value("rejoin_timeout"), "both defaults"
    params = RendezvousParameters("core", "h:1", "run", stop_grace=stop_grace)
    assert RendezvousSettings.from_params(params).rejoin_timeout == seconds(rejoin)


def test_given_rejoin_timeout_must_exceed_the_stop_grace() -> None:
    def settings(rejoin: float, stop_grace: float | None) -> RendezvousSettings:
        return RendezvousSettings("run", 1, 2, rejoin_timeout=rejoin, stop_grace=stop_grace)

    assert settings(0.5, None).rejoin_timeout == seconds(0.5), "nobody knows the stop grace"
    least = least_rejoin(30)
    assert settings(least, 30).core().rejoin_timeout_seconds == least == 30 + RETURN_SECONDS
    with pytest.raises(ParameterError) as refused:
        settings(least - 0.5, 30)
    assert str(refused.value) == (
        "rejoin_timeout=30.5 s, but stop_grace=30 s: a node whose workers take that long to stop "
        "would be lost in each change; give --rejoin-timeout 31 or more (without it, it follows "
        "from the stop grace), or a shorter --stop-grace"
    )


def test_newcomer_settings_are_compared() -> None:
    params = RendezvousParameters("core", "h:1", "run", admit="checkpoint")
    assert RendezvousSettings.from_params(params).core().admit is Newcomers.CHECKPOINT
    assert RendezvousSettings("run", 1, 2).core().admit is None


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no such setting: steady, wait"):
        RendezvousSettings("run", 1, 2, wait=1, steady=2)


def test_every_shared_setting_is_an_argument_a_parameter_and_an_attribute() -> None:
    rows = [row for row in defaults.DEFAULTS if row.is_shared and row.name != "last_call"]
    given: dict[str, Any] = {row.name: 7 for row in rows}
    settings = RendezvousSettings("run", 1, 2, None, **given)
    params = RendezvousParameters("core", "h:1", "run", 1, 2, config=given)
    assert RendezvousSettings.from_params(params).core() == settings.core()
    for row in rows:
        expected = seconds(7) if row.unit == "s" else 7
        assert getattr(settings, row.name) == settings.value(row.name) == expected


def test_equal_and_frozen() -> None:
    settings = RendezvousSettings("run", 1, 2)
    assert settings == RendezvousSettings("run", 1, 2)
    with pytest.raises(AttributeError):
        settings.run_id = "other"  # type: ignore[misc]


def test_invalid_run_id_is_refused_at_once() -> None:
    with pytest.raises(ParameterError, match="600 characters is above the limit") as caught:
        RendezvousSettings("x" * 600, 1, 1)
    assert len(str(caught.value)) < 200
