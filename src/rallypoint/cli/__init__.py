"""The `rallypoint` command: one file a subcommand, loaded when it is asked for."""

import difflib
from importlib import import_module

import click

COMMANDS = {
    "run": "Start a node of a job: meet the others, run the workers, go on without the lost.",
    "serve": "Serve rendezvous and a key/value store to any number of runs.",
    "status": "Show what a run waits for, who is in it, and what it has been through.",
    "exclude": "Keep a node out of a run.",
    "admit": "Let a node take part again that was kept out.",
    "notify": "Tell a run that a node will leave, so that it can save before.",
    "close": "End a run for all its nodes.",
    "doctor": "Find out, step by step, why nodes do not meet.",
    "check": "Find out whether this node is fit: disk, memory, clock, GPUs, links.",
    "simulate": "Tell what settings will cost a job: rounds, time lost, false losses.",
    "certs": "Make a small private authority and certificates for TLS.",
    "demo": "Show it all on this machine: four nodes, one killed, one added.",
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported only when used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import `rallypoint.cli.NAME` and return its `command`."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"rallypoint.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is asked for; one that is none is told with the nearest."""
        near = [] if args[0] in COMMANDS else difflib.get_close_matches(args[0], COMMANDS, 1)
        if near and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. (Did you mean {near[0]!r}?)")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from rallypoint import __version__, version

    commit = version.revision()
    click.echo(f"rallypoint {__version__}{f' ({commit})' if commit else ''}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and the commit, and end.",
)
def main() -> None:
    """Elastic rendezvous for distributed jobs: nodes that come, go and die stay agreed.

    \b
    Examples:
        rallypoint run --standalone --nproc-per-node 2 train.py
        rallypoint run --nnodes 2:4 --endpoint first:29400 --run-id digits train.py
        rallypoint status --endpoint first:29400 --watch
        rallypoint doctor --endpoint first:29400
    """
