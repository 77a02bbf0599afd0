"""Turns the options of `rallypoint run` into a plan, checked before anything starts.

Every error in the options raises ParameterError here, with the option, the reason and what to
change. The command turns it into exit code 2.
"""

import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from rallypoint.agent.config import AgentConfig
from rallypoint.agent.output import STDERR, STDOUT, OutputPlan, parse_choice
from rallypoint.agent.workers.environment import WorkerContext
from rallypoint.cli import option_checks
from rallypoint.cli.options import timing_rows
from rallypoint.engines.url import HIDDEN, engine_url, is_engine, redacted
from rallypoint.errors import ParameterError
from rallypoint.net.addresses import LOOPBACK, free_port
from rallypoint.net.endpoints import join_endpoint, parse_endpoints
from rallypoint.rendezvous.api import RendezvousParameters
from rallypoint.rendezvous.settings import RendezvousSettings

DEFAULT_MAX_RESTARTS = 3
PATH_BACKENDS = ("file",)
NVIDIA_SMI_SECONDS = 20.0


class Plan(msgspec.Struct, frozen=True):
    """What one `rallypoint run` will do.

    Args:
        parameters: of the rendezvous handler.
        settings: the same, read and checked.
        agent: configuration of the agent, without what depends on the token.
        insecure: serve other machines without a token.
        effective: option name -> its value as text, for `--explain`.
    """

    parameters: RendezvousParameters
    settings: RendezvousSettings
    agent: AgentConfig
    insecure: bool
    effective: dict[str, str]

    def __repr__(self) -> str:
        return f"Plan({self.parameters!r}, argv={self.agent.argv!r})"  # never the token

    def secret(self) -> bytes:
        """Return the node's token; `net.token_sources.current` follows a token file.

        Raises ParameterError if the token file cannot be read.
        """
        from rallypoint.net.token_sources import read_token

        return read_token(self.parameters.get("token"), self.parameters.get("token_file"))


def make_plan(
    options: Mapping[str, Any],
    command: tuple[str, ...],
    env: Mapping[str, str],
    *,
    needs_command: bool = True,
) -> Plan:
    """Return the plan for options (names as in `options`). Raises ParameterError."""
    least, most = nodes(options["nnodes"])
    conf = parse_conf(options["rdzv_conf"])
    option_checks.check(options, conf, most)
    endpoint, run_id, alone = _meeting(options, most)
    workers = workers_per_node(options["nproc_per_node"], env)
    restarts = _restarts(options["max_restarts"], most)
    token = conf.get("token") or _token(options["token_file"], env)
    backend = options["backend"]
    params = RendezvousParameters(
        backend=backend,
        endpoint=endpoint,
        run_id=run_id,
        min_nodes=least,
        max_nodes=most,
        local_addr=options["local_addr"] or (LOOPBACK if alone else None),
        node_rank=options["node_rank"],
        local_world_size=workers,
        config=_config(options, token, restarts),
    )
    settings = RendezvousSettings.from_params(params)
    role, store_url = options["role"], _store_url(backend, endpoint)
    context = WorkerContext(run_id, workers, role, restarts, store_url)
    argv: tuple[str, ...] = ()
    if command or needs_command:
        argv = command_of(command, options["module"], options["no_python"])
    output = _output(options, env)
    agent = AgentConfig(argv, context, output, node_label(), dict(env), alone=alone)
    shown = {"endpoint": redacted(endpoint), "run_id": run_id}
    shown |= {"nproc_per_node": str(workers), "max_restarts": str(restarts)}
    effective = {**_texts(options), **shown, **_held(settings)}
    return Plan(params, settings, _filled(agent, options, settings), options["insecure"], effective)


def _filled(
    agent: AgentConfig, options: Mapping[str, Any], settings: RendezvousSettings
) -> AgentConfig:
    return msgspec.structs.replace(
        agent,
        stop_grace_seconds=options["stop_grace"],
        rules=option_checks.rules(options),
        admit_signal=option_checks.admit_signal(options),
        supervision=option_checks.supervision(options),
        join_seconds=settings.timeout.join.total_seconds(),
        close_seconds=settings.timeout.close.total_seconds(),
    )


