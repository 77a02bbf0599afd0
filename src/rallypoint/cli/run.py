"""`rallypoint run`: start this node of a job.

Checks everything first (`plan`), then hosts the server if the endpoint is this machine's, then
runs the agent. Exit codes: docs/exit-codes.md.
"""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec
from click.core import ParameterSource

from rallypoint.agent.policy.exit_codes import EXIT_FAILED, EXIT_USAGE
from rallypoint.agent.reporting.console import complain, print_logs, use_json
from rallypoint.cli.hosting import hosted
from rallypoint.cli.option_checks import rank_of_a_seat
from rallypoint.cli.options import SETTINGS, all_options, variable_of
from rallypoint.cli.plan import Plan, make_plan, node_label, nodes, parse_conf
from rallypoint.cli.scheduler_env import fill
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.net.addresses import LOOPBACK
from rallypoint.rendezvous import defaults

if TYPE_CHECKING:
    from rallypoint.agent.config import AgentConfig
    from rallypoint.net.endpoints import Endpoint
    from rallypoint.store.api import Store

HOSTED_BACKEND = "core"
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
    """Start one node of a job: join the other nodes, run the workers, and continue when nodes are
    lost.
    """
    if options["log_format"] == "json":
        use_json(node_label())
    print_logs()
    _look_at_variables(ctx.command)
    try:
        filled, origins = fill(ctx, options, os.environ)
        if "node_rank" in origins:  # a scheduler also counts spare nodes
            filled["node_rank"] = rank_of_a_seat(filled["node_rank"], nodes(filled["nnodes"])[1])
        plan = make_plan(filled, command, os.environ, needs_command=not explain)
    except ParameterError as error:
        _fail(f"{error}{_variables_in(ctx, str(error))}", EXIT_USAGE)
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
    """Host the server if the endpoint is local, run the agent, return its exit code."""
    from rallypoint.agent.join.handlers import agent_handler
    from rallypoint.agent.loop import Agent
    from rallypoint.rendezvous.handler import DynamicRendezvousHandler
    from rallypoint.rendezvous.registry import get_rendezvous_handler

    params = plan.parameters
    is_host = params.get_as_bool("is_host")
    if params.backend == HOSTED_BACKEND:
        params.config["is_host"] = False  # a process of its own hosts
    _look_at_probes(plan.agent.supervision.health)
    handler = get_rendezvous_handler(params)
    hosting: AbstractContextManager[None] = nullcontext()
    if params.backend == HOSTED_BACKEND and isinstance(handler, DynamicRendezvousHandler):
        hosting = hosted(plan, is_host, handler)
    with hosting:  # after all checks of the options
        config = _agent_config(plan)
        context = config.context
        joining = agent_handler(handler, context.local_world_size, context.max_restarts)
        return Agent(config, joining).run()


def _look_at_variables(command: click.Command) -> None:
    """Warn of RALLYPOINT_ variables that nothing reads."""
    from rallypoint.cli.variables import unread

    for text in unread(os.environ, command):
        complain(f"warning: {text}")


def _look_at_probes(health: "Endpoint | None") -> None:
    """Warn if the kubelet, which connects to the pod's address, cannot reach the health port."""
    if health is not None and health[0] == LOOPBACK and os.environ.get("KUBERNETES_SERVICE_HOST"):
        complain(
            f"warning: --health-port listens on {LOOPBACK} only, and the kubelet's probes come to "
            f"the pod's address: give --health-port 0.0.0.0:{health[1]} "
            f"([::]:{health[1]} with IPv6)"
        )


def _agent_config(plan: Plan) -> "AgentConfig":
    from rallypoint.net.tls import read_tls
    from rallypoint.net.token_sources import current
    from rallypoint.net.tokens import worker_token

    params, token, context = plan.parameters, plan.secret(), plan.agent.context
    return msgspec.structs.replace(
        plan.agent,
        context=msgspec.structs.replace(context, environment=read_tls(params.config).environment()),
        worker_store=_worker_store(plan),
        worker_token=lambda: worker_token(current(token), params.run_id),
        examine=_doctor(plan) if params.backend == HOSTED_BACKEND else None,
    )


def _worker_store(plan: Plan) -> Callable[[], "Store"] | None:
    """Return a function that opens the run's store as its workers do, None with static rounds."""
    from rallypoint.net.tls import read_tls
    from rallypoint.net.token_sources import current
    from rallypoint.net.tokens import worker_token
    from rallypoint.worker.process import open_store

    params = plan.parameters
    if params.backend == "static":
        return None
    token = plan.secret()

    def opened() -> "Store":
        where = {
            "RALLYPOINT_STORE": plan.agent.context.store_url,
            "RALLYPOINT_RUN_ID": params.run_id,
            "RALLYPOINT_TOKEN": worker_token(current(token), params.run_id),
        }
        return open_store(where, read_tls(params.config))

    return opened


def _doctor(plan: Plan) -> Callable[[], str]:
    token = plan.secret()

    def look() -> str:
        from rallypoint.doctor.examination import Question, in_short
        from rallypoint.net.tls import read_tls
        from rallypoint.net.token_sources import current

        params = plan.parameters
        given = (current(token), params.min_nodes, read_tls(params.config))
        questions = Question.each(params.endpoint, params.run_id, *given)
        return in_short(questions, DOCTOR_STEP_SECONDS)

    return look


def _variables_in(ctx: click.Context, text: str) -> str:
    """Return, for people, the variables that set the options which a message names."""
    words = set(re.findall(r"--[a-z-]+|\b[a-z_]+(?==)", text))
    named = [p for p in ctx.command.params if words.intersection([*p.opts, p.name or ""])]
    found = [f"{p.opts[0]} was set by {name}" for p in named if (name := variable_of(ctx, p))]
    return f" ({', '.join(found)})" if found else ""


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
        return f"environment: {variable_of(ctx, parameter)}"
    known = {row.name for row in defaults.DEFAULTS}
    spellings = defaults.spellings(name) if name in known else (name,)
    if any(spelling in conf for spelling in spellings):
        return "--rdzv-conf"
    return "generated" if name == "run_id" or name == "endpoint" else "default"
