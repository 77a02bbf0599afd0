"""Finds RALLYPOINT_ variables that nothing reads, to warn of misspelled names.

Options name their variables; all others are listed here. For a service called rallypoint,
Kubernetes sets variables such as RALLYPOINT_SERVICE_HOST; these are ignored.
"""

import difflib
import re
from collections.abc import Mapping

import click

from rallypoint.agent.workers.process_tree import MARK
from rallypoint.cli import COMMANDS, main
from rallypoint.engines.url import ENGINES
from rallypoint.net.tls import PREFIX as TLS
from rallypoint.net.token_sources import FILE_VARIABLE, TOKEN_VARIABLE
from rallypoint.rendezvous import defaults
from rallypoint.server import tracing
from rallypoint.worker.change import CHANGE_FILE
from rallypoint.worker.progress import PROGRESS_FILE, STACK_SIGNAL

PREFIX = "RALLYPOINT_"
_OF_ENGINES = {
    f"{PREFIX}{engine.upper()}_{name}"
    for engine in ENGINES
    for name in ("USER", "PASSWORD", "PASSWORD_FILE", "CA", "CERT", "KEY")
}
_OF_ENVIRONMENTS = {f"{PREFIX}SUBDOMAIN", f"{PREFIX}PORT"}  # read by `--environment kubernetes`
SETTINGS = frozenset(
    {TOKEN_VARIABLE, FILE_VARIABLE, TLS, tracing.VARIABLE, *_OF_ENGINES, *_OF_ENVIRONMENTS}
    | {row.env for row in defaults.DEFAULTS if row.env}
)
# Set by an agent for its workers, which may start agents themselves.
OF_WORKERS = frozenset(
    {MARK, CHANGE_FILE, PROGRESS_FILE, STACK_SIGNAL}
    | {f"{PREFIX}{name}" for name in ("RUN_ID", "ROUND", "INCARNATION", "STORE")}
)
OF_TESTS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "ARTEFACTS", "CHROMIUM", "FULL", "FUZZ_SECONDS", "INTEGRATIONS", "KILLS", "NIGHTLY",
        "REFRESH", "SEED", "STARTS", "TORCH_PYTHON",
    )
)  # fmt: skip
_OF_A_SERVICE = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_(TCP|UDP|SCTP)\w*)")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def unread(env: Mapping[str, str], command: click.Command) -> list[str]:
    """Return a warning for each variable that nothing reads, with the nearest name.

    Args:
        env: the variables; empty ones count as not set.
        command: the command that runs; others are imported only if it does not read them all.
    """
    names = {name for name, value in env.items() if name.startswith(PREFIX) and value}
    strange = names - SETTINGS - OF_WORKERS - OF_TESTS - of_options(command)
    strange = {name for name in strange if not _is_of_a_service(name, env[name])}
    if not strange:
        return []
    known = SETTINGS.union(*map(of_options, _commands()))
    return [f"{name} is set, but nothing reads it{_nearest(name, known)}"
            for name in sorted(strange - known)]  # fmt: skip


def of_options(command: click.Command) -> frozenset[str]:
    """Return all variables that the options of a command read."""
    given = (parameter.envvar or () for parameter in command.params)
    return frozenset().union(*([one] if isinstance(one, str) else one for one in given))


def _commands() -> list[click.Command]:
    context = click.Context(main)
    found = (main.get_command(context, name) for name in COMMANDS)
    return [command for command in found if command is not None]


def _is_of_a_service(name: str, value: str) -> bool:
    return bool(_OF_A_SERVICE.fullmatch(name) or _ADDRESS.match(value))


def _nearest(name: str, known: frozenset[str]) -> str:
    """Return the nearest name, compared without the common prefix."""
    ends = [one.removeprefix(PREFIX) for one in sorted(known) if one.startswith(PREFIX)]
    found = difflib.get_close_matches(name.removeprefix(PREFIX), ends, 1)
    return f"; did you mean {PREFIX}{found[0]}?" if found else ""
