"""`close`, `exclude`, `admit` and `notify`: commands of an administrator to one run.

A server carries the command out, records who gave it, and asks for a token with the admin scope
if it has tokens. Without a server, any user who can write the run's state may give it.

Exit codes: 0 done, 1 failed, 2 usage (including: no such node), 3 no such run.
"""

import contextlib
import functools
import getpass
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from rallypoint.cli.options import (
    LONG,
    backend_option,
    endpoint_option,
    timeout_option,
    together,
    token_file_option,
)
from rallypoint.cli.run_sources import open_source
from rallypoint.core.events import Admit, Close, Exclude, Notify
from rallypoint.core.exclusion import selects
from rallypoint.core.state import Aspect, Node
from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.net.token_sources import read_token
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.reports.status import MemberStatus, RunStatus, no_such_run
from rallypoint.wallclock import duration, now_text

EXIT_FAILED, EXIT_USAGE, EXIT_NO_RUN = 1, 2, 3
SHORTEST_PREFIX = 6
NAMES_SHOWN = 20
Decorated = Callable[..., Any]
Decide = Callable[[RunStatus], tuple[list[Order], str]]
"""Returns the orders for a run with this status, and what to print then before the run's reason."""


@dataclass(frozen=True)
class RunLocation:
    """A run and where to find it.

    Args:
        timeout: seconds for the whole command.
    """

    run_id: str
    endpoint: str
    backend: str
    token_file: str | None
    timeout: float


@dataclass(frozen=True)
class NodeSelector:
    """Nodes, given by host name, label or id; by address; or by slot."""

    node: str | None
    address: str | None
    slot: str | None

    def named(self, *others: str) -> tuple[Aspect, str]:
        """Return the kind of name, and the name.

        Args:
            others: further options of the command that name nodes, for the message.

        Raises ParameterError if none or several are given.
        """
        pairs = ((Aspect.NODE, self.node), (Aspect.ADDRESS, self.address), (Aspect.SLOT, self.slot))
        given = [(aspect, name) for aspect, name in pairs if name]
        if len(given) != 1:
            what = " and ".join(f"--{aspect}" for aspect, _ in given) or "no node"
            *first, last = ["--node", "--address", "--slot", *others]
            raise ParameterError(f"{what} given: give one of {', '.join(first)} and {last}")
        return given[0]


_WHERE: tuple[Callable[[Decorated], Decorated], ...] = (
    click.argument("run_id", metavar="RUN"),
    endpoint_option(),
    backend_option,
    token_file_option("an admin token"),
    timeout_option("the command"),
)
_WHOM = (
    click.option("--node", metavar="NAME", help="Host name, label or id, as `status` shows it."),
    click.option("--address", metavar="ADDR", help="All nodes at this address."),
    click.option("--slot", metavar="SLOT", help="The node in this slot (pod, Slurm task)."),
)
why_option = click.option("--why", default="", help="The reason; all nodes see it.")


def of_a_run(function: Decorated) -> Decorated:
    """Add the argument RUN and the options that say where it is; the command gets `where`."""

    @functools.wraps(function)
    def inner(
        run_id: str,
        endpoint: str,
        backend: str,
        token_file: str | None,
        timeout: float,
        **rest: Any,
    ) -> object:
        return function(where=RunLocation(run_id, endpoint, backend, token_file, timeout), **rest)

    return together(_WHERE, inner)


def of_nodes(function: Decorated) -> Decorated:
    """Add the options that name nodes; the command gets `whom`."""

    @functools.wraps(function)
    def inner(node: str | None, address: str | None, slot: str | None, **rest: Any) -> object:
        return function(whom=NodeSelector(node, address, slot), **rest)

    return together(_WHOM, inner)


def meant(run: RunStatus, aspect: Aspect, name: str) -> list[MemberStatus]:
    """Return the live nodes with a name; an unambiguous beginning of an id is enough.

    Raises ParameterError, with the nodes of the run, if no live node has the name of a --node.
    """
    members = [member for member in run.members if member.place != "finished"]
    found = [member for member in members if selects(aspect, name, _node(member))]
    if found or aspect is not Aspect.NODE:
        return found
    if len(name) >= SHORTEST_PREFIX:
        found = [member for member in members if member.id.startswith(name)]
    if len(found) == 1:
        return found
    there = ", ".join(member.label for member in members[:NAMES_SHOWN]) or "none"
    more = f" and {len(members) - NAMES_SHOWN} more" if len(members) > NAMES_SHOWN else ""
    raise ParameterError(
        f"--node {name}: run {run.run_id!r} has no such node; its nodes: {there}{more}"
    )


def _node(member: MemberStatus) -> Node:
    return Node(member.id, member.address, pid=member.pid, slot=member.slot, host=member.host)


