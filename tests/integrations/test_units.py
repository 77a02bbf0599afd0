"""The unit of deploy/systemd: its command is one that there is, and its variables are read."""

import configparser
import shlex
from pathlib import Path

import pytest

from rallypoint.cli.serve import command

FOLDER = Path("deploy/systemd")


class Unit(configparser.ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture(name="unit")
def _unit() -> Unit:
    unit = Unit(interpolation=None, strict=False)
    unit.read(FOLDER / "rallypoint.service")
    return unit


def test_command_of_the_manifest_exists(unit: Unit) -> None:
    program, subcommand, *options = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, subcommand) == ("rallypoint", "serve")
    known = {name for parameter in command.params for name in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= known


def test_stop_grace_leaves_time_to_leave(unit: Unit) -> None:
    assert unit["Service"]["KillSignal"] == "SIGTERM"
    assert int(unit["Service"]["TimeoutStopSec"]) >= 10
    assert unit["Service"]["Restart"] == "always"


def test_variables_are_read() -> None:
    lines = (FOLDER / "server.env").read_text("utf-8").splitlines()
    names = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    read = {str(parameter.envvar) for parameter in command.params if parameter.envvar}
    engine = {f"RALLYPOINT_ETCD_{name}" for name in ("CA", "USER", "PASSWORD")}
    assert names <= read | engine
    assert "RALLYPOINT_STATE" in names
