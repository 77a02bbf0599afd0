from pathlib import Path
from typing import Any

import pytest

from rallypoint.cli import plan as plans
from rallypoint.cli.options import timing_rows
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.settings import RendezvousSettings

OPTIONS: dict[str, Any] = {
    "nnodes": "1",
    "nproc_per_node": "1",
    "node_rank": None,
    "backend": "core",
    "endpoint": None,
    "run_id": None,
    "rdzv_conf": "",
    "max_restarts": None,
    "monitor_interval": 0.1,
    "role": "default",
    "log_dir": None,
    "redirects": "0",
    "tee": "0",
    "local_addr": None,
    "module": False,
    "no_python": True,
    "standalone": False,
    "token_file": None,
    "insecure": False,
    "slot": None,
    "target_nodes": None,
    "new_incarnation": False,
    "stop_grace": 30.0,
    "admit": "now",
    "admit_grace": 60.0,
    "admit_signal": "",
    "forward_signals": "",
    "preempt_signal": "",
    "health_check": "",
    "health_check_timeout": 60.0,
    "hang_timeout": 0.0,
    "health_port": None,
    "events": "",
    "log_format": "text",
    "log_max_bytes": 0,
    "log_keep": 3,
    **{row.name: None for row in timing_rows()},
}
MEETING: dict[str, Any] = {"nnodes": "2:4", "endpoint": "h:1", "run_id": "job"}


def make(env: dict[str, str] | None = None, **changes: Any) -> plans.Plan:
    return plans.make_plan({**OPTIONS, **changes}, ("true",), env or {})


@pytest.mark.parametrize(("text", "pair"), [("1", (1, 1)), ("2:4", (2, 4)), ("3:3", (3, 3))])
def test_nodes(text: str, pair: tuple[int, int]) -> None:
    assert plans.nodes(text) == pair


@pytest.mark.parametrize("text", ["", "0", "4:2", "a", "1:", ":2", "1:2:3", "-1", "0:3", "1.5"])
def test_wrong_nodes_are_named(text: str) -> None:
    with pytest.raises(ParameterError, match=f"--nnodes {text}"):
        plans.nodes(text)


def test_one_node_meets_itself_on_loopback() -> None:
    one, two = make(), make(standalone=True)
    assert one.parameters.endpoint.startswith("127.0.0.1:")
    assert one.parameters.run_id != two.parameters.run_id
    assert one.agent.context.max_restarts == 0
    assert one.agent.context.store_url == f"tcp://{one.parameters.endpoint}"


