"""What a scheduler says about this node, for the options of `rallypoint run` not given.

A reader is a function from the environment's variables to options by name, or to None where
that scheduler did not start this process. Readers are found through the entry point group
`rallypoint.environments`, so that nothing here knows of any scheduler; those of this package
are in `integrations`. What the command line or a RALLYPOINT_ variable says stays; a PET_
variable was set for another launcher and gives way.
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
AT_ADDRESSES = ("core", "static", "c10d")  # backends whose endpoint is what readers say
Reader = Callable[[Mapping[str, str]], Mapping[str, Any] | None]


def installed() -> dict[str, Reader]:
    """Return the readers of all installed packages by name."""
    return {entry.name: _load(entry) for entry in entry_points(group=GROUP)}


def _load(entry: EntryPoint) -> Reader:
    try:
        reader: Reader = entry.load()
    except Exception as error:  # a plug-in may fail in any way at all
        raise ParameterError(
            f"the reader {entry.name!r} ({entry.value}) of the environment failed to load: "
            f"{type(error).__name__}: {error}; --environment none does without"
        ) from error
    return reader


def find(
    env: Mapping[str, str], choice: str, readers: Callable[[], dict[str, Reader]] = installed
) -> tuple[str, Mapping[str, Any]]:
    """Return which reader knows this environment, and what it says ("" and nothing: none).

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
        raise ParameterError(f"--environment {choice}: its variables are not there")
    if len(found) > 1:
        raise ParameterError(
            f"the environment is that of {' and '.join(sorted(found))}; "
            "say with --environment which one to go by"
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
    """Return the options, filled up, and for each filled one the name of its reader."""
    filled = dict(options)
    choice = filled.pop("environment")
    if options["standalone"]:  # meets only itself, whoever started it
        _check_choice(choice, {entry.name for entry in entry_points(group=GROUP)})
        return filled, {}
    name, said = find(env, choice)
    origins = {}
    for option, value in said.items():
        if option not in filled:
            raise ParameterError(f"the reader {name!r} says {option!r}, which is no option")
        wanted = option != "endpoint" or options["backend"] in AT_ADDRESSES
        if wanted and not _is_given(ctx, option, env):
            filled[option] = value
            origins[option] = name
    if name and filled["backend"] == "c10d" and not _is_given(ctx, "backend", env):
        filled["backend"], origins["backend"] = "core", name
    return filled, origins


def _is_given(ctx: click.Context, option: str, env: Mapping[str, str]) -> bool:
    """Return whether the user has said so, by an option or a RALLYPOINT_ variable."""
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
