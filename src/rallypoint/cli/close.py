"""`rallypoint close`: end a run for everyone (rule C1)."""

import click

from rallypoint.cli import admin_commands
from rallypoint.core.events import Close
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.reports.status import RunStatus
from rallypoint.wallclock import now_text

EXAMPLES = """
\b
Examples:
    rallypoint close digits --why "wrong data" --endpoint first:29400
"""


@click.command("close", epilog=EXAMPLES)
@admin_commands.of_a_run
@admin_commands.why_option
def command(where: admin_commands.Where, why: str) -> None:
    """End RUN for all its nodes; whoever comes later is refused with who, when and why."""

    def decide(run: RunStatus) -> tuple[list[Order], str]:
        if run.phase == "closed":
            raise ParameterError(run.reason)
        close = Close(
            admin_commands.by_whom(), why, now_text(), run.incarnation
        )  # E1: and no later one
        return [close], f"run {where.run_id!r} is closed"

    admin_commands.carry_out("close", where, decide)
