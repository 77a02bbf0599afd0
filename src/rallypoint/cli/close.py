"""`rallypoint close`: end a run for everyone (rule C1)."""

import click

from rallypoint.cli import orders
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.core.events import Close
from rallypoint.rendezvous.status import RunStatus
from rallypoint.wallclock import now_text

EXAMPLES = """
\b
Examples:
    rallypoint close digits --why "wrong data" --endpoint first:29400
"""


@click.command("close", epilog=EXAMPLES)
@orders.of_a_run
@orders.why_option
def command(where: orders.Where, why: str) -> None:
    """End RUN for all its nodes; whoever comes later is refused with who, when and why."""

    def decide(run: RunStatus) -> tuple[list[Order], str]:
        if run.phase == "closed":
            raise ParameterError(run.reason)
        close = Close(orders.by_whom(), why, now_text(), run.incarnation)  # E1: and no later one
        return [close], f"run {where.run_id!r} is closed"

    orders.carry_out("close", where, decide)
