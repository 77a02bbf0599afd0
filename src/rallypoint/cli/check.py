"""`rallypoint check`: whether this node is fit to take part, for `run --health-check`.

Exit codes: 0 fit, 1 not fit, 2 usage.
"""

import dataclasses
import os
import socket
import sys
from collections.abc import Iterator

import click
import msgspec
from rich.console import Console

from rallypoint.cli.doctor import line
from rallypoint.cli.options import Seconds, timeout_option, token_file_option
from rallypoint.deadline import Deadline
from rallypoint.doctor import fitness, measurements
from rallypoint.doctor.examination import Question, examine_all, worst
from rallypoint.doctor.findings import Finding, Verdict
from rallypoint.doctor.fitness import GIB, Pair
from rallypoint.doctor.probe import Probe
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.net.addresses import local_address
from rallypoint.net.tls import read_tls
from rallypoint.net.token_sources import read_token
from rallypoint.store.tcp import TCPStore

SCHEMA = "rallypoint.check/1"
EXIT_WRONG, EXIT_USAGE = 1, 2
EXAMPLES = """
\b
Examples:
    rallypoint check --path /scratch --min-disk 50
    rallypoint check --endpoint first:29400 --run-id digits
    srun rallypoint check --endpoint first:29400 --run-id check-7 --nodes 4
    rallypoint run --health-check 'rallypoint check --min-memory 8' ...
"""


@click.command("check", epilog=EXAMPLES)
@click.option(
    "--path",
    "paths",
    multiple=True,
    metavar="DIR",
    help="Check the disk of this directory; may be repeated. [default: . and /tmp]",
)
@click.option(
    "--min-disk",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="GIB",
    help="Free space required on each disk.",
)
@click.option(
    "--min-memory",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="GIB",
    help="Free memory required.",
)
@click.option(
    "--endpoint",
    default="",
    envvar=["RALLYPOINT_ENDPOINT"],
    metavar="HOST:PORT[,...]",
    help="Also check the connection to this server.",
)
@click.option(
    "--run-id",
    default="",
    envvar=["RALLYPOINT_RUN_ID"],
    help="Also check the connections to this run's nodes; with --nodes: name of the check.",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=2),
    metavar="N",
    help="Measure the links between N nodes that all run this check now.",
)
@click.option("--local-addr", metavar="ADDR", help="Address by which other nodes reach this one.")
@token_file_option()
@timeout_option("each step")
@click.option(
    "--wait",
    type=Seconds(min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the other nodes.",
)
@click.option("--json", "as_json", is_flag=True, help=f"Print the document {SCHEMA}.")
def command(
    paths: tuple[str, ...], min_disk: float, min_memory: float, endpoint: str, run_id: str,
    nodes: int | None, local_addr: str | None, token_file: str | None, timeout: float,
    wait: float, as_json: bool,
) -> None:  # fmt: skip
    """Check whether this node is fit: disk, memory, clock, GPUs, and network links.

    Joins no run. With --nodes, start the command on all nodes at once: they measure the links
    between them, and report those that are slow or dead.
    """
    try:
        if nodes and not (endpoint and run_id):
            raise ParameterError("--nodes needs --endpoint and --run-id, for the nodes to meet")
        token = read_token(None, token_file)
        questions = Question.each(endpoint, run_id, token, 0, read_tls()) if endpoint else []
        places = paths or (".", "/tmp")  # noqa: S108 - only its free space is read
        bytes_each = (int(min_disk * GIB), int(min_memory * GIB))
        steps = examine(questions, measurements.examine(places, *bytes_each, timeout), timeout)
        found, measured = _show(steps, as_json), list[Pair]()
        if nodes and worst(found) is not Verdict.FAIL:
            address = local_addr or local_address(questions[0].host, questions[0].port)
            deadline = Deadline(wait)
            label = socket.gethostname()
            with TCPStore.at(questions[0].target) as store:
                measured, absent = measurements.meet(
                    store, label, address, nodes, timeout, deadline
                )
            found += _show(iter([fitness.links(measured, absent)]), as_json)
    except ParameterError as error:
        click.echo(f"rallypoint check: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except (RallypointError, OSError) as error:
        click.echo(f"rallypoint check: {error}", err=True)
        sys.exit(EXIT_WRONG)
    if as_json:
        click.echo(document(found, measured))
    sys.exit(EXIT_WRONG if worst(found) is Verdict.FAIL else 0)


def examine(
    questions: list[Question], steps: Iterator[Finding], timeout: float
) -> Iterator[Finding]:
    """Yield the findings: of the machine, then of its connection to the server."""
    yield from steps
    if questions:
        yield from examine_all(questions, Probe(timeout))


def _show(steps: Iterator[Finding], as_json: bool) -> list[Finding]:
    console = Console(soft_wrap=not os.isatty(1))  # one line per finding in a log
    found = []
    for finding in steps:
        found.append(finding)
        if not as_json:
            console.print(line(finding))
    return found


def document(found: list[Finding], measured: list[Pair]) -> str:
    """Return the findings as JSON."""
    value = {
        "schema": SCHEMA,
        "verdict": worst(found).value,
        "findings": [dataclasses.asdict(finding) for finding in found],
        "pairs": measured,
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
