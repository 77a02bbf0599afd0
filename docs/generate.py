"""Generates the parts of docs/ that follow from the source, so that they stay current.

    python docs/generate.py

A generated part is between `<!-- generated: NAME -->` and `<!-- end: NAME -->`; the rest of a page
is written by hand. tests/test_docs.py fails if a part is not current.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import get_args

import click
import msgspec

from rallypoint import cli
from rallypoint.agent.reporting import records
from rallypoint.net import protocol
from rallypoint.rendezvous import defaults, wire
from rallypoint.rendezvous.reports.status import json_schema

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src" / "rallypoint"
HELP_WIDTH = 96
BASE = sorted(path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("__"))
FIRST_FRAME = 100  # tags below are store requests, which travel in a Call


def layout() -> str:
    """Return the source tree, each file with the first sentence of its docstring."""
    lines = ["| file | what it is |", "|---|---|"]
    for path in sorted(SOURCE.rglob("*.py"), key=lambda path: (path.parent, path.name)):
        head = first_sentence(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
        name = path.relative_to(SOURCE).as_posix()
        if path.name == "__init__.py" and path.parent != SOURCE:
            name = f"**{path.parent.relative_to(SOURCE).as_posix()}/**"
        lines.append(f"| {name} | {cell(head)} |")
    return "\n".join(lines)


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, on one line."""
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    return paragraph.removesuffix(" PURE.")


def cell(text: str) -> str:
    """Return a text escaped for a table cell."""
    return text.replace("|", "\\|")


def imports() -> str:
    """Return the picture of the packages: an arrow from each to those that it imports.

    An import that also follows from two others is left out, so that the picture can be read.
    """
    graph: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if path.parent != SOURCE or path.stem not in ("__init__", "__main__"):
            package = package_of(path.relative_to(SOURCE).parts[0].removesuffix(".py"))
            graph.setdefault(package, set()).update(imported_packages(path) - {package})
    lines = ["```mermaid", "flowchart TD", f'    base["{", ".join(BASE)}"]']
    for package in sorted(graph):
        direct = graph[package]
        implied = {
            name
            for other in direct
            for name in reachable(graph, other)
            if other not in reachable(graph, name)
        }
        lines += [f"    {package} --> {name}" for name in sorted(direct - implied)]
    return "\n".join([*lines, "```"])


def package_of(name: str) -> str:
    """Return the package that a name below `rallypoint` stands in: one for the single modules."""
    return "base" if name in BASE else name


def imported_packages(path: Path) -> set[str]:
    """Return the packages that a file imports, those named for types only included."""
    names = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    found = {name.split(".")[1] for name in names if name.startswith("rallypoint.")}
    return {package_of(name) for name in found if not name.startswith("__")}


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return what a package imports, directly or not."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def requests() -> str:
    """Return the table of store requests: tag, name, fields, and what the answer is."""
    lines = ["| tag | request | fields | answer |", "|---|---|---|---|"]
    for kind in sorted(get_args(protocol.StoreRequest), key=tag):
        answer = first_sentence(kind.__doc__ or "").removeprefix("-> ")
        lines.append(f"| {tag(kind)} | {kind.__name__} | {fields(kind)} | {cell(answer)} |")
    return "\n".join(lines)


def frames(module: ModuleType) -> str:
    """Return the table of a module's frames: tag, name, fields, meaning."""
    lines = ["| tag | frame | fields | meaning |", "|---|---|---|---|"]
    for kind in sorted(bodies(module), key=tag):
        meaning = first_sentence(kind.__doc__ or "")
        lines.append(f"| {tag(kind)} | {kind.__name__} | {fields(kind)} | {cell(meaning)} |")
    return "\n".join(lines)


def bodies(module: ModuleType) -> Iterator[type[msgspec.Struct]]:
    """Yield the frames that a module defines: bodies with a number of their own, from 100."""
    for value in vars(module).values():
        is_body = isinstance(value, type) and issubclass(value, msgspec.Struct)
        if is_body and value.__module__ == module.__name__ and numbered(value):
            yield value


def numbered(kind: type[msgspec.Struct]) -> bool:
    """Return whether a body is a frame and not a part of one."""
    return str(kind.__struct_config__.tag).isdigit() and tag(kind) >= FIRST_FRAME


