"""`rallypoint status`: what a run waits for, its nodes, and its past rounds.

Exit codes: 0 shown, 1 unreachable, 2 usage, 3 no such run.
"""

import contextlib
import sys
import threading
from typing import NoReturn

import click
import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rallypoint.cli.options import (
    backend_option,
    endpoint_option,
    run_id_option,
    timeout_option,
    token_file_option,
)
from rallypoint.cli.run_sources import Source, open_source
from rallypoint.core.notices import UNSAID
from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.net.token_sources import read_token
from rallypoint.rendezvous.coordinator import ExclusionLine, NoticeLine, RoundLine
from rallypoint.rendezvous.reports.status import (
    MemberStatus,
    RunStatus,
    ServerStatus,
    Status,
    no_such_run,
)
from rallypoint.wallclock import duration

MEMBERS_SHOWN = 64
NEWS_SHOWN = 3
ROUNDS_SHOWN = 8
MISSING_SHOWN = 8
SILENT_SECONDS = 7.0  # longer than a heartbeat interval and its travel time
_PHASES = {"gathering": "yellow", "last call": "yellow", "sealed": "green", "closed": "dim"}
_PLACES = {
    "participant": "green",
    "candidate": "yellow",
    "waiting": "cyan",
    "spare": "blue",
    "finished": "dim",
}


def picture(status: Status) -> Group:
    """Return the whole picture."""
    parts: list[RenderableType] = []
    if status.server is not None:
        parts.append(_server(status.server))
    for run in status.runs:
        there = _run(run) if run.is_there else [Text(no_such_run(run, status.server))]
        parts += [Text(""), *there]
    if status.server is not None and not status.runs:
        parts.append(Text("the server has no runs", style="dim"))
    more = (status.server.run_count if status.server else 0) - len(status.runs)
    if status.server is not None and more > 0 and len(status.runs) != 1:
        parts.append(Text(f"\nand {more} more runs (--run-id NAME shows one)", style="dim"))
    return Group(*parts)


def _server(server: ServerStatus) -> Text:
    text = Text(f"server {server.endpoint}", style="bold")
    lag = f"{server.lag_seconds * 1000:.0f} ms"
    text.append(
        f"  rallypoint {server.version}, up {duration(server.uptime_seconds)}, "
        f"{_many(server.connections, 'connection')}, {_many(server.run_count, 'run')}, "
        f"event loop {lag} late",
        style="dim",
    )
    if server.durable is not None:
        kept = server.durable
        text.append(
            f"\ndurable: {kept.where}, {_many(kept.commits, 'commit')} of "
            f"{kept.commit_seconds * 1000:.1f} ms (worst {kept.worst_commit_seconds:.1f} s)",
            style="dim",
        )
        if kept.trouble:
            text.append(f"\n{kept.trouble}", style="bold red")
    if server.role:
        text.append(f"\n{server.role}")
    if server.access.startswith("INSECURE"):
        text.append(f"\n{server.access}", style="bold red")
    if server.faults:
        times = _many(server.faults, "internal error")
        text.append(
            f"\n{times}, see the server's log: each closed a run or a connection", style="red"
        )
    return text


def _many(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _run(run: RunStatus) -> list[RenderableType]:
    head = Text("run ", style="bold")
    head.append(run.run_id or "(no name)", style="bold")
    head.append(f"  {run.phase}", style=_PHASES[run.phase])
    head.append(f", round {run.round}")
    if run.incarnation > 1:
        head.append(f", incarnation {run.incarnation}")
    if run.since_seconds is not None:
        head.append(f", for {duration(run.since_seconds)}")
    parts: list[RenderableType] = [head, _in(Text(run.reason))]
    parts += [_in(line) for line in _lines(run)]
    if run.members:
        parts.append(_in(_members(run)))
    if run.rounds:
        parts.append(_in(_rounds(run.rounds)))
    return parts


def _in(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2), expand=False)


