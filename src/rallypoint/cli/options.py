"""The options of `rallypoint run`: torchrun's names, ours, and their variables.

Every option is also read from RALLYPOINT_NAME, and torchrun's from PET_NAME as there.
Underscores and dashes are the same. Durations come from the table in `rendezvous.defaults`.
"""

import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rallypoint.core.state import Newcomers
from rallypoint.rendezvous import defaults

LONGEST_SECONDS = 1e9  # 31 years; longer waits overflow in the operating system
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")


class Duration(click.ParamType[float]):
    """Seconds, or a number with a unit: 30, 90s, 5m, 6h, 1d."""

    name = "duration"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a duration; write 30, 90s, 5m, 6h or 1d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


class Seconds(click.ParamType[float]):
    """Seconds to wait: a finite number, at most 1e9.

    Args:
        min_open: whether 0 is refused.
    """

    name = "seconds"

    def __init__(self, min_open: bool = False) -> None:
        self._min_open = min_open

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = float("nan")
        if not 0 <= seconds <= LONGEST_SECONDS or (self._min_open and not seconds):
            least = "more than 0" if self._min_open else "0 or more"
            self.fail(f"{value!r}: give seconds, {least}, at most {LONGEST_SECONDS:g}", param, ctx)
        return seconds


LONG = Duration()


Decorated = Callable[..., Any]
SETTINGS = {
    "allow_interspersed_args": False,  # what follows the script is the script's
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "show_default": True,
}
TIMING_FLAGS = {"last_call": ("--last-call", "--last-call-timeout")}
_OURS_ALONE = ("port", "stop_grace", "admit_grace", "health_check_timeout", "hang_timeout")


class Setting(click.Option):
    """An option that also has environment variables; errors name the one that was used."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the option, with the variable if the value comes from one."""
        hint = super().get_error_hint(ctx)
        variable = "" if ctx is None else variable_of(ctx, self)
        return f"{hint} ({variable} in the environment)" if variable else hint


def variable_of(ctx: click.Context, parameter: click.Parameter) -> str:
    """Return the variable that gives a parameter its value, "" if none does."""
    if ctx.get_parameter_source(parameter.name or "") is not ParameterSource.ENVIRONMENT:
        return ""
    given = parameter.envvar
    variables = [given] if isinstance(given, str) else given or ()
    return next((name for name in variables if os.environ.get(name)), "")


def _torch(*names: str, **kwargs: Any) -> Callable[[Decorated], Decorated]:
    """Return an option that torchrun has too; the last long name is torchrun's."""
    return _option(*names, pet=True, **kwargs)


def _option(*names: str, pet: bool = False, **kwargs: Any) -> Callable[[Decorated], Decorated]:
    longs = [name[2:].replace("-", "_") for name in names if name.startswith("--")]
    variables = [f"RALLYPOINT_{name.upper()}" for name in longs]
    if pet:
        variables.append(f"PET_{longs[-1].upper()}")
    if kwargs.get("default") == "":
        kwargs["show_default"] = False
    return click.option(*names, longs[0], cls=Setting, envvar=variables, **kwargs)


def timing_rows() -> list[defaults.Default]:
    """Return the rows of the defaults table that are options of the rendezvous."""
    not_ours = (*_OURS_ALONE, *defaults.SERVER_LIMITS)
    rows = (row for row in defaults.DEFAULTS if row.flag.startswith("--"))  # not serve's
    return [row for row in rows if row.name not in not_ours]


def _timing(row: defaults.Default) -> Callable[[Decorated], Decorated]:
    flags = TIMING_FLAGS.get(row.name, (row.flag,))
    kind: Any = Seconds() if row.unit == "s" else int
    metavar = "SECONDS" if row.unit == "s" else "N"
    text = f"{row.meaning} [default: {f'{row.default:g} {row.unit}'.strip()}]"
    return click.option(
        *flags, row.name, cls=Setting, type=kind, metavar=metavar, envvar=row.env, help=text
    )


