"""The error tree: as drawn, and derived from the built-in errors."""

import re

import pytest

from rallypoint import errors


def own_classes() -> dict[str, type[Exception]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }


def drawn() -> dict[str, str]:
    """Return child -> parent as the module's docstring draws it."""
    parents: dict[str, str] = {}
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^( *[│├└─ ]*)(\w+Error)\b", line)
        if found:
            depth = len(found[1])
            nearest = max((each for each in above if each < depth), default=None)
            if nearest is not None:
                parents[found[2]] = above[nearest]
            above = {each: name for each, name in above.items() if each < depth}
            above[depth] = found[2]
    return parents


def test_error_tree_drawing_is_current() -> None:
    classes = own_classes()
    real = {
        name: base.__name__
        for name, kind in classes.items()
        for base in kind.__bases__
        if base in classes.values()
    }
    assert drawn() == real


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ParameterError, ValueError),
        (errors.StoreTimeoutError, TimeoutError),
        (errors.StoreConnectionError, ConnectionError),
        (errors.AuthenticationError, ConnectionError),
        (errors.StoreValueError, ValueError),
    ],
)
def test_errors_are_also_built_in_ones(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)
    assert str(kind("said so")) == "said so"
