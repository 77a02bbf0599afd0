"""`rallypoint doctor` and `check`: why nodes do not meet, and whether a node is fit.

Exit codes: 0 no problem found, 1 problem found, 2 usage.
"""

import dataclasses
import os
import socket
import sys
from collections.abc import Iterable
from typing import NoReturn

import click
import msgspec
from rich.console import Console
from rich.text import Text

from rallypoint.cli.options import (
    Seconds,
    backend_option,
    endpoint_option,
    run_id_option,
    timeout_option,
    token_file_option,
)
from rallypoint.cli.plan import nodes as parse_nodes
from rallypoint.cli.run_sources import SERVER_BACKENDS
from rallypoint.deadline import Deadline
from rallypoint.doctor import fitness, measurements
from rallypoint.doctor.examination import Question, cause, examine_all, worst
from rallypoint.doctor.findings import Finding, Verdict
from rallypoint.doctor.fitness import GIB, Pair
from rallypoint.doctor.probe import Probe
from rallypoint.doctor.serverless import examine_serverless, where
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.net.addresses import local_address
from rallypoint.net.tls import read_tls
from rallypoint.net.token_sources import read_token
from rallypoint.store.tcp import TCPStore

EXIT_WRONG, EXIT_USAGE = 1, 2
PLAIN_WIDTH = 100
_MARKS = {
    Verdict.OK: ("ok  ", "green"),
    Verdict.NOTE: ("note", "cyan"),
    Verdict.WARN: ("warn", "yellow"),
    Verdict.FAIL: ("FAIL", "bold red"),
}
EXAMPLES = """
\b
Examples:
    rallypoint doctor --endpoint first:29400
    rallypoint doctor --endpoint first:29400 --run-id digits --nnodes 2:4
    rallypoint doctor --backend etcd --endpoint etcd1:2379,etcd2:2379 --run-id digits
"""


@click.command("doctor", epilog=EXAMPLES)
@endpoint_option("The endpoint as the nodes get it (file: the path).", required=True)
@run_id_option("The run to examine, including the ports of its nodes.")
@backend_option
@click.option(
    "--nnodes",
    default="",
    envvar=["RALLYPOINT_NNODES", "PET_NNODES"],
    metavar="MIN[:MAX]",
    help="Number of nodes that should meet.",
)
@token_file_option()
@timeout_option("each step")
@click.option("--json", "as_json", is_flag=True, help="Print the document rallypoint.doctor/1.")
def doctor(
    endpoint: str,
    run_id: str,
    backend: str,
    nnodes: str,
    token_file: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Find out, step by step, why nodes do not meet, and what to do.

    Takes the steps of a node on this machine, but joins and changes no run. For a database or a
    file, it writes and deletes an entry of its own to check the permission to write.
    """
    try:
        most = parse_nodes(nnodes)[1] if nnodes else 0
        token, probe = read_token(None, token_file), Probe(timeout)
        if backend in SERVER_BACKENDS:
            questions = Question.each(endpoint, run_id, token, most, read_tls(), True)
            endpoint = ", ".join(question.target.where for question in questions)
            steps = examine_all(questions, probe)
        else:
            steps = examine_serverless(backend, endpoint, run_id, probe)
            endpoint = where(backend, endpoint)
    except ParameterError as error:
        _fail("doctor", error, EXIT_USAGE)
    console = None
    if not as_json:
        console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        console.print(Text(f"examining {endpoint} from this machine", style="bold"))
    found = _show(steps, console)
    if console is None:
        wrong = cause(found)
        step = None if wrong is None else wrong.step
        click.echo(document("rallypoint.doctor/1", found, endpoint=endpoint, cause=step))
    else:
        console.print(conclusion(found))
    sys.exit(EXIT_WRONG if worst(found) is Verdict.FAIL else 0)


CHECK_EXAMPLES = """
\b
Examples:
    rallypoint check --path /scratch --min-disk 50
    rallypoint check --endpoint first:29400 --run-id digits
    srun rallypoint check --endpoint first:29400 --run-id check-7 --nodes 4
    rallypoint run --health-check 'rallypoint check --min-memory 8' ...
"""


@click.command("check", epilog=CHECK_EXAMPLES)
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
@click.option("--json", "as_json", is_flag=True, help="Print the document rallypoint.check/1.")
def check(
    paths: tuple[str, ...], min_disk: float, min_memory: float, endpoint: str, run_id: str,
    nodes: int | None, local_addr: str | None, token_file: str | None, timeout: float,
    wait: float, as_json: bool,
) -> None:  # fmt: skip
    """Check whether this node is fit: disk, memory, clock, GPUs, and network links.

    Joins no run. With --nodes, start the command on all nodes at once: they measure the links
    between them, and report those that are slow or dead.
    """
    token = read_token(None, token_file)
    try:
        if nodes and not (endpoint and run_id):
            raise ParameterError("--nodes needs --endpoint and --run-id, for the nodes to meet")
        questions = Question.each(endpoint, run_id, token, 0, read_tls()) if endpoint else []
        console = None if as_json else Console(soft_wrap=not os.isatty(1))  # one line each in logs
        places = paths or (".", "/tmp")  # noqa: S108 - only its free space is read
        sizes = int(min_disk * GIB), int(min_memory * GIB)
        found = _show(measurements.examine(places, *sizes, timeout), console)
        if questions:
            found += _show(examine_all(questions, Probe(timeout)), console)
        measured: list[Pair] = []
        if nodes and worst(found) is not Verdict.FAIL:
            address = local_addr or local_address(questions[0].host, questions[0].port)
            who = socket.gethostname(), address
            with TCPStore.at(questions[0].target) as store:
                measured, absent = measurements.meet(store, *who, nodes, timeout, Deadline(wait))
            found += _show([fitness.links(measured, absent)], console)
    except ParameterError as error:
        _fail("check", error, EXIT_USAGE)
    except (RallypointError, OSError) as error:
        _fail("check", error, EXIT_WRONG)
    if as_json:
        click.echo(document("rallypoint.check/1", found, pairs=measured))
    sys.exit(EXIT_WRONG if worst(found) is Verdict.FAIL else 0)


def _show(steps: Iterable[Finding], console: Console | None) -> list[Finding]:
    found = []
    for finding in steps:
        found.append(finding)
        if console is not None:
            console.print(line(finding))
    return found


def _fail(command: str, error: Exception, code: int) -> NoReturn:
    click.echo(f"rallypoint {command}: {error}", err=True)
    sys.exit(code)


def line(finding: Finding) -> Text:
    """Return a finding as shown on a terminal."""
    mark, style = _MARKS[finding.verdict]
    text = Text(mark, style=style)
    text.append(f"  {finding.step:<10}", style="dim")
    text.append(f"  {finding.text}", style="")
    if finding.remedy:
        text.append(f"\n      -> {finding.remedy}", style="bold" if "FAIL" in mark else "")
    return text


def conclusion(found: list[Finding]) -> Text:
    """Return the last line: the likely cause."""
    wrong = cause(found)
    if wrong is None:
        return Text("no problem found from this machine", style="green")
    how = "likely cause" if wrong.verdict is Verdict.FAIL else "possible cause"
    return Text(f"{how}: {wrong.step}: {wrong.text}", style="bold")


def document(schema: str, found: list[Finding], **more: object) -> str:
    """Return the findings as JSON."""
    value = {
        "schema": schema,
        "verdict": worst(found).value,
        "findings": [dataclasses.asdict(finding) for finding in found],
        **more,
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