def by_whom() -> str:
    """Return who gives the command, for people; a server adds the user it sees itself."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def carry_out(command: str, where: RunLocation, decide: Decide) -> None:
    """Read the run's status, give the orders, and print the result; exit if that fails.

    Args:
        command: name of the command, for messages.
        where: the run.
        decide: makes the orders; may raise ParameterError.
    """
    deadline, run_id = Deadline(where.timeout), where.run_id
    try:
        token = read_token(None, where.token_file)
        source = open_source(where.backend, where.endpoint, run_id, token)
    except ParameterError as error:
        _fail(command, str(error), EXIT_USAGE)
    try:
        with contextlib.closing(source):
            status = source.read(run_id, deadline)
            (run,) = status.runs
            if not run.is_there:
                _fail(command, no_such_run(run, status.server), EXIT_NO_RUN)
            orders, said = decide(run)
            for order in orders:
                source.order(run_id, order, deadline)
            if said:
                click.echo(said)
            (after,) = source.read(run_id, deadline).runs
            click.echo(after.reason)
    except ParameterError as error:
        _fail(command, str(error), EXIT_USAGE)
    except RallypointError as error:
        _fail(command, str(error), EXIT_FAILED)


def _fail(command: str, text: str, code: int) -> NoReturn:
    click.echo(f"rallypoint {command}: {text}", err=True)
    sys.exit(code)


def _examples(text: str) -> str:
    return f"\n\b\nExamples:\n{text}"


@click.command(
    "close",
    epilog=_examples('    rallypoint close digits --why "wrong data" --endpoint first:29400\n'),
)
@of_a_run
@why_option
def close(where: RunLocation, why: str) -> None:
    """End RUN for all its nodes. Later nodes are refused, and told who closed it, when and why."""

    def decide(run: RunStatus) -> tuple[list[Order], str]:
        if run.phase == "closed":
            raise ParameterError(run.reason)
        order = Close(by_whom(), why, now_text(), run.incarnation)  # E1: and no later one
        return [order], ""  # the reason says it

    carry_out("close", where, decide)


@click.command(
    "exclude",
    epilog=_examples(
        '    rallypoint exclude digits --node node7 --why "memory errors"\n'
        '    rallypoint exclude digits --slot pod-3 --for 2h --why "its disk is full"\n'
        "    rallypoint exclude digits --address 10.0.0.7 --endpoint first:29400\n"
    ),
)
@of_a_run
@of_nodes
@why_option
@click.option(
    "--for", "seconds", type=LONG, help="How long (90s, 5m, 6h) [default: until admitted]."
)
def exclude(where: RunLocation, whom: NodeSelector, why: str, seconds: float | None) -> None:
    """Exclude a node from RUN: it leaves its round and cannot join again.

    A host name, address or slot excludes every process there, now and later. A label or id
    excludes that one process, and its successor in the same slot.
    """

    def decide(run: RunStatus) -> tuple[list[Order], str]:
        aspect, name = whom.named()
        found = meant(run, aspect, name)
        if aspect is Aspect.NODE and len(found) == 1 and found[0].id.startswith(name):
            name = found[0].id  # the beginning of an id excludes that node
        order = Exclude(aspect, name, why, by_whom(), seconds, now_text())
        long = "until it is admitted" if seconds is None else f"for {duration(seconds)}"
        who = ", ".join(member.label for member in found) or f"{aspect} {name} (no such node yet)"
        return [order], f"excluded from run {where.run_id!r} {long}: {who}"

    carry_out("exclude", where, decide)


@click.command(
    "admit",
    epilog=_examples(
        "    rallypoint admit digits --node node7\n"
        "    rallypoint admit digits --all --endpoint first:29400\n"
    ),
)
@of_a_run
@of_nodes
@click.option("--all", "everybody", is_flag=True, help="End all exclusions of the run.")
def admit(where: RunLocation, whom: NodeSelector, everybody: bool) -> None:
    """Let excluded nodes join RUN again; give the name that `status` shows."""

    def decide(run: RunStatus) -> tuple[list[Order], str]:
        standing = [(Aspect(x.aspect), x.name) for x in run.exclusions]
        names = standing if everybody else [whom.named("--all")]
        if missing := [name for name in names if name not in standing]:
            there = ", ".join(f"{a} {n}" for a, n in standing) or "none"
            aspect, name = missing[0]
            raise ParameterError(
                f"--{aspect} {name}: not excluded from run {where.run_id!r}; exclusions: {there}"
            )
        shown = ", ".join(f"{aspect} {name}" for aspect, name in names) or "no node was excluded"
        by, at = by_whom(), now_text()
        return [Admit(a, n, by, at) for a, n in names], f"admitted to run {where.run_id!r}: {shown}"

    carry_out("admit", where, decide)


@click.command(
    "notify",
    epilog=_examples(
        '    rallypoint notify digits --node node7 --why "the machine is taken away" --in 2m\n'
        "    rallypoint notify digits --slot pod-3 --endpoint first:29400\n"
    ),
)
@of_a_run
@of_nodes
@why_option
@click.option("--in", "seconds", type=LONG, help="How long the node still has (25s, 2m).")
def notify(where: RunLocation, whom: NodeSelector, why: str, seconds: float | None) -> None:
    """Announce to RUN that a node will leave: workers save, then the node leaves the round."""

    def decide(run: RunStatus) -> tuple[list[Order], str]:
        aspect, name = whom.named()
        found = meant(run, aspect, name)
        if not found:
            nodes = run.members[:NAMES_SHOWN]
            there = ", ".join(f"{m.label} ({m.address}, {m.slot})" for m in nodes) or "none"
            raise ParameterError(
                f"--{aspect} {name}: run {where.run_id!r} has no such node; its nodes: {there}"
            )
        who = ", ".join(member.label for member in found)
        return [Notify(m.id, why, by_whom(), seconds) for m in found], f"notice given: {who}"

    carry_out("notify", where, decide)
