"""Fills in options of `rallypoint run` from the variables of a scheduler.

A reader is a function from environment variables to options by name, or to None if that
scheduler did not start this process. Readers come from the entry point group
`rallypoint.environments`; those of this package are in `integrations`. The command line and
RALLYPOINT_ variables take precedence over readers, and readers over PET_ variables, which were
set for another launcher.
"""

from collections.abc import Callable, Collection, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click
from click.core import ParameterSource

from rallypoint.cli.option_checks import nearest
from rallypoint.errors import ParameterError

GROUP = "rallypoint.environments"
AUTO, NONE = "auto", "none"
AT_ADDRESSES = ("core", "static", "c10d")  # backends whose endpoint a reader can give
Reader = Callable[[Mapping[str, str]], Mapping[str, Any] | None]


def installed() -> dict[str, Reader]:
    """Return the readers of all installed packages, by name."""
    return {entry.name: _load(entry) for entry in entry_points(group=GROUP)}


def _load(entry: EntryPoint) -> Reader:
    try:
        reader: Reader = entry.load()
    except Exception as error:  # a plug-in may raise anything
        raise ParameterError(
            f"the environment reader {entry.name!r} ({entry.value}) failed to load: "
            f"{type(error).__name__}: {error}; --environment none disables readers"
        ) from error
    return reader


def find(
    env: Mapping[str, str], choice: str, readers: Callable[[], dict[str, Reader]] = installed
) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the options of the reader that matches, "" and no options if none does.

    Args:
        env: the variables.
        choice: "auto", "none", or the name of a reader.
        readers: returns the readers by name.

    Raises:
        ParameterError: no such reader, the named one finds nothing, or several find something.
    """
    if choice == NONE:
        return "", {}
    known = readers()
    _check_choice(choice, known)
    asked = known if choice == AUTO else {choice: known[choice]}
    found = {name: said for name, reader in asked.items() if (said := reader(env)) is not None}
    if choice != AUTO and not found:
        raise ParameterError(f"--environment {choice}: its variables are not set")
    if len(found) > 1:
        raise ParameterError(
            f"the environment matches {' and '.join(sorted(found))}; choose one with --environment"
        )
    return next(iter(found.items()), ("", {}))


def _check_choice(choice: str, known: Collection[str]) -> None:
    names = [AUTO, NONE, *sorted(known)]
    if choice not in names:
        allowed = f"allowed are {', '.join(names)}{nearest(choice, names)}"
        raise ParameterError(f"--environment {choice}: unknown; {allowed}")


def fill(
    ctx: click.Context, options: Mapping[str, Any], env: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the completed options, and for each option filled in the name of its reader."""
    filled = dict(options)
    choice = filled.pop("environment")
    if options["standalone"]:  # a scheduler changes nothing
        _check_choice(choice, {entry.name for entry in entry_points(group=GROUP)})
        return filled, {}
    name, said = find(env, choice)
    origins = {}
    for option, value in said.items():
        if option not in filled:
            raise ParameterError(f"the reader {name!r} returns {option!r}, which is not an option")
        wanted = option != "endpoint" or options["backend"] in AT_ADDRESSES
        if wanted and not _is_given(ctx, option, env):
            filled[option] = value
            origins[option] = name
    if name and filled["backend"] == "c10d" and not _is_given(ctx, "backend", env):
        filled["backend"], origins["backend"] = "core", name
    return filled, origins


def _is_given(ctx: click.Context, option: str, env: Mapping[str, str]) -> bool:
    """Return whether the user gave the option, or its RALLYPOINT_ variable."""
    source = ctx.get_parameter_source(option)
    if source is ParameterSource.ENVIRONMENT:
        return any(env.get(variable) for variable in _own_variables(ctx, option))
    return source is ParameterSource.COMMANDLINE


def _own_variables(ctx: click.Context, option: str) -> list[str]:
    names: list[str] = []
    for parameter in ctx.command.params:
        if parameter.name == option and parameter.envvar:
            found = parameter.envvar
            names += [found] if isinstance(found, str) else found
    return [name for name in names if name.startswith("RALLYPOINT_")]
