"""The `rallypoint` command. Each subcommand is imported when it is used."""

import difflib
import os
from importlib import import_module
from typing import Any

import click

COMMANDS = {
    "run": "Start one node of a job, and continue when nodes are lost.",
    "serve": "Serve rendezvous and a key/value store to any number of runs.",
    "status": "Show what a run waits for, its nodes, and its past rounds.",
    "exclude": "Exclude a node from a run.",
    "admit": "Let an excluded node join again.",
    "notify": "Announce that a node will leave, so that the workers save first.",
    "close": "End a run for all its nodes.",
    "doctor": "Find out, step by step, why nodes do not meet.",
    "check": "Check whether this node is fit: disk, memory, clock, GPUs, network links.",
    "simulate": "Predict what settings cost a job: rounds, lost time, live nodes declared lost.",
    "certs": "Make a private CA and certificates for TLS.",
    "demo": "Run a demo on this machine: four nodes, one killed, one added.",
}
_SHARED_MODULES = {
    **dict.fromkeys(("exclude", "admit", "notify", "close"), "admin_commands"),
    **dict.fromkeys(("doctor", "check"), "doctor"),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand only when it is used, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module: `rallypoint.cli.NAME` unless several share one."""
        if cmd_name not in COMMANDS:
            return None
        shared = _SHARED_MODULES.get(cmd_name)
        module = import_module(f"rallypoint.cli.{shared or cmd_name}")
        command: click.Command = getattr(module, cmd_name if shared else "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; for an unknown name, fail with the nearest one."""
        near = [] if args[0] in COMMANDS else difflib.get_close_matches(args[0], COMMANDS, 1)
        if near and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. (Did you mean {near[0]!r}?)")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; an error on an unknown option names no hidden option."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.ctx is None:
                raise
            near = _near_options(error.option_name, error.ctx.command)
            raise click.NoSuchOption(error.option_name, error.message, near, error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _near_options(name: str, command: click.Command) -> list[str]:
    """Return the shown options most like a name: of the similar ones, those that begin as it."""
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    known = [opt for option in options for opt in option.opts if opt.startswith("--")]
    near = [*difflib.get_close_matches(name, known), *(o for o in known if o.startswith(name))]
    alike = {o: len(os.path.commonprefix([o, name])) for o in near}  # noqa: RUF071 - no paths
    return [o for o in alike if alike[o] == max(alike.values())]


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from rallypoint import version

    commit = version.revision()
    click.echo(f"rallypoint {version.__version__}{f' ({commit})' if commit else ''}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and the commit, and exit.",
)
def main() -> None:
    """Elastic rendezvous for distributed jobs: nodes agree on who takes part as they come and go.

    \b
    Examples:
        rallypoint run --standalone --nproc-per-node 2 train.py
        rallypoint run --nnodes 2:4 --endpoint first:29400 --run-id digits train.py
        rallypoint status --endpoint first:29400 --watch
        rallypoint doctor --endpoint first:29400
    """
