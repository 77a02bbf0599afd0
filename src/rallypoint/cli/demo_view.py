"""What the demo shows: one live picture on a terminal, one line for each event elsewhere."""

import time
from types import TracebackType
from typing import Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rallypoint.cli.demo_story import Check, Story

NEWS_SHOWN = 6
_STYLES = {"killed": "bold red", "finished": "green", "starting": "dim"}


class View:
    """Shows a story while it happens.

    Args:
        story: the facts, which others change.
        console: where a terminal is drawn on; lines are printed if it is none.
    """

    def __init__(self, story: Story, console: Console) -> None:
        self._story = story
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
        """Show that something has happened, in the given lines."""
        passed = time.monotonic() - self._begun
        stamped = [f"{passed:5.1f} s  {line}" for line in lines]
        if self._live is None:
            for line in stamped:
                click.echo(line)
            return
        self._news = [*self._news, *stamped][-NEWS_SHOWN:]
        self._live.update(picture(self._story, self._news), refresh=True)


def picture(story: Story, news: list[str]) -> Group:
    """Return the nodes, the rounds, the training and the last news, as of now."""
    training = Text(_training(story), style="bold")
    return Group(_nodes(story), _rounds(story), training, Text("\n".join(news), style="dim"))


def _nodes(story: Story) -> Table:
    table = Table("node", "pid", "rank", "place", title="who is in", title_justify="left")
    for node in story.nodes.values():
        rank = "" if node.rank is None else str(node.rank)
        style = _STYLES.get(node.place, "cyan" if node.rank is not None else "yellow")
        table.add_row(str(node.number), str(node.pid), rank, Text(node.place, style=style))
    return table


def _rounds(story: Story) -> Table:
    table = Table("round", "nodes", "ranks", "opened", "sealed", title="rounds")
    table.title_justify = "left"
    for number, one in sorted(story.rounds.items()):
        ranks = " ".join(f"{rank}:n{node}" for rank, node in sorted(one.seated.items()))
        size = str(one.size) if one.sealed_at is not None else "..."
        table.add_row(str(number), size, ranks, one.opened_because, one.sealed_because)
    return table


def _training(story: Story) -> str:
    if story.accuracy is None:
        return "training has not begun"
    return f"training: epoch {story.epoch}, accuracy {story.accuracy:.1f}%"


def summary(story: Story, measured: list[tuple[str, str, str]], checks: list[Check]) -> list[str]:
    """Return the lines that end a demo: rounds, figures, and what did not come as expected."""
    lines = ["", "rounds"]
    for number, one in sorted(story.rounds.items()):
        why = f"{one.opened_because}; {one.sealed_because}".removeprefix("; ")
        lines.append(f"  {number}  {one.size} nodes  {why}")
    if measured:
        lines += ["", "figures"]
        lines += [f"  {what:13s} {took:>9s}  {meaning}" for what, took, meaning in measured]
    if story.final_accuracy is not None:
        lines.append(f"  {'accuracy':13s} {story.final_accuracy:8.1f}%  on 360 held-out digits")
    if story.complaints:
        lines += ["", "on stderr", *(f"  {line}" for line in story.complaints)]
    failed = [check for check in checks if not check.holds]
    lines.append("")
    if not failed:
        lines.append(f"all {len(checks)} expectations hold")
    lines += [f"expected {check.expected}; seen: {check.seen}" for check in failed]
    return lines
