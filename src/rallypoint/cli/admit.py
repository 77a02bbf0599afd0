"""`rallypoint admit`: end an exclusion (rule H1)."""

import click

from rallypoint.cli import admin_commands
from rallypoint.core.annotations import Aspect
from rallypoint.core.events import Admit
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.coordinator import Order
from rallypoint.rendezvous.reports.status import RunStatus
from rallypoint.wallclock import now_text

EXAMPLES = """
\b
Examples:
    rallypoint admit digits --node node7
    rallypoint admit digits --all --endpoint first:29400
"""


@click.command("admit", epilog=EXAMPLES)
@admin_commands.of_a_run
@admin_commands.of_nodes
@click.option("--all", "everybody", is_flag=True, help="End all exclusions of the run.")
def command(
    where: admin_commands.Where,
    whom: admin_commands.Whom,
    everybody: bool,
) -> None:
    """Let nodes take part in RUN again that were excluded, by name as `status` shows it."""

    def decide(run: RunStatus) -> tuple[list[Order], str]:
        standing = [(Aspect(x.aspect), x.name) for x in run.exclusions]
        names = standing if everybody else [whom.named("--all")]
        if missing := [name for name in names if name not in standing]:
            there = ", ".join(f"{a} {n}" for a, n in standing) or "nobody"
            aspect, name = missing[0]
            raise ParameterError(
                f"--{aspect} {name}: it is not kept out of run {where.run_id!r}; "
                f"kept out are: {there}"
            )
        shown = ", ".join(f"{aspect} {name}" for aspect, name in names) or "nobody was kept out"
        by, at = admin_commands.by_whom(), now_text()
        return [Admit(a, n, by, at) for a, n in names], f"admitted to run {where.run_id!r}: {shown}"

    admin_commands.carry_out("admit", where, decide)