def _lines(run: RunStatus) -> list[Text]:
    lines = []
    if run.missing:
        shown = ", ".join(run.missing[:MISSING_SHOWN])
        more = len(run.missing) - MISSING_SHOWN
        lines.append(_line("missing", shown + (f" and {more} more" if more > 0 else ""), "red"))
    for timer in run.timers:
        left = duration(timer.remaining_seconds)
        lines.append(_line("timer", f"{timer.name}: {left or 'runs'} ({timer.setting})"))
    if run.settings is not None:
        s = run.settings
        span = f"{s.min_nodes}" if s.min_nodes == s.max_nodes else f"{s.min_nodes} to {s.max_nodes}"
        target = f", {s.target_nodes} wanted" if s.target_nodes else ""
        lines.append(_line("nodes", f"{span}{target}; opened by {run.opened_by}"))
        allowed = "any number" if run.budget.allowed is None else str(run.budget.allowed)
        row = f", {run.budget.in_a_row} in a row" if run.budget.in_a_row > 1 else ""
        lines.append(_line("restarts", f"{run.budget.used} of {allowed}{row}"))
    lines += [_line("leaving", _leaves(notice), "yellow") for notice in run.notices[:NEWS_SHOWN]]
    lines += [_line("excluded", _excluded(out), "red") for out in run.exclusions[:NEWS_SHOWN]]
    for failure in run.failures[:1]:
        how = f"signal {failure.signal}" if failure.signal else f"exit code {failure.exit_code}"
        text = f"rank {failure.rank} on {failure.node}, round {failure.round}: {how}"
        lines.append(_line("failure", text, "red"))
    for out in run.shut_out[:3]:
        lines.append(_line("lost", f"{out.id[:8]}: {out.why}"))
    return lines


def _leaves(notice: NoticeLine) -> str:
    left = duration(notice.remaining_seconds)
    by = "" if notice.by == notice.node else f", requested by {notice.by}"
    why = "" if notice.why == UNSAID else f": {notice.why}"
    return f"{notice.node}{f' in {left}' if left else ''}{by}{why}"


def _excluded(out: ExclusionLine) -> str:
    until = "until admitted"
    if out.seconds is not None:
        left = out.remaining_seconds
        until = f"for {duration(out.seconds)}" if left is None else f"{duration(left)} more"
    return f"{out.aspect} {out.name}, {until}: {out.why} (by {out.by})"


def _line(name: str, value: str, style: str = "") -> Text:
    text = Text(f"{name:<9}", style="dim")
    text.append(value, style=style)
    return text


def _table(*columns: str) -> Table:
    return Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")


def _members(run: RunStatus) -> Table:
    table = _table("rank", "node", "slot", "role", "for", "last heard")
    for column in (0, 4, 5):
        table.columns[column].justify = "right"
        table.columns[column].no_wrap = True
    for member in run.members[:MEMBERS_SHOWN]:
        table.add_row(
            "" if member.rank is None else str(member.rank),
            Text(member.label),
            Text(member.slot or ""),
            Text(member.place, style=_PLACES[member.place]),
            duration(member.since_seconds),
            _beat(member),
        )
    more = len(run.members) - MEMBERS_SHOWN
    if more > 0:
        table.add_row("", Text(f"and {more} more (--json shows all)", style="dim"))
    return table


def _beat(member: MemberStatus) -> Text:
    if not member.connected:
        return Text("disconnected", style="bold red")
    heard = member.heard_seconds
    late = heard is not None and heard > SILENT_SECONDS
    return Text(duration(heard), style="red" if late else "")


def _rounds(rounds: tuple[RoundLine, ...]) -> Table:
    table = _table("round", "nodes", "began", "lasted", "why it was sealed", "why it ended")
    for column in (0, 1, 2, 3):
        table.columns[column].justify = "right"
        table.columns[column].no_wrap = True
    for line in rounds[-ROUNDS_SHOWN:]:
        began = line.sealed_seconds
        lasted = None if began is None else began - (line.ended_seconds or 0.0)
        table.add_row(
            str(line.number),
            str(line.size) if line.size else "",
            f"{duration(began)} ago" if began is not None else "",
            duration(lasted),
            Text(line.sealed_because),
            Text(line.ended_because, style="yellow" if line.lost else ""),
        )
    return table


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
