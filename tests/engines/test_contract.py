"""The small parts of the engine contract; engines themselves are held to it by the suite."""

import pytest

from rallypoint.engines.contract import Entry, check_commit, version_of
from rallypoint.errors import ParameterError


def test_version_of_nothing_is_zero() -> None:
    assert version_of(None) == 0
    assert version_of(Entry(7, b"")) == 7


def test_an_entry_is_its_version_and_value() -> None:
    assert Entry(1, b"x", "mine") == Entry(1, b"x", "yours")
    assert "mine" not in repr(Entry(1, b"x", "mine"))


def test_write_without_a_comparison_is_refused() -> None:
    check_commit({"a": None, "b": None}, {"a": b""})
    with pytest.raises(ParameterError, match=r"not expected: \['b'\]"):
        check_commit({"a": None}, {"a": b"", "b": b""})
    with pytest.raises(ParameterError, match="changes nothing"):
        check_commit({"a": None}, {})
