"""`rallypoint demo`: an elastic training job on this machine, with its timings.

A server and four nodes train on the digits. The demo kills the node with rank 0; the others go on
as a round of three. Then a fifth node joins, and all finish. The demo only reads output (see
`demo_facts`), and every wait has a limit. Exit code 0 means that all expectations hold.
"""

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rallypoint.agent.policy.exit_codes import EXIT_DONE, EXIT_FAILED, EXIT_SIGNAL_BASE
from rallypoint.agent.reporting.console import complain
from rallypoint.cli.demo_facts import Check, DemoFacts, checks, figures
from rallypoint.cli.demo_processes import DemoInterrupted, DemoProcesses
from rallypoint.deadline import Deadline
from rallypoint.errors import RallypointError
from rallypoint.rendezvous import defaults

SCRIPT = "train_digits.py"
NODES = 4
NNODES = f"2:{NODES}"  # four nodes seal the first round at once
SIZES = [NODES, NODES - 1, NODES]
EPOCHS = 24
STEP_DELAY_SECONDS = 0.03  # slow enough to watch an epoch of 12 steps
EPOCHS_BEFORE_KILL = 5
EPOCHS_BEFORE_NEWCOMER = 2
SERVER_SECONDS = 30.0
WAIT_SECONDS = 60.0  # for each step; each takes under 10 s on two cores
NEWS_SHOWN = 6
_STYLES = {"killed": "bold red", "finished": "green", "starting": "dim"}


class DemoFailed(RallypointError):
    """The demo failed: a step did not come in time, or a process ended early."""


class View:
    """Shows the progress of the demo.

    Args:
        facts: the facts; they change meanwhile.
        console: a terminal to draw on; otherwise the view prints lines.
    """

    def __init__(self, facts: DemoFacts, console: Console) -> None:
        self._facts = facts
        self._begun = time.monotonic()
        self._news: list[str] = []
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, lines: list[str]) -> None:
        """Show new lines, with the time since the start."""
        passed = time.monotonic() - self._begun
        stamped = [f"{passed:5.1f} s  {line}" for line in lines]
        if self._live is None:
            for line in stamped:
                click.echo(line)
            return
        self._news = [*self._news, *stamped][-NEWS_SHOWN:]
        self._live.update(picture(self._facts, self._news), refresh=True)


def picture(facts: DemoFacts, news: list[str]) -> Group:
    """Return nodes, rounds, training and the latest lines."""
    training = Text(_training(facts), style="bold")
    return Group(_nodes(facts), _rounds(facts), training, Text("\n".join(news), style="dim"))


def _nodes(facts: DemoFacts) -> Table:
    table = Table("node", "pid", "rank", "role", title="nodes", title_justify="left")
    for node in facts.nodes.values():
        rank = "" if node.rank is None else str(node.rank)
        style = _STYLES.get(node.place, "cyan" if node.rank is not None else "yellow")
        table.add_row(str(node.number), str(node.pid), rank, Text(node.place, style=style))
    return table


def _rounds(facts: DemoFacts) -> Table:
    table = Table("round", "nodes", "ranks", "opened", "sealed", title="rounds")
    table.title_justify = "left"
    for number, one in sorted(facts.rounds.items()):
        ranks = " ".join(f"{rank}:n{node}" for rank, node in sorted(one.seated.items()))
        size = str(one.size) if one.sealed_at is not None else "..."
        table.add_row(str(number), size, ranks, one.opened_because, one.sealed_because)
    return table


def _training(facts: DemoFacts) -> str:
    if facts.accuracy is None:
        return "training has not begun"
    return f"training: epoch {facts.epoch}, accuracy {facts.accuracy:.1f}%"


def summary(
    facts: DemoFacts, measured: list[tuple[str, str, str]], checks: list[Check]
) -> list[str]:
    """Return the final lines: rounds, timings, and failed expectations."""
    lines = ["", "rounds"]
    for number, one in sorted(facts.rounds.items()):
        why = f"{one.opened_because}; {one.sealed_because}".removeprefix("; ")
        lines.append(f"  {number}  {one.size} nodes  {why}")
    if measured:
        lines += ["", "figures"]
        lines += [f"  {what:15s} {took:>9s}  {meaning}" for what, took, meaning in measured]
    if facts.final_accuracy is not None:
        lines.append(f"  {'accuracy':15s} {facts.final_accuracy:8.1f}%  on 360 held-out digits")
    if facts.complaints:
        lines += ["", "on stderr", *(f"  {line}" for line in facts.complaints)]
    failed = [check for check in checks if not check.holds]
    lines.append("")
    if not failed:
        lines.append(f"all {len(checks)} expectations hold")
    lines += [f"expected {check.expected}; seen: {check.seen}" for check in failed]
    return lines


