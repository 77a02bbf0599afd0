"""`rallypoint notify`: tell a run that a node will leave (rule P1)."""

import click

from rallypoint.cli import admin_commands
from rallypoint.cli.durations import LONG
from rallypoint.core.events import Notify
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.reports.status import RunStatus

EXAMPLES = """
\b
Examples:
    rallypoint notify digits --node node7 --why "the machine is taken away" --in 2m
    rallypoint notify digits --slot pod-3 --endpoint first:29400
"""


@click.command("notify", epilog=EXAMPLES)
@admin_commands.of_a_run
@admin_commands.of_nodes
@admin_commands.why_option
@click.option("--in", "seconds", type=LONG, help="How long the node still has (25s, 2m).")
def command(
    where: admin_commands.Where,
    whom: admin_commands.Whom,
    why: str,
    seconds: float | None,
) -> None:
    """Tell all nodes of RUN that one will leave: workers save, then it goes in good order."""

    def decide(run: RunStatus) -> tuple[list[Order], str]:
        aspect, name = whom.named()
        found = admin_commands.meant(run, aspect, name)
        if not found:
            slots = ", ".join(f"{m.label} ({m.address}, {m.slot})" for m in run.members[:20])
            raise ParameterError(
                f"--{aspect} {name}: run {where.run_id!r} has no such node; there are: "
                f"{slots or 'nobody'}"
            )
        by = admin_commands.by_whom()
        who = ", ".join(member.label for member in found)
        return [Notify(m.id, why, by, seconds) for m in found], f"notice was given: {who}"

    admin_commands.carry_out("notify", where, decide)
