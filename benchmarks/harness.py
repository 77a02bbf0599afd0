"""What all benchmarks share: contenders in turn, a table, JSON, a chart.

A benchmark is a list of cases; a case has contenders, functions that do the work once and
return their measurements by name (seconds unless the name says otherwise). They run in turn,
A B A B ..., in one run, after a warm-up that is not counted, so that whatever else the
machine does affects all of them. The ratio is a contender's median divided by the first one's.
"""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from environments import ROOT, Missing, enter
from processes import Broken, TookTooLong, say

RESULTS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "figures"
Measure = Callable[[], dict[str, float]]


@dataclass
class Row:
    """Measurements of one contender in one case."""

    case: str
    contender: str
    measure: str
    samples: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float | None:
        """The middle sample, None when there is none."""
        return statistics.median(self.samples) if self.samples else None


@dataclass
class Table:
    """Rows that belong together; the first contender of a case is what ratios compare with."""

    title: str
    unit: str
    rows: list[Row] = field(default_factory=list)
    scale: float = 1.0
    compared: bool = True

    def add(self, case: str, contender: str, measure: str, samples: Sequence[float]) -> Row:
        """Add a row of samples in the table's unit divided by `scale`."""
        row = Row(case, contender, measure, [s * self.scale for s in samples])
        self.rows.append(row)
        return row

    def ratio(self, row: Row) -> float | None:
        """Return how many times the first contender's median a row's median is."""
        first = next((r for r in self.rows if (r.case, r.measure) == (row.case, row.measure)), None)
        if (
            not self.compared
            or first is None
            or first is row
            or not first.median
            or row.median is None
        ):
            return None
        return row.median / first.median


class Report:
    """The result of one benchmark.

    Args:
        name: file name of its JSON and its figure.
        title: what is measured.
        command: how to run it again.
    """

    def __init__(self, name: str, title: str, command: str) -> None:
        self.name, self.title, self.command = name, title, command
        self.tables: list[Table] = []
        self.missing: dict[str, str] = {}
        self.notes: list[str] = []

    def table(
        self, title: str, unit: str = "ms", scale: float = 1000.0, compared: bool = True
    ) -> Table:
        """Begin a table; samples are multiplied by `scale` to be in `unit`."""
        table = Table(title, unit, scale=scale, compared=compared)
        self.tables.append(table)
        return table

    def lacks(self, contender: str, why: str) -> None:
        """Record and report a contender that is not available or does not finish."""
        self.missing[contender] = why
        say(f"!!! WITHOUT {contender}: {why}")

    def finish(self, chart: Callable[[Any, "Report"], None] | None = None) -> None:
        """Print the tables, write the JSON, draw the chart."""
        _print(self)
        self.save()
        if chart is not None:
            draw(self, chart)

    def save(self) -> None:
        """Write the JSON; also called between cases, so that an interrupted run is not lost."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(as_json(self), indent=1) + "\n")
        say(f"written: {path.relative_to(ROOT)}")


def run_in_turn(
    contenders: dict[str, Measure],
    repeats: int,
    report: Report,
    warm_up: int = 1,
    drop: bool = True,
) -> dict[str, dict[str, list[float]]]:
    """Run contenders A B A B ...; return samples by contender and measure.

    A contender that fails or takes too long is reported; with `drop`, it is left out from then on.
    """
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}
    live = dict(contenders)
    for turn in range(warm_up + repeats):
        for name, measure in list(live.items()):
            try:
                found = measure()
            except (TookTooLong, Broken, Missing) as error:
                report.lacks(name if drop else f"{name}, trial {turn + 1}", str(error))
                if drop:
                    del live[name]
                continue
            if turn >= warm_up:
                for key, value in found.items():
                    samples[name].setdefault(key, []).append(value)
    return samples


def machine() -> dict[str, Any]:
    """Return the facts about the machine."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": [round(x, 2) for x in os.getloadavg()],
    }


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as JSON values."""
    return {
        "name": report.name,
        "title": report.title,
        "command": report.command,
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "missing": report.missing,
        "notes": report.notes,
        "tables": [
            {
                "title": table.title,
                "unit": table.unit,
                "rows": [
                    {
                        "case": row.case,
                        "contender": row.contender,
                        "measure": row.measure,
                        "median": row.median,
                        "min": min(row.samples, default=None),
                        "max": max(row.samples, default=None),
                        "ratio": table.ratio(row),
                        "note": row.note,
                        "samples": row.samples,
                    }
                    for row in table.rows
                ],
            }
            for table in report.tables
        ],
    }


def shown(value: float | None) -> str:
    """Return a figure with three significant digits."""
    if value is None:
        return "-"
    if value != 0 and abs(value) < 100:
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
    return f"{value:,.0f}"


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(width=None if os.isatty(1) else 130)
    facts = machine()
    console.print(
        f"\n[bold]{report.title}[/bold]  ({facts['system']} {facts['machine']}, "
        f"{facts['cores']} cores, load {facts['load'][0]})"
    )
    for table in report.tables:
        grid = RichTable(title=f"{table.title} [{table.unit}]", title_justify="left")
        for column in ("case", "contender", "measure"):
            grid.add_column(column)
        for column in ("median", "min", "max", "ratio", "n"):
            grid.add_column(column, justify="right")
        last = ""
        for row in table.rows:
            if last and row.case != last:
                grid.add_section()
            last = row.case
            low, high = min(row.samples, default=None), max(row.samples, default=None)
            ratio = table.ratio(row)
            grid.add_row(
                row.case,
                row.contender,
                row.measure,
                row.note or shown(row.median),
                shown(low),
                shown(high),
                f"{ratio:.2f}x" if ratio is not None else "",
                str(len(row.samples)),
            )
        console.print(grid)
    for name, why in report.missing.items():
        console.print(f"[bold red]without {name}:[/bold red] {why}", soft_wrap=True)
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True)


def draw(report: Report, chart: Callable[[Any, Report], None]) -> None:
    """Draw a report's chart as docs/figures/NAME.svg."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = report.name
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    chart(axes, report)
    axes.grid(True, which="major", alpha=0.3)
    FIGURES.mkdir(parents=True, exist_ok=True)
    path = FIGURES / f"{report.name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    say(f"drawn: {path.relative_to(ROOT)}")


