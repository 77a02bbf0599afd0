from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from click.testing import CliRunner

from rallypoint.cli import main, scheduler_env
from rallypoint.cli.scheduler_env import find, installed
from rallypoint.errors import ParameterError

STEP = {
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}
KUBEFLOW = {
    "PET_MASTER_ADDR": "digits-0.digits",
    "PET_MASTER_PORT": "29500",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "digits-0.digits:29400",
}


def explain(*argv: str, env: dict[str, str]) -> dict[str, list[str]]:
    """Return the rows of --explain: value and origin by option."""
    result = CliRunner().invoke(main, ["run", "--explain", *argv], env=env)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    return {row[0]: row[1:] for row in rows if row}


def readers(**found: Mapping[str, Any] | None) -> dict[str, scheduler_env.Reader]:
    def reader(said: Mapping[str, Any] | None) -> scheduler_env.Reader:
        return lambda _env: said

    return {name: reader(said) for name, said in found.items()}


def test_environment_readers_are_installed() -> None:
    assert {"slurm", "kubernetes", "mpi"} <= set(installed())


def test_slurm_step_needs_no_options() -> None:
    rows = explain(env=STEP)
    assert rows["run_id"][:2] == ["slurm-123.0", "slurm"]
    assert rows["nnodes"][:2] == ["4", "slurm"]
    assert rows["node_rank"][:2] == ["2", "slurm"]
    assert rows["endpoint"][0].startswith("gpu03:")
    assert rows["stop_grace"][:2] == ["25.0", "slurm"]


def test_given_options_are_kept() -> None:
    rows = explain("--run-id", "mine", env={**STEP, "RALLYPOINT_ENDPOINT": "h:1"})
    assert rows["run_id"][:3] == ["mine", "command", "line"]
    assert rows["endpoint"][0] == "h:1"
    assert rows["node_rank"][0] == "2"


def test_standalone_needs_no_server() -> None:
    rows = explain("--standalone", env=STEP)
    assert rows["run_id"][0].startswith("run-")
    assert rows["nnodes"][0] == "1"


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_no_scheduler_changes_nothing(choice: str) -> None:
    env = STEP if choice == "none" else {}
    assert explain("--environment", choice, env=env)["nnodes"][0] == "1"


def test_variables_of_another_launcher_are_ignored() -> None:
    rows = explain(env=KUBEFLOW)
    assert rows["backend"][:2] == ["core", "kubernetes"]
    assert rows["endpoint"][:2] == ["digits-0.digits:29500", "kubernetes"]
    assert rows["nnodes"][0] == "2"
    assert explain(env={**KUBEFLOW, "RALLYPOINT_NODE_RANK": "0"})["node_rank"][0] == "0"


def test_endpoint_is_shown_only_if_it_is_an_address() -> None:
    rows = explain("--backend", "file", "--endpoint", "shared/state", env=STEP)
    assert rows["endpoint"][0] == "shared/state"


def test_wrong_choice_error_lists_the_choices() -> None:
    with pytest.raises(ParameterError, match="allowed are auto, none, a, b"):
        find({}, "c", lambda: readers(a=None, b=None))
    with pytest.raises(ParameterError, match="its variables are not set"):
        find({}, "a", lambda: readers(a=None))


def test_two_schedulers_at_once_are_an_error() -> None:
    both = readers(a={"nnodes": "1"}, b={"nnodes": "2"}, c=None)
    with pytest.raises(ParameterError, match="matches a and b; choose one with --environment"):
        find({}, "auto", lambda: both)
    assert find({}, "b", lambda: both) == ("b", {"nnodes": "2"})


def test_unloadable_environment_reader_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("lsf", "no_such_module:read", scheduler_env.GROUP)
    monkeypatch.setattr(scheduler_env, "entry_points", lambda group: [entry])
    with pytest.raises(ParameterError, match=r"'lsf' \(no_such_module:read\).*ModuleNotFound"):
        installed()


def test_environment_reader_with_unknown_option_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_env, "find", lambda _env, _choice: ("lsf", {"colour": "red"}))
    result = CliRunner().invoke(main, ["run", "--no-python", "true"])
    assert result.exit_code == 2
    assert "'lsf' returns 'colour', which is not an option" in result.stderr


@pytest.mark.parametrize("more", [[], ["--standalone"]])
def test_typing_error_suggests_the_nearest(more: list[str]) -> None:
    argv = ["run", "--environment=slrum", *more, "--no-python", "true"]
    result = CliRunner().invoke(main, argv)
    assert result.exit_code == 2
    assert "--environment slrum: unknown" in result.stderr
    assert "did you mean slurm?" in result.stderr