def node_label() -> str:
    """Return the name of this node in messages."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def _restarts(given: int | None, most: int) -> int:
    if given is None:
        return 0 if most == 1 else DEFAULT_MAX_RESTARTS
    if given < 0:
        raise ParameterError(f"--max-restarts {given}: give 0 or more")
    return given


def nodes(text: str) -> tuple[int, int]:
    """Return (min, max) of `--nnodes`. Raises ParameterError."""
    least, colon, most = text.partition(":")
    if not least.isdecimal() or (colon and not most.isdecimal()):
        raise ParameterError(f"--nnodes {text}: give MIN or MIN:MAX, two whole numbers")
    low, high = int(least), int(most or least)
    if low < 1:
        raise ParameterError(f"--nnodes {text}: at least 1 node is needed")
    if high < low:
        raise ParameterError(
            f"--nnodes {text}: the maximum ({high}) is below the minimum ({low}); "
            f"did you mean {high}:{low}?"
        )
    return low, high


def workers_per_node(text: str, env: Mapping[str, str]) -> int:
    """Return the number of workers of `--nproc-per-node` here. Raises ParameterError."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if text == "cpu":
        return _cpus()
    if text == "auto":
        return _gpus(env) or _cpus()
    if text == "gpu":
        found = _gpus(env)
        if not found:
            raise ParameterError(
                "--nproc-per-node gpu: no GPU found (CUDA_VISIBLE_DEVICES is empty or unset, "
                "and nvidia-smi lists none); give a number, cpu or auto"
            )
        return found
    raise ParameterError(f"--nproc-per-node {text}: give a number above 0, auto, cpu or gpu")


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus(env: Mapping[str, str]) -> int:
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        devices = [device.strip() for device in visible.split(",")]
        ends = devices.index("-1") if "-1" in devices else len(devices)  # CUDA ignores the rest
        return len([device for device in devices[:ends] if device])
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        answer = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())


def command_of(command: tuple[str, ...], module: bool, no_python: bool) -> tuple[str, ...]:
    """Return the workers' argv. Raises ParameterError if the program does not exist."""
    if not command:
        raise ParameterError("no script given: rallypoint run [OPTIONS] SCRIPT [ARGS]...")
    if module and no_python:
        raise ParameterError("-m and --no-python: give only one of them")
    if no_python:
        if shutil.which(command[0]) is None:
            if Path(command[0]).is_file():
                raise ParameterError(
                    f"{command[0]!r} is not executable: chmod +x, or leave out --no-python"
                )
            raise ParameterError(f"no such program: {command[0]!r}; give its path, or fix PATH")
        return command
    if module:
        return (sys.executable, "-u", "-m", *command)
    if not Path(command[0]).is_file():
        raise ParameterError(
            f"no such script: {command[0]!r} (in {Path.cwd()}); "
            "give -m for a module, --no-python for another program"
        )
    return (sys.executable, "-u", *command)


def _meeting(options: Mapping[str, Any], most: int) -> tuple[str, str, bool]:
    """Return endpoint, run id, and whether the node meets only itself."""
    endpoint, run_id, backend = options["endpoint"], options["run_id"], options["backend"]
    if options["standalone"] and most > 1:
        raise ParameterError(
            f"--standalone with --nnodes {options['nnodes']}: it runs one node; "
            "give --endpoint HOST:PORT and --run-id instead"
        )
    if options["standalone"] or (most == 1 and not endpoint and backend == "core"):
        if backend != "core":
            raise ParameterError(f"--standalone and --backend {backend}: give only one of them")
        return f"{LOOPBACK}:{free_port(LOOPBACK)}", run_id or f"run-{uuid.uuid4().hex[:12]}", True
    if not endpoint:
        what = "a path that all nodes share" if backend in PATH_BACKENDS else "HOST:PORT"
        raise ParameterError(f"--endpoint is missing: give {what}, the same on all nodes")
    if backend not in PATH_BACKENDS and not is_engine(backend):
        _check_port(endpoint)
    if not run_id:
        raise ParameterError(
            "--run-id is missing: name the job, the same on all nodes and new for each job"
        )
    return endpoint, run_id, False


