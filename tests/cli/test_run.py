import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rallypoint.cli import main
from rallypoint.cli import run as run_module
from rallypoint.cli.plan import Plan
from rallypoint.errors import RendezvousConnectionError
from rallypoint.net.addresses import free_port
from rallypoint.server.embedded import EmbeddedServer


def run(*argv: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["run", *argv], env=env)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--nnodes", "4:2", "s.py"], "--nnodes 4:2: the maximum (2) is below the minimum (4)"),
        ([], "no script given"),
        (["nope.py"], "no such script: 'nope.py'"),
        (
            ["--nnodes=2", "--endpoint=host", "--run-id=x", "--no-python", "true"],
            "--endpoint host: the port is missing; give host:29400",
        ),
        (["--nnodes=2", "--endpoint=h:1", "--no-python", "true"], "--run-id is missing"),
    ],
)
def test_bad_input_prints_one_line_and_exits_with_2(argv: list[str], text: str) -> None:
    result = run(*argv)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("rallypoint: ")
    assert text in line


def test_unknown_option_is_a_usage_error() -> None:
    assert run("--nope", "s.py").exit_code == 2


def test_other_errors_are_one_line_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_plan: Plan) -> int:
        raise RendezvousConnectionError("nobody listens at h:1")

    monkeypatch.setattr(run_module, "start", refuse)
    result = run("--standalone", "--no-python", "true")
    assert (result.exit_code, result.stderr) == (1, "rallypoint: nobody listens at h:1\n")


def test_exit_code_is_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []

    def start(plan: Plan) -> int:
        plans.append(plan)
        return 143

    monkeypatch.setattr(run_module, "start", start)
    result = run("--nproc_per_node=2", "--no_python", "true", "--nnodes", "7")
    assert result.exit_code == 143
    assert plans[0].agent.argv == ("true", "--nnodes", "7")
    assert plans[0].agent.context.local_world_size == 2


def test_script_runs_with_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text("")
    plans: list[Plan] = []

    def start(plan: Plan) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr(run_module, "start", start)
    assert run(str(script), "1").exit_code == 0
    assert plans[0].agent.argv == (sys.executable, "-u", str(script), "1")


def test_explain_shows_each_setting_and_where_it_comes_from() -> None:
    result = run(
        "--explain", "--nnodes=2:3", "--endpoint=h:29400", "--rdzv-conf=last_call_timeout=7",
        env={"PET_RDZV_ID": "job", "RALLYPOINT_JOIN_TIMEOUT": "90"},
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert "2:3" in rows["nnodes"]
    assert "command line" in rows["nnodes"]
    assert "environment: PET_RDZV_ID" in rows["run_id"]
    assert "90 s" in rows["join"]
    assert "environment: RALLYPOINT_JOIN_TIMEOUT" in rows["join"]
    assert "7 s" in rows["last_call"]
    assert "--rdzv-conf" in rows["last_call"]
    assert "default" in rows["lease"]
    assert "3" in rows["max_restarts"]


@pytest.mark.integration
def test_doctor_uses_the_options_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def start(plan: Plan) -> int:
        looks.append(run_module._doctor(plan)())
        return 0

    monkeypatch.setattr(run_module, "start", start)
    place = f"127.0.0.1:{free_port('127.0.0.1')}"
    result = run("--nnodes=2", f"--endpoint={place}", "--run-id=x", "--no-python", "true")
    assert result.exit_code == 0, result.output
    assert looks[0].startswith("doctor: connect: 127.0.0.1: connection refused; nothing listens")


@pytest.mark.integration
@pytest.mark.parametrize("given", ["variable", "option", "rdzv-conf"])
def test_doctor_uses_the_current_token_of_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, serve: Callable[..., EmbeddedServer],
    given: str,
) -> None:  # fmt: skip
    looks: list[str] = []
    path, server = tmp_path / "token", serve(token=b"the-second")
    path.write_text("the-first")

    def start(plan: Plan) -> int:
        look = run_module._doctor(plan)
        looks.append(look())
        path.write_text("the-second")
        looks.append(look())
        return 0

    monkeypatch.setattr(run_module, "start", start)
    argv = {"option": [f"--token-file={path}"], "rdzv-conf": [f"--rdzv-conf=token_file={path}"]}
    result = run(
        "--nnodes=2", f"--endpoint=127.0.0.1:{server.port}", "--run-id=x", *argv.get(given, []),
        "--no-python", "true",
        env={"RALLYPOINT_TOKEN_FILE": str(path)} if given == "variable" else {},
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "token: the server and this node have different tokens" in looks[0]
    assert "token" not in looks[1]


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("RALLYPOINT_NNODES", "abc", "--nnodes abc: give MIN"),
        ("RALLYPOINT_JOIN_TIMEOUT", "0", "join=0.0: allowed is"),
    ],
)
def test_invalid_variable_is_named(variable: str, value: str, text: str) -> None:
    result = run("--no-python", "true", env={variable: value})
    assert result.exit_code == 2
    assert text in result.stderr
    assert f" was set by {variable})" in result.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_unreachable_probes_in_a_pod_are_reported(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    look = run_module._look_at_probes
    look((host, 8080))
    look(None)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    look((host, 8080))
    told = "give --health-port 0.0.0.0:8080 ([::]:8080 with IPv6)" in capsys.readouterr().err
    assert told is (host == "127.0.0.1")
