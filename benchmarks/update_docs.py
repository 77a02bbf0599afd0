"""Writes the results into docs/performance-tables.md: the tables between its markers.

    python3 benchmarks/update_docs.py

A marker `<!-- results: NAME -->` is followed by what this script writes, up to
`<!-- end: NAME -->`; everything else on the page is written by hand.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance-tables.md"
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)


def shown(value: float | None) -> str:
    """Return a figure with three significant digits."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def section(name: str) -> str:
    """Return one result as Markdown."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return "\nNot measured yet.\n\n"
    result = json.loads(path.read_text())
    parts = ["", f"Command: `python3 {result['command']}`, {where(result)}.", ""]
    if (ROOT / "docs" / "figures" / f"{name}.svg").exists():
        parts += [f"![{result['title']}](figures/{name}.svg)", ""]
    for table in result["tables"]:
        parts += [*table_lines(table), ""]
    parts += [f"**Without {name}**: {why}" for name, why in result["missing"].items()]
    parts += [f"- {note}" for note in result["notes"]]
    return "\n".join(parts).rstrip() + "\n\n"


def where(result: dict[str, Any]) -> str:
    """Return when and on what a result was measured."""
    m = result["machine"]
    return (
        f"{result['at']}, {m['system']} {m['machine']}, {m['cores']} cores, Python {m['python']}, "
        f"load {m['load'][0]:g} at the end"
    )


def table_lines(table: dict[str, Any]) -> list[str]:
    """Return one table as Markdown; the ratio's column only where there are ratios."""
    compared = any(row["ratio"] is not None for row in table["rows"])
    unit = f" [{table['unit']}]" if table["unit"] else ""
    head = [
        "case",
        "contender",
        "measure",
        "median",
        "min",
        "max",
        *(["ratio"] if compared else []),
    ]
    out = [f"{table['title']}{unit}:", "", f"| {' | '.join(head)} |"]
    out.append("|---|---|---|" + "--:|" * (len(head) - 3))
    for row in table["rows"]:
        cells = [row["case"], row["contender"], row["measure"]]
        cells += [row["note"] or shown(row["median"]), shown(row["min"]), shown(row["max"])]
        if compared:
            cells.append("" if row["ratio"] is None else f"{shown(row['ratio'])}x")
        out.append(f"| {' | '.join(cells)} |")
    return out


def main() -> None:
    """Fill the page."""
    text = PAGE.read_text()
    filled = MARKED.sub(lambda m: m[1] + section(m[2]) + m[3], text)
    PAGE.write_text(filled)


if __name__ == "__main__":
    sys.exit(main())