def tag(kind: type[msgspec.Struct]) -> int:
    """Return the number that a body begins with."""
    return int(str(kind.__struct_config__.tag))


def fields(kind: type[msgspec.Struct]) -> str:
    """Return a body's fields with their types, in the order of the wire."""
    parts = []
    for field in msgspec.structs.fields(kind):
        name = getattr(field.type, "__name__", "")
        text = name if isinstance(field.type, type) and not get_args(field.type) else ""
        shown = text or re.sub(r"(rallypoint|typing)\.([a-z_]+\.)*", "", str(field.type))
        shown = "request" if "Set |" in shown and "Peek" in shown else shown
        parts.append(cell(f"{field.name}: {shown}"))
    return ", ".join(parts)


def defaults_table() -> str:
    """Return the table of every timeout and limit."""
    lines = [
        "| setting | default | option | environment | parameter | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for row in defaults.DEFAULTS:
        cells = [
            row.name,
            f"{row.default:.12g} {row.unit}".strip(),
            code(row.flag),
            code(row.env),
            ", ".join(code(name) for name in (row.parameter, *row.aliases)),
            cell(row.meaning),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def code(name: str) -> str:
    """Return a name as code, or nothing if there is none."""
    return f"`{name}`" if name else ""


def commands() -> str:
    """Return the help of each command."""
    parts = []
    for name in cli.COMMANDS:
        command = cli.main.get_command(click.Context(cli.main), name)
        if command is not None:
            parts += [f"## rallypoint {name}", "```text", help_of(command, name), "```", ""]
    return "\n".join(parts)


def help_of(command: click.Command, name: str) -> str:
    """Return a command's help at a fixed width."""
    context = click.Context(
        command,
        parent=click.Context(cli.main, info_name="rallypoint", **cli.main.context_settings),
        info_name=name,
        terminal_width=HELP_WIDTH,
        **command.context_settings,
    )
    return command.get_help(context).rstrip()


def cases() -> str:
    """Return the table of the tests that show each row of the catalogue of public reports."""
    shown: dict[str, list[str]] = {}
    for row, path, test in case_tests():
        files = shown.setdefault(row, [])
        where = path.relative_to(DOCS.parent)
        files.append(
            f"{where.relative_to('tests') if where.parts[0] == 'tests' else where}: {test}"
        )
    lines = ["| row | tests |", "|---|---|"]
    for row in sorted(shown, key=lambda row: (row[:6], int(row[6:]))):
        lines.append(f"| {row} | {'<br>'.join(sorted(shown[row]))} |")
    return "\n".join(lines)


def case_tests() -> Iterator[tuple[str, Path, str]]:
    """Yield row, file and name of each test that shows a public report.

    A test names its rows with the marker `cases`, a case of the store suite in its docstring.
    """
    suites = sorted((SOURCE / "testing").glob("store_*.py"))
    for path in [*sorted((DOCS.parent / "tests").rglob("test_*.py")), *suites]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                said = [text for text in map(ast.unparse, node.decorator_list) if ".cases(" in text]
                if path in suites:
                    said = [(ast.get_docstring(node) or "").partition(":")[0]]
                rows = re.findall(r"\bcase-[A-Z]\d+\b", " ".join(said))
                yield from ((row, path, node.name) for row in rows)


PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "imports": ("architecture.md", imports),
    "layout": ("architecture.md", layout),
    "requests": ("protocol.md", requests),
    "frames": ("protocol.md", partial(frames, protocol)),
    "rendezvous": ("protocol.md", partial(frames, wire)),
    "defaults": ("defaults.md", defaults_table),
    "cases": ("../tests/cases/README.md", cases),
    "commands": ("reference/cli.md", commands),
}


def renewed(name: str) -> tuple[Path, str]:
    """Return the page that holds a part, and its text with the part generated again."""
    page, make = PARTS[name]
    path = DOCS / page
    start, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    before, _, rest = path.read_text("utf-8").partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{path}: no {start} ... {end}")
    return path, f"{before}{start}\n{make()}\n{end}{after}"


def main() -> None:
    """Write every generated part."""
    for name in PARTS:
        path, text = renewed(name)
        path.write_text(text, "utf-8")
    for name, schema in (("status", json_schema()), ("event", records.json_schema())):
        path = SOURCE / "schemas" / f"{name}.v1.json"
        path.write_text(json.dumps(schema, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
