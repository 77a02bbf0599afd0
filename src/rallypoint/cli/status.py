"""`rallypoint status`: what a run waits for, its nodes, and its past rounds.

Exit codes: 0 shown, 1 unreachable, 2 usage, 3 no such run.
"""

import contextlib
import sys
import threading
from typing import NoReturn

import click
import msgspec
from rich.console import Console
from rich.live import Live

from rallypoint.cli.options import (
    backend_option,
    endpoint_option,
    run_id_option,
    timeout_option,
    token_file_option,
)
from rallypoint.cli.run_sources import Source, open_source
from rallypoint.cli.status_view import picture
from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.net.token_sources import read_token
from rallypoint.rendezvous.reports.status import Status

EXIT_UNREACHABLE, EXIT_USAGE, EXIT_NO_RUN = 1, 2, 3
PLAIN_WIDTH = 120
EXAMPLES = """
\b
Examples:
    rallypoint status --endpoint first:29400
    rallypoint status --endpoint first:29400 --run-id digits --watch
    rallypoint status --backend file --endpoint /shared/job --run-id digits
    rallypoint status --endpoint first:29400 --json | jq -r '.runs[].reason'
"""


@click.command("status", epilog=EXAMPLES)
@endpoint_option()
@run_id_option("The run to show. [default: all runs of the server]")
@backend_option
@token_file_option()
@click.option("--json", "as_json", is_flag=True, help="Print the document rallypoint.status/1.")
@click.option(
    "-w", "--watch", is_flag=True, help="Refresh until Ctrl-C; with --json, one document per line."
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Refresh interval of --watch.",
)
@timeout_option("one request")
def command(
    endpoint: str,
    run_id: str,
    backend: str,
    token_file: str | None,
    as_json: bool,
    watch: bool,
    interval: float,
    timeout: float,
) -> None:
    """Show what a run waits for, its nodes, and its past rounds.

    Read-only: the command creates no run and joins none.
    """
    try:
        source = open_source(backend, endpoint, run_id, read_token(None, token_file))
    except ParameterError as error:
        _fail(str(error), EXIT_USAGE)
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    try:
        with contextlib.closing(source):
            if watch:
                _watch(source, run_id, as_json, console, interval, timeout)
                return
            status = source.read(run_id, Deadline(timeout))
    except RallypointError as error:
        _fail(f"{error} (`rallypoint doctor` looks for the cause)", EXIT_UNREACHABLE)
    _show(status, as_json, console)
    if run_id and not status.runs[0].is_there:
        sys.exit(EXIT_NO_RUN)


def _show(status: Status, as_json: bool, console: Console) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(status), indent=2))
    else:
        console.print(picture(status))


def _watch(
    source: Source,
    run_id: str,
    as_json: bool,
    console: Console,
    interval: float,
    timeout: float,
) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            while True:
                click.echo(msgspec.json.encode(source.read(run_id, Deadline(timeout))))
                _rest(interval)
        first = source.read(run_id, Deadline(timeout))
        with Live(picture(first), console=console, auto_refresh=False, screen=False) as live:
            while True:
                _rest(interval)
                live.update(picture(source.read(run_id, Deadline(timeout))), refresh=True)


def _rest(seconds: float) -> None:
    threading.Event().wait(seconds)  # an Event, so that tests can replace it


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"rallypoint status: {text}", err=True)
    sys.exit(code)