@click.command("demo")
def command() -> None:
    """Run a demo on this machine: four nodes train, one is killed, another one joins."""
    facts = DemoFacts()
    try:
        _need_examples()
        _show(facts)
        code = EXIT_DONE
    except DemoInterrupted as error:
        complain(f"demo: {error}; everything was ended")
        raise SystemExit(EXIT_SIGNAL_BASE + error.number) from None
    except RallypointError as error:
        complain(f"demo: {error}")
        code = EXIT_FAILED
    if facts.rounds:
        found = checks(facts, SIZES)
        for line in summary(facts, figures(facts, defaults.value("disconnect_grace")), found):
            click.echo(line)
        if not all(check.holds for check in found):
            code = EXIT_FAILED
    raise SystemExit(code)


def find_script() -> Path:
    """Return the digits example, from the wheel or the checkout. Raises DemoFailed."""
    package = Path(__file__).resolve().parent.parent
    places = [package / "examples" / SCRIPT, package.parent.parent / "examples" / SCRIPT]
    for place in places:
        if place.is_file():
            return place
    raise DemoFailed(f"{SCRIPT} is in none of its places: {', '.join(map(str, places))}")


def _need_examples() -> None:
    missing = [name for name in ("numpy", "sklearn") if find_spec(name) is None]
    if missing:
        raise DemoFailed(
            f"the demo trains on real data and needs {' and '.join(missing)}: "
            "pip install 'rallypoint[examples]'"
        )


def _show(facts: DemoFacts) -> None:
    script = find_script()
    with DemoProcesses().open() as processes, View(facts, Console()) as view:
        endpoint = processes.start_server(SERVER_SECONDS)
        view.tell([f"the server listens on {endpoint}"])
        arguments = [str(script), f"--epochs={EPOCHS}", f"--step-delay={STEP_DELAY_SECONDS}"]
        arguments.append(f"--checkpoint={processes.folder / 'checkpoint'}")
        for number in range(1, NODES + 1):
            _start(processes, facts, view, number, arguments)

        def until(what: str, holds: Callable[[], bool]) -> None:
            _until(processes, facts, view, what, holds)

        first, second = facts.round(1), facts.round(2)
        until(
            f"{EPOCHS_BEFORE_KILL} epochs in round 1",
            lambda: first.epochs >= EPOCHS_BEFORE_KILL and len(first.seated) == first.size,
        )
        _kill(processes, facts, view, first.seated[0])
        until("a new round", lambda: second.sealed_at is not None)
        until(
            f"{EPOCHS_BEFORE_NEWCOMER} epochs in round 2",
            lambda: second.epochs >= EPOCHS_BEFORE_NEWCOMER,
        )
        _start(processes, facts, view, NODES + 1, arguments)
        until("round 3", lambda: facts.round(3).sealed_at is not None)
        until("the end of all nodes", lambda: not facts.running())


def _start(
    processes: DemoProcesses, facts: DemoFacts, view: View, number: int, arguments: list[str]
) -> None:
    view.tell([facts.started(number, processes.start_node(number, NNODES, arguments))])


def _kill(processes: DemoProcesses, facts: DemoFacts, view: View, number: int) -> None:
    said = facts.killed(number, time.monotonic())
    processes.kill(number)
    view.tell([said])


def _until(
    processes: DemoProcesses, facts: DemoFacts, view: View, what: str, holds: Callable[[], bool]
) -> None:
    """Process events until a condition holds. Raises DemoFailed at the limit."""
    deadline = Deadline(WAIT_SECONDS)
    while not holds():
        event = processes.next_event(deadline)
        if event is None:
            raise DemoFailed(f"{what} did not come within {WAIT_SECONDS:g} s")
        view.tell(facts.take(event))
        if facts.mishap:
            raise DemoFailed(f"while waiting for {what}: {facts.mishap}")
        if not facts.running() and not holds():
            raise DemoFailed(f"all nodes have ended before {what} came")
