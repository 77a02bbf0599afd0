"""`rallypoint notify`: tell a run that a node will leave (rule P1)."""

import click

from rallypoint.cli import orders
from rallypoint.cli.durations import LONG
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.core.events import Notify
from rallypoint.rendezvous.status import RunStatus

EXAMPLES = """
\b
Examples:
    rallypoint notify digits --node node7 --why "the machine is taken away" --in 2m
    rallypoint notify digits --slot pod-3 --endpoint first:29400
"""


@click.command("notify", epilog=EXAMPLES)
@orders.of_a_run
@orders.of_nodes
@orders.why_option
@click.option("--in", "seconds", type=LONG, help="How long the node still has (25s, 2m).")
def command(
    where: orders.Where,
    whom: orders.Whom,
    why: str,
    seconds: float | None,
) -> None:
    """Tell all nodes of RUN that one will leave: workers save, then it goes in good order."""

    def decide(run: RunStatus) -> tuple[list[Order], str]:
        aspect, name = whom.named()
        found = orders.meant(run, aspect, name)
        if not found:
            slots = ", ".join(f"{m.label} ({m.address}, {m.slot})" for m in run.members[:20])
            raise ParameterError(
                f"--{aspect} {name}: run {where.run_id!r} has no such node; there are: "
                f"{slots or 'nobody'}"
            )
        by = orders.by_whom()
        who = ", ".join(member.label for member in found)
        return [Notify(m.id, why, by, seconds) for m in found], f"notice was given: {who}"

    orders.carry_out("notify", where, decide)