def _seconds(name: str) -> Callable[[Decorated], Decorated]:
    row = defaults.row(name)
    return _option(
        row.flag, type=Seconds(), default=row.default, metavar="SECONDS", help=row.meaning
    )


_TLS: tuple[Callable[[Decorated], Decorated], ...] = (
    _option("--tls-ca", default="", metavar="FILE",
            help="CA certificates to trust; if set, clients use TLS."),
    _option("--tls-cert", default="", metavar="FILE",
            help="Own certificate; if set, a server uses TLS, and clients present it if asked."),
    _option("--tls-key", default="", metavar="FILE", help="Private key for --tls-cert."),
    _option("--tls-verify-client", is_flag=True,
            help="As a server, accept only clients with a certificate signed by --tls-ca."),
)  # fmt: skip


def together(options: Sequence[Callable[[Decorated], Decorated]], function: Any) -> Decorated:
    """Add options to a command; its help lists them in this order."""
    made: Decorated = functools.reduce(lambda f, option: option(f), reversed(options), function)
    return made


def tls_options(function: Decorated) -> Decorated:
    """Add the TLS options to a command."""
    return together(_TLS, function)


_OPTIONS: tuple[Callable[[Decorated], Decorated], ...] = (
    _torch("--nnodes", default="1", metavar="MIN[:MAX]", help="Number of nodes in a round."),
    _torch(
        "--nproc-per-node",
        default="1",
        metavar="N|auto|cpu|gpu",
        help="Workers on this node; auto: one per GPU, or per CPU if there is no GPU.",
    ),
    _torch("--node-rank", type=int, help="Rank that this node requests."),
    _torch(
        "--backend",
        "--rdzv-backend",
        default="core",
        help="core (a server), file, static, etcd, redis, or a plug-in.",
    ),
    _torch(
        "--endpoint",
        "--rdzv-endpoint",
        metavar="HOST:PORT[,...]",
        help="Where the nodes meet: one server, or several with one state (file: a path).",
    ),
    _torch("--run-id", "--rdzv-id", help="Name of the job, the same on all nodes."),
    _torch(
        "--rdzv-conf", default="", metavar="K=V,...", help="Further rendezvous settings."
    ),
    _torch(
        "--max-restarts",
        type=int,
        help="Failed rounds allowed before the run fails. [default: 0 for one node, else 3]",
    ),
    _torch(
        "--monitor-interval",
        type=Seconds(),
        default=0.1,
        metavar="SECONDS",
        help="How long to collect new nodes before admitting them together.",
    ),
    _torch("--role", default="default", help="Role of the workers, as their environment says."),
    _torch(
        "--log-dir",
        type=click.Path(file_okay=False, path_type=Path),
        help="Directory for the workers' output: RUN/round_N/RANK/stdout.log and stderr.log.",
    ),
    _torch(
        "-r", "--redirects", default="0", metavar="0..3|RANK:0..3,...",
        help="Streams to write to files only: 1 stdout, 2 stderr, 3 both.",
    ),
    _torch(
        "-t", "--tee", default="0", metavar="0..3|RANK:0..3,...",
        help="Streams to write to files and, with a prefix, to the console.",
    ),
    _torch("--local-addr", metavar="ADDR", help="Address by which other nodes reach this one."),
    _torch("-m", "--module", is_flag=True, help="SCRIPT is a module, as in python -m."),
    _torch("--no-python", is_flag=True, help="SCRIPT is a program, not a Python file."),
    _torch("--standalone", is_flag=True, help="Run on this node alone."),
    _option(
        "--token-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File with the shared token (otherwise RALLYPOINT_TOKEN).",
    ),
    _option("--insecure", is_flag=True, help="Serve other machines without a token."),
    *_TLS,
    _option("--slot", help="Slot of this node (pod, task); a new node in it replaces the old one."),
    _option(
        "--environment",
        default="auto",
        metavar="auto|none|NAME",
        help="Scheduler whose variables set the options not given: slurm, kubernetes, mpi, ...",
    ),
    _option("--target-nodes", type=int, help="Number of nodes at which a round starts at once."),
    _option("--new-incarnation", is_flag=True, help="Start an ended run again."),
    _option(
        "--admit",
        type=click.Choice([mode.value for mode in Newcomers]),
        default=Newcomers.NOW.value,
        help="Admit new nodes now, at a checkpoint (the workers save first), or never.",
    ),
    _seconds("admit_grace"),
    _option(
        "--admit-signal",
        default="",
        metavar="NAME",
        help="Signal sent to the workers when a change of the round is pending, such as USR1.",
    ),
    _seconds("stop_grace"),
    _option(
        "--forward-signals",
        default="",
        metavar="NAME,...",
        help="Signals to forward to the workers, such as USR1,USR2.",
    ),
    _option(
        "--preempt-signal",
        default="",
        metavar="NAME",
        help="Signal that announces this node's preemption: all nodes are notified and can save.",
    ),
    _option(
        "--health-check",
        default="",
        metavar="CMD",
        help="Shell command to run before each join; if it fails, the node does not join.",
    ),
    _seconds("health_check_timeout"),
    _seconds("hang_timeout"),
    _option(
        "--health-port",
        metavar="[HOST:]PORT",
        help="Answer GET /live and /ready on this port; HOST defaults to loopback (Kubernetes: "
        "0.0.0.0:PORT).",
    ),
    _option(
        "--events",
        type=click.Path(dir_okay=False),
        default="",
        metavar="FILE",
        help="Append events to this file, as JSON lines.",
    ),
    _option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="Format of console lines, including the workers'.",
    ),
    _option(
        "--log-max-bytes",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Size at which a file in --log-dir is rotated; 0: never.",
    ),
    _option(
        "--log-keep",
        type=click.IntRange(min=0),
        default=3,
        metavar="N",
        help="Number of rotated files to keep per stream.",
    ),
    *(_timing(row) for row in timing_rows()),
    click.option("--explain", is_flag=True, help="Show each setting and its origin, and exit."),
)  # fmt: skip