def bars(axes: Any, table: Table, measure: str | None = None) -> None:
    """Draw the medians of a table as bars: cases along the axis, one colour per contender."""
    rows = [r for r in table.rows if r.median is not None and measure in (None, r.measure)]
    cases = list(dict.fromkeys(r.case for r in rows))
    names = list(dict.fromkeys(r.contender for r in rows))
    width = 0.8 / max(1, len(names))
    for i, name in enumerate(names):
        found = {r.case: r.median for r in rows if r.contender == name}
        places = [cases.index(case) + i * width for case in found]
        axes.bar(places, list(found.values()), width, label=name)
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(cases))], cases)
    axes.set_ylabel(table.unit)
    axes.set_title(table.title)
    axes.legend(fontsize="small")


def lines(axes: Any, table: Table, measure: str) -> None:
    """Draw medians over N (cases named "N=..."), both axes logarithmic, one line per contender."""
    rows = [r for r in table.rows if r.median is not None and r.measure == measure]
    for name in dict.fromkeys(r.contender for r in rows):
        own = [r for r in rows if r.contender == name]
        sizes = [int(r.case.split("=")[1].replace(",", "")) for r in own]
        axes.plot(sizes, [r.median for r in own], marker="o", label=name)
    axes.set_xscale("log", base=2 if len(rows) and "10,000" not in str(rows[-1].case) else 10)
    axes.set_yscale("log")
    axes.set_xlabel("nodes")
    axes.set_ylabel(f"{measure} [{table.unit}]")
    axes.set_title(table.title)
    axes.legend(fontsize="small")


def arguments(description: str, sizes: Sequence[int] = (), repeats: int = 5) -> argparse.Namespace:
    """Enter our environment and parse the options that all benchmarks share."""
    enter()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=repeats, help="measured runs")
    parser.add_argument("--only", default="", help="contenders to run, separated by commas")
    parser.add_argument("--parts", default="", help="parts to run, separated by commas")
    if sizes:
        text = ",".join(map(str, sizes))
        parser.add_argument("--sizes", default=text, help=f"N, separated by commas ({text})")
    options = parser.parse_args()
    options.only = [x for x in options.only.split(",") if x]
    options.parts = [x for x in options.parts.split(",") if x]
    options.sizes = [int(x) for x in getattr(options, "sizes", "").split(",") if x]
    return options


def relative(path: str) -> str:
    """Return a script's path relative to the repository."""
    return str(Path(path).resolve().relative_to(ROOT))
