"""What `close`, `exclude`, `admit` and `notify` have in common: an order to one run.

Where the run is on a server, the server carries it out, records who has given it, and wants the
admin scope where it has tokens; elsewhere whoever can write the run's state may.

Exit codes: 0 done, 1 it could not be done, 2 usage (no such node, too), 3 there is no such run.
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
    backend_option,
    endpoint_option,
    timeout_option,
    together,
    token_file_option,
)
from rallypoint.cli.run_sources import open_source
from rallypoint.core.annotations import Aspect
from rallypoint.core.exclusion import selects
from rallypoint.core.state import Node
from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.net.token_sources import read_token
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.reports.status import MemberStatus, RunStatus, no_such_run

EXIT_FAILED, EXIT_USAGE, EXIT_NO_RUN = 1, 2, 3
SHORTEST_PREFIX = 6
NAMES_SHOWN = 20
Decorated = Callable[..., Any]
Decide = Callable[[RunStatus], tuple[list[Order], str]]
"""From what the run is doing to the orders, and what to say once they are carried out."""


@dataclass(frozen=True)
class Where:
    """A run, where it is, and how long asking may take."""

    run_id: str
    endpoint: str
    backend: str
    token_file: str | None
    timeout: float


@dataclass(frozen=True)
class Whom:
    """Nodes, by one of three names."""

    node: str | None
    address: str | None
    slot: str | None

    def named(self, *others: str) -> tuple[Aspect, str]:
        """Return which name it is, and the name. Raises ParameterError if not just one is given.

        Args:
            others: options of the command that name nodes, too.
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
    token_file_option("an admin's token"),
    timeout_option("the whole"),
)
_WHOM = (
    click.option("--node", metavar="NAME", help="Host name, label or id, as `status` shows."),
    click.option("--address", metavar="ADDR", help="All nodes at an address."),
    click.option("--slot", metavar="SLOT", help="Whoever fills a slot (pod, Slurm task)."),
)
why_option = click.option("--why", default="", help="For everybody who is told.")


def of_a_run(function: Decorated) -> Decorated:
    """Give a command the argument RUN, and the options that say where it is, as `where`."""

    @functools.wraps(function)
    def inner(
        run_id: str,
        endpoint: str,
        backend: str,
        token_file: str | None,
        timeout: float,
        **rest: Any,
    ) -> object:
        return function(where=Where(run_id, endpoint, backend, token_file, timeout), **rest)

    return together(_WHERE, inner)


def of_nodes(function: Decorated) -> Decorated:
    """Give a command the options that name nodes, as `whom`."""

    @functools.wraps(function)
    def inner(node: str | None, address: str | None, slot: str | None, **rest: Any) -> object:
        return function(whom=Whom(node, address, slot), **rest)

    return together(_WHOM, inner)


def meant(run: RunStatus, aspect: Aspect, name: str) -> list[MemberStatus]:
    """Return the live nodes that a name means; the beginning of an id is enough, if one has it.

    Raises ParameterError if no live node is called so by --node: it says who is there.
    """
    members = [member for member in run.members if member.place != "finished"]
    found = [member for member in members if selects(aspect, name, _node(member))]
    if found or aspect is not Aspect.NODE:
        return found
    if len(name) >= SHORTEST_PREFIX:
        found = [member for member in members if member.id.startswith(name)]
    if len(found) == 1:
        return found
    there = ", ".join(member.label for member in members[:NAMES_SHOWN]) or "nobody"
    more = f" and {len(members) - NAMES_SHOWN} more" if len(members) > NAMES_SHOWN else ""
    raise ParameterError(f"--node {name}: run {run.run_id!r} has no such node; there are: "
                         f"{there}{more}")  # fmt: skip


def _node(member: MemberStatus) -> Node:
    return Node(member.id, member.address, pid=member.pid, slot=member.slot, host=member.host)


def by_whom() -> str:
    """Return who gives an order, for people; a server adds what it knows itself."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def carry_out(
    command: str,
    where: Where,
    decide: Decide,
) -> None:
    """Look at the run, give the orders, and say what came of them; exits if that fails.

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