def all_options(function: Decorated) -> Decorated:
    """Add all options of `run` to a command, in the order of this list."""
    return together(_OPTIONS, function)


# -- options of the commands that read or change an existing run ----------------------------

backend_option = click.option(
    "--backend",
    "--rdzv-backend",
    "backend",
    default="core",
    show_default=True,
    envvar=["RALLYPOINT_BACKEND", "PET_RDZV_BACKEND"],
    help="core (a server), file, etcd or redis.",
)


def endpoint_option(
    help_text: str = "Server address (file backend: path of the shared file).", **kwargs: Any
) -> Callable[[Decorated], Decorated]:
    """Return `--endpoint`; its default is a server on this machine."""
    how = kwargs or {"default": f"127.0.0.1:{defaults.value('port')}", "show_default": True}
    return click.option(
        "--endpoint",
        "--rdzv-endpoint",
        "endpoint",
        envvar=["RALLYPOINT_ENDPOINT", "PET_RDZV_ENDPOINT"],
        metavar="HOST:PORT[,...]",
        help=help_text,
        **how,
    )


def run_id_option(help_text: str) -> Callable[[Decorated], Decorated]:
    """Return `--run-id`, "" if it is not given."""
    return click.option(
        "--run-id",
        "--rdzv-id",
        "run_id",
        default="",
        envvar=["RALLYPOINT_RUN_ID", "PET_RDZV_ID"],
        help=help_text,
    )


def token_file_option(holds: str = "the shared token") -> Callable[[Decorated], Decorated]:
    """Return `--token-file`, for `net.token_sources.read_token`."""
    return click.option("--token-file", help=f"File with {holds} (otherwise RALLYPOINT_TOKEN).")


def timeout_option(limits: str) -> Callable[[Decorated], Decorated]:
    """Return `--timeout` in seconds; `limits` names what it limits, for the help text."""
    return click.option(
        "--timeout",
        type=Seconds(min_open=True),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help=f"Time limit for {limits}.",
    )