@pytest.mark.cases("case-C7")
def test_several_nodes_need_a_name_for_their_job() -> None:
    with pytest.raises(ParameterError, match="--run-id is missing"):
        make(nnodes="2", endpoint="h:1")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"nnodes": "2", "run_id": "x"}, "--endpoint is missing: give HOST:PORT"),
        ({"backend": "file", "run_id": "x"}, "--endpoint is missing: give a path"),
        ({**MEETING, "endpoint": "host"}, "--endpoint host: the port is missing; give host:29400"),
        ({**MEETING, "endpoint": "a:1,b"}, "the port is missing; give a:1,b:29400"),
        ({**MEETING, "endpoint": "a:1,,b:2"}, "a host is missing between the commas"),
        ({**MEETING, "endpoint": "::1"}, r"the port is missing; give \[::1\]:29400"),
        ({**MEETING, "endpoint": "h:x"}, "endpoint='h:x'"),
        ({"standalone": True, "nnodes": "2"}, "--standalone with --nnodes 2"),
        ({"standalone": True, "backend": "file"}, "--standalone and --backend file"),
        ({"nproc_per_node": "0"}, "--nproc-per-node 0"),
        ({"nproc_per_node": "some"}, "--nproc-per-node some"),
        ({"rdzv_conf": "a"}, "--rdzv-conf a"),
        ({"rdzv_conf": "join=soon"}, "join='soon'"),
        ({"rdzv_conf": "stop_grace=5"}, "--rdzv-conf stop_grace: .*; give --stop-grace"),
        ({"rdzv_conf": "admit=never"}, "--rdzv-conf admit: .*; give --admit"),
        ({"rdzv_conf": "rejoin_timeout=30"}, "rejoin_timeout=30 s, but stop_grace=30 s"),
        ({"rejoin_timeout": 60.0, "stop_grace": 300.0}, "give --rejoin-timeout 301 or more"),
        ({"health_port": "pod"}, "--health-port pod: the port is missing"),
        ({"max_restarts": -1}, "--max-restarts -1"),
        ({"monitor_interval": -1.0}, "--monitor-interval -1"),
        ({"rdzv_conf": "last_cal=3"}, "--rdzv-conf last_cal: .* did you mean last_call?"),
        ({**MEETING, "node_rank": 4}, "--node-rank 4: with at most 4 nodes"),
        ({"forward_signals": "USR3"}, "--forward-signals USR3: no such signal"),
        ({"redirects": "3"}, "--redirects needs --log-dir"),
        ({"tee": "9"}, "--tee '9'"),
        ({**MEETING, "target_nodes": 9}, "target_nodes=9"),
        ({"module": True}, "-m and --no-python"),
    ],
)
def test_bad_input_error_has_the_fix(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        make(**changes)


def test_options_override_rdzv_conf_in_any_spelling() -> None:
    plan = make(**MEETING, rdzv_conf="join_timeout=5, last_call=7,tls=x", join=9.0)
    assert plan.settings.timeout.join.total_seconds() == 9
    assert plan.settings.timeout.last_call.total_seconds() == 7
    assert plan.parameters.get("tls") == "x"
    assert (plan.effective["join"], plan.effective["last_call"]) == ("9 s", "7 s")


def test_everything_for_the_coordinator_is_in_the_parameters() -> None:
    plan = make(**MEETING, slot="pod-1", target_nodes=3, role="r", new_incarnation=True)
    found = plan.parameters
    assert (found.min_nodes, found.max_nodes, found.get("slot")) == (2, 4, "pod-1")
    assert plan.settings.target_nodes == 3
    assert plan.settings.max_restarts == plan.agent.context.max_restarts == 3
    assert found.get_as_bool("new_incarnation")
    assert found.get("role") == "r"


def test_rejoin_timeout_and_admission_follow_the_options() -> None:
    plan = make(**MEETING, stop_grace=300.0, admit="checkpoint")
    assert plan.effective["rejoin_timeout"] == "330 s"
    core = RendezvousSettings.from_params(plan.parameters).core()  # as the handler reads them
    assert (core.rejoin_timeout_seconds, core.admit) == (330, "checkpoint")


def test_token_comes_from_file_or_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-file\n")
    env = {"RALLYPOINT_TOKEN": "from-env"}
    assert make(env).secret() == b"from-env"
    assert make(env, token_file=path).secret() == b"from-file"
    assert make(env, rdzv_conf=f"token_file={path}").secret() == b"from-file"
    assert make(env, token_file=path).parameters.get("token_file") == str(path)
    path.write_text("")
    with pytest.raises(ParameterError, match="the file is empty"):
        make(token_file=path)
    with pytest.raises(ParameterError, match="cannot be read"):
        make(token_file=tmp_path / "none")
    with pytest.raises(ParameterError, match="RALLYPOINT_TOKEN, line 1: a scope without"):
        make({"RALLYPOINT_TOKEN": "admin"})
    with pytest.raises(ParameterError, match="--token-file '': give a file"):
        make(token_file=Path(""))


def test_shared_file_needs_no_port() -> None:
    plan = make(**{**MEETING, "backend": "file", "endpoint": "/shared/job"})
    assert plan.agent.context.store_url == "file:///shared/job"


@pytest.mark.parametrize(
    ("endpoint", "store", "shown"),
    [
        ("h1:2379,h2:2379", "etcd://h1:2379,h2:2379", "h1:2379,h2:2379"),
        ("etcds://u:hidden@h1/jobs", "etcds://u:hidden@h1/jobs", "etcds://***@h1/jobs"),
    ],
)
def test_database_needs_hosts_or_a_url(endpoint: str, store: str, shown: str) -> None:
    plan = make(**{**MEETING, "backend": "etcd", "endpoint": endpoint})
    assert plan.agent.context.store_url == store
    assert plan.effective["endpoint"] == shown
    assert "hidden" not in repr(plan.parameters)


def test_counting_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert plans.workers_per_node("3", {}) == 3
    assert plans.workers_per_node("gpu", {"CUDA_VISIBLE_DEVICES": "0,2"}) == 2
    assert plans.workers_per_node("auto", {"CUDA_VISIBLE_DEVICES": "0,-1,2"}) == 1
    assert plans.workers_per_node("auto", {}) == plans.workers_per_node("cpu", {}) > 0
    with pytest.raises(ParameterError, match="no GPU found"):
        plans.workers_per_node("gpu", {"CUDA_VISIBLE_DEVICES": ""})
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: one'\necho 'GPU 1: two'\n")
    smi.chmod(0o755)
    assert plans.workers_per_node("gpu", {}) == 2


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("")
    assert plans.command_of(("a.py", "-x"), False, False)[-2:] == ("a.py", "-x")
    assert plans.command_of(("pkg.mod", "1"), True, False)[-3:] == ("-m", "pkg.mod", "1")
    assert plans.command_of(("true", "1"), False, True) == ("true", "1")
    with pytest.raises(ParameterError, match=r"no such script: 'b\.py'"):
        plans.command_of(("b.py",), False, False)
    with pytest.raises(ParameterError, match="no such program: 'nope-x'"):
        plans.command_of(("nope-x",), False, True)
    with pytest.raises(ParameterError, match=r"'\./a\.py' is not executable: chmod \+x"):
        plans.command_of(("./a.py",), False, True)
    with pytest.raises(ParameterError, match="no script given"):
        plans.command_of((), False, False)


def test_shown_plan_has_no_token() -> None:
    plan = make(rdzv_conf="join=5,token=SECRET,lease=9")
    assert plan.secret() == b"SECRET"
    assert plan.effective["rdzv_conf"] == "join=5,token=***,lease=9"
    assert "SECRET" not in repr(plan)


def test_supervision_options() -> None:
    plan = make(
        forward_signals="USR1", preempt_signal="SIGUSR2", health_check="true", hang_timeout=9.0,
        events="e.jsonl", health_port="8080", log_format="json", log_max_bytes=5, log_keep=1,
        log_dir=Path("logs"),
    )  # fmt: skip
    watch, output = plan.agent.supervision, plan.agent.output
    assert (watch.signals.forwarded, watch.signals.preempt) == (("SIGUSR1",), "SIGUSR2")
    assert (watch.health_check, watch.health_check_seconds, watch.hang_seconds) == ("true", 60, 9)
    health = ("127.0.0.1", 8080)
    assert (watch.events_file, watch.health) == ("e.jsonl", health)
    assert (output.as_json, output.max_bytes, output.keep) == (True, 5, 1)
    assert output.node


def test_colours_only_on_terminals_and_if_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert make({"TERM": "xterm"}).agent.output.coloured == frozenset()
    monkeypatch.setattr("os.isatty", lambda fd: fd == 2)
    assert make({"TERM": "xterm"}).agent.output.coloured == {2}
    for env in ({"TERM": "dumb"}, {}, {"TERM": "xterm", "NO_COLOR": "1"}):
        assert make(env).agent.output.coloured == frozenset()


def test_log_size_needs_log_files() -> None:
    with pytest.raises(ParameterError, match="--log-max-bytes needs --log-dir DIR"):
        make(log_max_bytes=5)
