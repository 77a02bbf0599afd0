"""Writes the parts of docs/ that follow from the source, so that they cannot go stale.

    python docs/generate.py

A generated part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`; the rest
of a page is written by hand. tests/test_docs.py fails when a part is not current.
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
FIRST_FRAME = 100  # tags below are store requests, which travel in a Call


def layout() -> str:
    """Return the source tree, each file with the first sentence it says about itself."""
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
    """Return a text as it can stand in a table."""
    return text.replace("|", "\\|")


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
    """Return a name as code, nothing for none."""
    return f"`{name}`" if name else ""


def commands() -> str:
    """Return what each command says of itself."""
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


PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "layout": ("architecture.md", layout),
    "requests": ("protocol.md", requests),
    "frames": ("protocol.md", partial(frames, protocol)),
    "rendezvous": ("protocol.md", partial(frames, wire)),
    "defaults": ("defaults.md", defaults_table),
    "commands": ("reference/cli.md", commands),
}


def renewed(name: str) -> tuple[Path, str]:
    """Return the page that holds a part, and its text with the part made anew."""
    page, make = PARTS[name]
    path = DOCS / page
    start, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    before, _, rest = path.read_text("utf-8").partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{path}: no {start} ... {end}")
    return path, f"{before}{start}\n{make()}\n{end}{after}"


def main() -> None:
    """Write every generated part anew."""
    for name in PARTS:
        path, text = renewed(name)
        path.write_text(text, "utf-8")
    for name, schema in (("status", json_schema()), ("event", records.json_schema())):
        path = SOURCE / "schemas" / f"{name}.v1.json"
        path.write_text(json.dumps(schema, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
