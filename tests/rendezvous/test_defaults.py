"""The defaults table: complete, consistent, and the source of what the settings use."""

import pytest

from rallypoint.core.state import Settings
from rallypoint.net import protocol
from rallypoint.rendezvous import defaults
from rallypoint.rendezvous.settings import RendezvousSettings


def test_figures_of_the_design() -> None:
    expected = {
        "join": 600,
        "last_call": 30,
        "close": 30,
        "lease": 15,
        "keep_alive_interval": 5,
        "disconnect_grace": 1,
        "replacement_wait": 0,
        "rejoin_timeout": 60,
        "stop_grace": 30,
        "port": 29400,
        "frame_limit": protocol.FRAME_LIMIT,
        "handshake_frame_limit": protocol.HANDSHAKE_FRAME_LIMIT,
        "key_limit": protocol.KEY_LIMIT,
    }
    assert {name: defaults.value(name) for name in expected} == expected


def test_settings_follow_the_table() -> None:
    core = RendezvousSettings("run", 1, 1).core()
    assert core.lease_seconds == defaults.value("lease")
    assert core.rejoin_timeout_seconds == defaults.value("rejoin_timeout")
    product = defaults.value("keep_alive_interval") * defaults.value("keep_alive_max_attempt")
    assert product == defaults.value("lease")


def test_shared_settings_have_the_same_defaults_in_the_state() -> None:
    shared = {row.name: row.default for row in defaults.DEFAULTS if row.is_shared}
    held = Settings(1, 1)
    found = {name: getattr(held, name, getattr(held, f"{name}_seconds", None)) for name in shared}
    assert found == shared
    assert RendezvousSettings("run", 1, 1).core() == held


def test_names_flags_and_variables_are_unique() -> None:
    for column in ("name", "flag", "env", "parameter"):
        values = [value for row in defaults.DEFAULTS if (value := getattr(row, column))]
        assert len(set(values)) == len(values), column


def test_every_setting_has_a_meaning() -> None:
    for row in defaults.DEFAULTS:
        assert row.meaning.endswith(".")
        assert bool(row.flag) == bool(row.env)
        assert row.env == "" or row.env.startswith("RALLYPOINT_")


def test_lookup() -> None:
    assert defaults.row("join").flag == "--join-timeout"
    assert defaults.spellings("lease") == ("lease", "heartbeat", "heartbeat_timeout")
    with pytest.raises(KeyError):
        defaults.row("nonsense")
