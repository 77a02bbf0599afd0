import click
import pytest
from click.testing import CliRunner

from rallypoint.cli import main
from rallypoint.cli.options import LONG, SETTINGS, Seconds, all_options, timing_rows


@pytest.mark.parametrize(
    ("text", "long"),
    [("30", 30.0), ("90s", 90.0), ("5m", 300.0), ("6h", 21600.0), ("1.5d", 129600)],
)
def test_durations(text: str, long: float) -> None:
    assert LONG.convert(text, None, None) == long


def test_invalid_value_error_has_examples() -> None:
    with pytest.raises(click.BadParameter, match="'soon' is not a duration; write 30, 90s, 5m"):
        LONG.convert("soon", None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "1e10", "soon", ""])
def test_invalid_waits_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="give seconds, 0 or more, at most 1e\\+09"):
        Seconds().convert(text, None, None)


def test_seconds() -> None:
    assert [Seconds().convert(text, None, None) for text in ("0", "2.5", 30.0)] == [0, 2.5, 30]
    with pytest.raises(click.BadParameter, match="more than 0"):
        Seconds(min_open=True).convert("0", None, None)


CONTEXT = click.Context(main)
SEEN: dict[str, object] = {}


@click.command(context_settings=SETTINGS)
@all_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def probe(**options: object) -> None:
    SEEN.clear()
    SEEN.update(options)


def parse(*argv: str, env: dict[str, str] | None = None) -> dict[str, object]:
    result = CliRunner().invoke(probe, argv, env=env)
    assert result.exit_code == 0, result.output
    return dict(SEEN)


TORCHRUN = [
    "--nnodes=1:2", "--nproc-per-node=2", "--node-rank=1", "--rdzv-backend=core",
    "--rdzv-endpoint=h:1", "--rdzv-id=job", "--rdzv-conf=a=b", "--max-restarts=1",
    "--monitor-interval=1", "--role=r", "--log-dir=/tmp/x", "--redirects=3", "--tee=3",
    "--local-addr=a",
]  # fmt: skip


@pytest.mark.parametrize("dash", ["-", "_"])
def test_torchrun_names_in_both_spellings(dash: str) -> None:
    argv = ["--" + text[2:].replace("-", dash) for text in TORCHRUN]
    found = parse(*argv, f"--no{dash}python", "--standalone", "-m", "s.py")
    assert found["run_id"] == "job"
    assert found["endpoint"] == "h:1"
    assert (found["nproc_per_node"], found["max_restarts"]) == ("2", 1)
    assert found["no_python"] is found["standalone"] is found["module"] is True


def test_arguments_after_the_script_belong_to_it() -> None:
    found = parse("--nnodes", "2", "s.py", "--nnodes", "9", "--my_flag", "-m")
    assert found["nnodes"] == "2"
    assert found["command"] == ("s.py", "--nnodes", "9", "--my_flag", "-m")


@pytest.mark.parametrize(
    ("variable", "value", "name", "seen"),
    [
        ("RALLYPOINT_NNODES", "2:3", "nnodes", "2:3"),
        ("PET_NNODES", "2:3", "nnodes", "2:3"),
        ("PET_NPROC_PER_NODE", "auto", "nproc_per_node", "auto"),
        ("PET_RDZV_ENDPOINT", "h:1", "endpoint", "h:1"),
        ("RALLYPOINT_ENDPOINT", "h:1", "endpoint", "h:1"),
        ("RALLYPOINT_RDZV_ID", "job", "run_id", "job"),
        ("RALLYPOINT_RUN_ID", "job", "run_id", "job"),
        ("PET_MODULE", "1", "module", True),
        ("RALLYPOINT_JOIN_TIMEOUT", "5", "join", 5.0),
        ("RALLYPOINT_STOP_GRACE", "5", "stop_grace", 5.0),
    ],
)
def test_each_option_is_read_from_the_environment(
    variable: str, value: str, name: str, seen: object
) -> None:
    assert parse("s.py", env={variable: value})[name] == seen


def test_every_duration_of_the_table_is_an_option() -> None:
    for row in timing_rows():
        given, wanted = ("3.5", 3.5) if row.unit == "s" else ("3", 3)
        assert parse(row.flag, given, "s.py")[row.name] == wanted
    assert parse("--last-call", "2", "s.py")["last_call"] == 2.0


@pytest.mark.parametrize(
    "flag", ["--stop-grace", "--monitor-interval", "--join-timeout", "--hang-timeout", "--lease"]
)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_invalid_seconds_are_refused(flag: str, value: str) -> None:
    result = CliRunner().invoke(probe, [flag, value, "s.py"])
    assert result.exit_code == 2
    assert f"Invalid value for '{flag}': '{value}'" in result.output


@pytest.mark.parametrize("variable", ["RALLYPOINT_MAX_RESTARTS", "PET_MAX_RESTARTS"])
def test_error_names_the_variable(variable: str) -> None:
    result = CliRunner().invoke(probe, ["s.py"], env={variable: "x"})
    assert f"'--max-restarts' ({variable} in the environment)" in result.output
    result = CliRunner().invoke(probe, ["--max-restarts=x", "s.py"], env={variable: "1"})
    assert "in the environment" not in result.output


@pytest.mark.parametrize("command", ["status", "doctor", "close", "exclude", "admit", "notify"])
def test_all_commands_find_a_run_the_same_way(command: str) -> None:
    found = main.get_command(CONTEXT, command)
    assert found is not None
    params = {each.name: each for each in found.params}
    assert params["endpoint"].opts == ["--endpoint", "--rdzv-endpoint"]
    assert params["endpoint"].envvar == ["RALLYPOINT_ENDPOINT", "PET_RDZV_ENDPOINT"]
    assert params["timeout"].default == 5.0
    assert params["backend"].default == "core"
    assert params["token_file"].opts == ["--token-file"]
