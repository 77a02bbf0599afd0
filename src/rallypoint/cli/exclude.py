"""`rallypoint exclude`: keep a node out of a run (rule H1)."""

import click

from rallypoint.cli import admin_commands
from rallypoint.cli.durations import LONG
from rallypoint.core.events import Exclude
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.reports.status import RunStatus
from rallypoint.wallclock import duration, now_text

EXAMPLES = """
\b
Examples:
    rallypoint exclude digits --node node7 --why "memory errors"
    rallypoint exclude digits --slot pod-3 --for 2h --why "its disk is full"
    rallypoint exclude digits --address 10.0.0.7 --endpoint first:29400
"""


@click.command("exclude", epilog=EXAMPLES)
@admin_commands.of_a_run
@admin_commands.of_nodes
@admin_commands.why_option
@click.option("--for", "seconds", type=LONG, help="For how long (90s, 5m, 6h) [until admitted].")
def command(
    where: admin_commands.Where,
    whom: admin_commands.Whom,
    why: str,
    seconds: float | None,
) -> None:
    """Keep a node out of RUN: it loses its seat, and is refused with who, why and how long.

    By host name, address or slot it is kept out whatever process comes; by label or id, only
    that process, and whoever comes for its slot.
    """

    def decide(run: RunStatus) -> tuple[list[Order], str]:
        aspect, name = whom.named()
        found = admin_commands.meant(run, aspect, name)
        name = found[0].id if len(found) == 1 and found[0].id.startswith(name) else name
        order = Exclude(aspect, name, why, admin_commands.by_whom(), seconds, now_text())
        long = "until it is admitted" if seconds is None else f"for {duration(seconds)}"
        who = ", ".join(member.label for member in found) or f"{aspect} {name} (nobody yet)"
        return [order], f"kept out of run {where.run_id!r} {long}: {who}"

    admin_commands.carry_out("exclude", where, decide)
