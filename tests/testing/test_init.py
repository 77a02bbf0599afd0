"""The suites are public names of one package, imported when used."""

import importlib

import pytest

from rallypoint import testing


@pytest.mark.parametrize("name", testing.__all__)
def test_is_there(name: str) -> None:
    assert getattr(testing, name) is getattr(importlib.import_module(testing._WHERE[name]), name)
    assert name in dir(testing)


def test_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(testing, "nonsense")  # noqa: B009 - the lookup is what is tested