def _check_port(endpoint: str) -> None:
    places = parse_endpoints(endpoint, default_port=-1)
    if any(port == -1 for _, port in places):
        given = ((host, 29400 if port == -1 else port) for host, port in places)
        shown = ",".join(join_endpoint(*place) for place in given)
        raise ParameterError(f"--endpoint {endpoint}: the port is missing; give {shown}")


def _config(options: Mapping[str, Any], token: str, restarts: int) -> dict[str, Any]:
    config: dict[str, Any] = parse_conf(options["rdzv_conf"])
    for row in timing_rows():
        if options[row.name] is not None:
            for spelling in (row.parameter, *row.aliases):
                config.pop(spelling, None)  # an option is stronger than --rdzv-conf
            config[row.parameter] = options[row.name]
    for name in ("slot", "target_nodes", "role", "stop_grace", "admit"):
        if options[name] is not None:
            config[name] = options[name]
    for name in ("tls_ca", "tls_cert", "tls_key"):
        if options.get(name):
            config[name] = options[name]
    for name in ("insecure", "new_incarnation", "tls_verify_client"):
        if options.get(name):
            config[name] = True
    if options["token_file"] is not None:
        config["token_file"] = str(options["token_file"])  # read again when it changes
    elif token and "token_file" not in config:
        config["token"] = token
    return {**config, "max_restarts": restarts}


def parse_conf(text: str) -> dict[str, Any]:
    """Return the pairs of `--rdzv-conf`. Raises ParameterError."""
    pairs = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ParameterError(f"--rdzv-conf {text}: {part!r} is not KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options as texts for display, without the token of `--rdzv-conf`."""
    parts = options["rdzv_conf"].split(",")
    hidden = [f"token={HIDDEN}" if part.strip().startswith("token=") else part for part in parts]
    shown = {**options, "rdzv_conf": ",".join(hidden)}
    return {name: "" if value is None else str(value) for name, value in shown.items()}


def _token(path: Path | None, env: Mapping[str, str]) -> str:
    if path is None:
        from rallypoint.net.tokens import parse

        token = env.get("RALLYPOINT_TOKEN", "")
        parse(token.encode(), "RALLYPOINT_TOKEN")
        return token
    if path == Path():
        raise ParameterError("--token-file '': give a file, or leave it out")
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"--token-file {path}: cannot be read: {error}") from error
    if not token:
        raise ParameterError(
            f"--token-file {path}: the file is empty; write the shared token to it"
        )
    return token


def _output(options: Mapping[str, Any], env: Mapping[str, str]) -> OutputPlan:
    redirects = parse_choice("--redirects", options["redirects"])
    tee = parse_choice("--tee", options["tee"])
    wanted = any(redirects.values())
    if wanted and options["log_dir"] is None:
        raise ParameterError("--redirects needs --log-dir DIR")
    if options["log_max_bytes"] and options["log_dir"] is None:
        raise ParameterError("--log-max-bytes needs --log-dir DIR")
    return OutputPlan(
        log_dir=options["log_dir"],
        redirects=redirects if wanted else {},
        tee=tee if any(tee.values()) else {},
        role=options["role"],
        node=socket.gethostname(),
        max_bytes=options["log_max_bytes"],
        keep=options["log_keep"],
        as_json=options["log_format"] == "json",
        coloured=_coloured(env),
    )


def _coloured(env: Mapping[str, str]) -> frozenset[int]:
    """Return the streams whose terminal shows colours."""
    if env.get("NO_COLOR") or env.get("TERM", "dumb") == "dumb":
        return frozenset()
    return frozenset(stream for stream in (STDOUT, STDERR) if os.isatty(stream))


def _store_url(backend: str, endpoint: str) -> str:
    if is_engine(backend):
        return engine_url(backend, endpoint)
    if backend in PATH_BACKENDS:
        return Path(endpoint).absolute().as_uri()
    return f"tcp://{endpoint.replace(' ', '')}"


def _held(settings: RendezvousSettings) -> dict[str, str]:
    """Return the settings of the table as texts."""
    found = {row.name: settings.value(row.name) for row in timing_rows()}
    return {
        name: f"{value.total_seconds():g} s" if isinstance(value, timedelta) else str(value)
        for name, value in found.items()
    }
