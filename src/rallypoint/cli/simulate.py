"""`rallypoint simulate`: what settings will cost a job, before it runs."""

import statistics
from collections.abc import Callable

import click
import msgspec
from rich.console import Console
from rich.table import Table

from rallypoint.cli.options import LONG, Decorated
from rallypoint.core.state import Settings
from rallypoint.rendezvous import defaults
from rallypoint.rendezvous.settings import ample_rejoin
from rallypoint.testing.simulator.forecast import Forecast, Job, Weather


def _default(name: str) -> float:
    return defaults.value(name)


def _setting(name: str) -> Callable[[Decorated], Decorated]:
    row = defaults.row(name)
    text = f"{row.meaning} [default: {row.default:g} s]"
    flag = f"--{name.replace('_', '-')}"
    return click.option(flag, name, type=LONG, default=lambda: _default(name), help=text)


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(2, 10_000),
    default=64,
    show_default=True,
    help="Nodes of the job.",
)
@click.option(
    "--min-nodes", type=click.IntRange(1), help="Fewest nodes of a round. [default: half]"
)
@click.option(
    "--hours", type=click.FloatRange(0, min_open=True), default=24.0, show_default=True,
    help="Simulated time.",
)  # fmt: skip
@click.option(
    "--mtbf",
    type=LONG,
    default="6h",
    show_default=True,
    help="Mean time between two failures of nodes, in the whole job.",
)
@click.option(
    "--silent",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    help="Share of failures without a closed connection (power, network).",
)
@click.option(
    "--repair",
    type=LONG,
    default="5m",
    show_default=True,
    help="Time until a failed node returns.",
)
@click.option(
    "--stalls",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Stalls per hour; a stalled node is alive but does nothing.",
)
@click.option("--stall", type=LONG, default="3s", show_default=True, help="Mean stall.")
@click.option(
    "--stop",
    "stop_seconds",
    type=LONG,
    default="5s",
    show_default=True,
    help="Longest worker shutdown.",
)
@_setting("last_call")
@_setting("lease")
@_setting("disconnect_grace")
@_setting("replacement_wait")
@click.option(
    "--rejoin-timeout", type=LONG, help="Time to join the next round. [default: what suits --stop]"
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random numbers.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(
    nodes: int, min_nodes: int | None, hours: float, mtbf: float, silent: float, repair: float,
    stalls: float, stall: float, stop_seconds: float, last_call: float, lease: float,
    disconnect_grace: float, replacement_wait: float, rejoin_timeout: float | None, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Tell what these settings will cost a job: rounds, time lost, false losses, detection.

    \b
    The real rules, server, wire format and agents run on simulated clocks and a simulated
    network; the same seed gives the same results. Example:
        rallypoint simulate --nodes 512 --mtbf 6h --hours 24 --last-call 30
    """
    settings = Settings(
        min_nodes=min(nodes, min_nodes or max(1, nodes // 2)),
        max_nodes=nodes,
        last_call_seconds=last_call,
        rejoin_timeout_seconds=rejoin_timeout or ample_rejoin(stop_seconds),
        replacement_wait_seconds=replacement_wait,
        lease_seconds=lease,
        disconnect_grace_seconds=min(disconnect_grace, lease),
    )
    weather = Weather(hours, mtbf, silent, repair, stalls, stall)
    forecast = Job(nodes, settings, weather, stop_seconds, seed).run()
    if as_json:
        click.echo(msgspec.json.encode(forecast).decode())
    else:
        Console().print(table(forecast, nodes, weather))


def table(forecast: Forecast, nodes: int, weather: Weather) -> Table:
    """Return the figures as a table."""
    made = Table(title=f"{nodes} nodes, {weather.hours:g} hours", title_justify="left")
    made.add_column("")
    made.add_column("value", justify="right")
    made.add_column("what it means")
    share = forecast.lost_seconds / (weather.hours * 3600)
    rows = (
        ("failures", f"{forecast.failures}", f"{forecast.silent} of them silent"),
        ("rounds", f"{forecast.rounds}", "each one restarts the workers"),
        ("time to detect", spread(forecast.detect), "median (worst), from failure to known"),
        ("time without a round", spread(forecast.pauses), "median (worst) of each pause"),
        ("time lost", seconds(forecast.lost_seconds), f"{share:.3%} of the time"),
        ("false losses", f"{forecast.false_losses}", f"of {forecast.stalls} stalls of live nodes"),
        ("nodes missing", f"{forecast.missing:.2f}", "on average"),
    )
    for row in rows:
        made.add_row(*row)
    return made


def spread(values: list[float]) -> str:
    """Return the median of some durations, and the worst."""
    if not values:
        return "-"
    return f"{seconds(statistics.median(values))} ({seconds(max(values))})"


def seconds(value: float) -> str:
    """Return a duration for people."""
    return f"{value:.2f} s" if value < 600 else f"{value / 60:.1f} min"
