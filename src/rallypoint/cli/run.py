"""`rallypoint run`: start this node of a job.

Reads and checks everything first (`plan`), then hosts the server if the endpoint is this
machine's, then hands over to the agent. Exit codes: 0 done, 1 failed, 2 usage, 128 + N after
signal N.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from rallypoint.agent.policy import EXIT_FAILED, EXIT_USAGE
from rallypoint.agent.report import complain, say
from rallypoint.cli.options import SETTINGS, all_options
from rallypoint.cli.plan import Plan, make_plan, parse_conf
from rallypoint.cli.surroundings import fill
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.rendezvous import defaults
from rallypoint.rendezvous.endpoint import parse_rendezvous_endpoint

if TYPE_CHECKING:
    from rallypoint.rendezvous.dynamic import DynamicRendezvousHandler

HOSTED_BACKEND = "core"
HOST_AGAIN_SECONDS = 1.0
DOCTOR_STEP_SECONDS = 2.0
EXAMPLES = """
\b
Examples:
    rallypoint run --standalone --nproc-per-node 2 train.py --epochs 3
    rallypoint run --nnodes 2 --endpoint first:29400 --run-id digits train.py
    rallypoint run --nnodes 2:4 --max-restarts 3 --last-call 10 ... -m package.train
    rallypoint run --explain --nnodes 2 --endpoint first:29400 --run-id digits
"""


@click.command("run", context_settings=SETTINGS, epilog=EXAMPLES)
@all_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
@click.pass_context
def command(ctx: click.Context, /, command: tuple[str, ...], explain: bool, **options: Any) -> None:
    """Start this node of a job: meet the other nodes, run the workers, go on without the lost."""
    try:
        filled, origins = fill(ctx, options, os.environ)
        plan = make_plan(filled, command, os.environ, needs_command=not explain)
    except ParameterError as error:
        _fail(str(error), EXIT_USAGE)
    if explain:
        _explain(ctx, plan, origins)
        return
    try:
        code = start(plan)
    except ParameterError as error:
        _fail(str(error), EXIT_USAGE)
    except RallypointError as error:
        _fail(str(error), EXIT_FAILED)
    ctx.exit(code)


def start(plan: Plan) -> int:
    """Host the server where that is this machine's part, and run the agent; its exit code."""
    from rallypoint.agent.agent import Agent, AgentConfig
    from rallypoint.agent.environment import WorkerContext
    from rallypoint.agent.handlers import agent_handler
    from rallypoint.rendezvous.dynamic import DynamicRendezvousHandler
    from rallypoint.rendezvous.registry import get_rendezvous_handler
    from rallypoint.store.keyring import worker_token
    from rallypoint.store.tls import read_tls
    from rallypoint.store.token import current, read_token

    params = plan.parameters
    token = read_token(params.get("token"), params.get("token_file"))
    is_host = params.get_as_bool("is_host")
    if params.backend == HOSTED_BACKEND:
        params.config["is_host"] = False  # hosted, here or elsewhere, by a process of its own
    handler = get_rendezvous_handler(params)
    if params.backend == HOSTED_BACKEND and isinstance(handler, DynamicRendezvousHandler):
        # after all that can be wrong with the options
        _host(plan, is_host, handler)
    config = AgentConfig(
        argv=plan.argv,
        context=WorkerContext(
            run_id=params.run_id,
            local_world_size=plan.local_world_size,
            role=plan.role,
            max_restarts=plan.max_restarts,
            store_url=plan.store_url,
            environment=read_tls(params.config).environment(),
        ),
        output=plan.output,
        node=f"{socket.gethostname()} pid {os.getpid()}",
        base_env=dict(os.environ),
        stop_grace_seconds=plan.stop_grace,
        admit_seconds=plan.monitor_interval,
        worker_token=lambda: worker_token(current(token), params.run_id),
        examine=_doctor(plan) if params.backend == HOSTED_BACKEND else None,
    )
    return Agent(config, agent_handler(handler, plan.local_world_size, plan.max_restarts)).run()


def _host(plan: Plan, is_host: bool | None, handler: "DynamicRendezvousHandler") -> None:
    from rallypoint.server.spawn import host_if_ours
    from rallypoint.store.tls import read_tls
    from rallypoint.store.token import read_token

    params = plan.parameters
    tls = read_tls(params.config)
    token = read_token(params.get("token"), params.get("token_file"))

    def attempt() -> None:
        hosted = host_if_ours(params.endpoint, token, plan.insecure, is_host, tls)
        if hosted is not None and hosted.is_local and _means_many(plan):
            say(
                f"{params.endpoint} is {', '.join(hosted.addresses)} on this machine, which no "
                "other one reaches; for nodes on other machines give an address of this one "
                "as the endpoint, or mend its own name in /etc/hosts"
            )

    try:
        attempt()
    except RallypointError:
        handler.shutdown()
        raise
    if is_host is None:
        body = threading.Thread(target=_host_later, args=[attempt, handler], daemon=True)
        body.start()


def _means_many(plan: Plan) -> bool:
    """Whether the endpoint is a name for other machines too: no address, not localhost."""
    host, _ = parse_rendezvous_endpoint(plan.parameters.endpoint)
    named = any(letter.isalpha() for letter in host) and ":" not in host
    return named and host != "localhost" and plan.parameters.max_nodes > 1


def _host_later(attempt: Callable[[], None], handler: "DynamicRendezvousHandler") -> None:
    """Until connected, try again: whoever had the port may have ended (a run before ours)."""
    connected = threading.Event()

    def look() -> None:
        if handler.view().connected:
            connected.set()

    unwatch = handler.on_change(look)
    try:
        look()
        while not connected.wait(HOST_AGAIN_SECONDS):
            attempt()
    except RallypointError:
        return  # the join, which cannot connect either, says what is wrong
    finally:
        unwatch()


def _doctor(plan: Plan) -> Callable[[], str]:
    def look() -> str:
        from rallypoint.doctor.examination import Question, in_short
        from rallypoint.store.tls import read_tls

        params = plan.parameters
        host, port = parse_rendezvous_endpoint(params.endpoint)
        tls = read_tls(params.config)
        token, least = plan.token.encode(), params.min_nodes
        question = Question(host, port, params.run_id, token, least, tls)
        return in_short(question, DOCTOR_STEP_SECONDS)

    return look


def _fail(text: str, code: int) -> NoReturn:
    complain(text)
    raise SystemExit(code)


def _explain(ctx: click.Context, plan: Plan, origins: Mapping[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "origin", "option", "variable", box=None, pad_edge=False)
    conf = parse_conf(ctx.params["rdzv_conf"])
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name in plan.effective:
            flag = parameter.opts[-1]
            variables = parameter.envvar or ()
            shown = variables if isinstance(variables, str) else ", ".join(variables)
            origin = origins.get(name) or _origin(ctx, parameter, conf)
            table.add_row(name, plan.effective[name], origin, flag, shown)
    Console(width=None if os.isatty(1) else 160).print(table)


def _origin(ctx: click.Context, parameter: click.Parameter, conf: dict[str, Any]) -> str:
    name = parameter.name or ""
    source = ctx.get_parameter_source(name)
    if source is ParameterSource.COMMANDLINE:
        return "command line"
    if source is ParameterSource.ENVIRONMENT:
        variables = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar
        return f"environment: {next(v for v in variables or () if v in os.environ)}"
    known = {row.name for row in defaults.DEFAULTS}
    spellings = defaults.spellings(name) if name in known else (name,)
    if any(spelling in conf for spelling in spellings):
        return "--rdzv-conf"
    return "made up" if name == "run_id" or name == "endpoint" else "default"
