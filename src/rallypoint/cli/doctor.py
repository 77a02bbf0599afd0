"""`rallypoint doctor`: find out why nodes do not meet, and what to do.

Exit codes: 0 no problem found, 1 problem found, 2 usage.
"""

import dataclasses
import sys

import click
import msgspec
from rich.console import Console
from rich.text import Text

from rallypoint.cli.options import (
    backend_option,
    endpoint_option,
    run_id_option,
    timeout_option,
    token_file_option,
)
from rallypoint.cli.plan import nodes as parse_nodes
from rallypoint.cli.run_sources import SERVER_BACKENDS
from rallypoint.doctor.examination import Question, cause, examine_all, worst
from rallypoint.doctor.findings import Finding, Verdict
from rallypoint.doctor.probe import Probe
from rallypoint.doctor.shared import examine_shared, where
from rallypoint.errors import ParameterError
from rallypoint.net.tls import read_tls
from rallypoint.net.token_sources import read_token

SCHEMA = "rallypoint.doctor/1"
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
def command(
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
            questions = Question.each(endpoint, run_id, token, most, read_tls())
            endpoint = ", ".join(question.target.where for question in questions)
            steps = examine_all(questions, probe)
        else:
            steps = examine_shared(backend, endpoint, run_id, probe)
            endpoint = where(backend, endpoint)
    except ParameterError as error:
        click.echo(f"rallypoint doctor: {error}", err=True)
        sys.exit(EXIT_USAGE)
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    if not as_json:
        console.print(Text(f"examining {endpoint} from this machine", style="bold"))
    found = []
    for finding in steps:
        found.append(finding)
        if not as_json:
            console.print(line(finding))
    if as_json:
        click.echo(document(endpoint, found))
    else:
        console.print(conclusion(found))
    sys.exit(EXIT_WRONG if worst(found) is Verdict.FAIL else 0)


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


def document(endpoint: str, found: list[Finding]) -> str:
    """Return the findings as JSON."""
    wrong = cause(found)
    value = {
        "schema": SCHEMA,
        "endpoint": endpoint,
        "verdict": worst(found).value,
        "cause": None if wrong is None else wrong.step,
        "findings": [dataclasses.asdict(finding) for finding in found],
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
