import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.errors import ParameterError
from rallypoint.worker.snapshot import checksum, pack, unpack

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
    | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)  # fmt: skip


@given(st.integers(0, 2**63 - 1), st.dictionaries(st.text(max_size=9), PLAIN, max_size=5))
def test_plain_values_come_back(step: int, values: dict[str, Any]) -> None:
    assert unpack(pack(step, values)) == (step, values)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.array(2.5),
        np.zeros((0, 3), dtype=">i2"),
        np.array([True, False]),
        np.array(["a", "bcd"]),
        np.array([1 + 2j]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_come_back_and_can_be_written_to(array: Any) -> None:
    read = unpack(pack(3, {"outer": [{"array": array}]}))
    assert read is not None
    found = read[1]["outer"][0]["array"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    found[...] = found


def test_the_state_of_a_random_generator_comes_back() -> None:
    state = np.random.default_rng(7).bit_generator.state
    assert unpack(pack(1, {"random": state})) == (1, {"random": state})


def test_numpy_scalar_comes_back_as_a_number() -> None:
    values = {"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True)}
    assert unpack(pack(1, values)) == (1, {"a": 3, "b": 0.5, "c": True})


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "builtins.object"),
        (len, "builtin_function_or_method"),
        (np.array([object()]), "dtype object"),
        (np.zeros(1, dtype=[("a", "i4")]), "dtype"),
        (Decimal, "type"),
    ],
)
def test_unsupported_value_is_refused_by_name(value: Any, what: str) -> None:
    with pytest.raises(ParameterError, match=what):
        pack(1, {"value": value})


def test_truncated_or_changed_data_is_ignored() -> None:
    whole = pack(7, {"weights": np.arange(30.0), "name": "x"})
    assert unpack(whole) is not None
    for cut in range(len(whole)):
        assert unpack(whole[:cut]) is None
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        assert unpack(bytes(changed)) is None
    assert unpack(whole + b"\0") is None


def test_states_that_differ_have_other_checksums() -> None:
    assert checksum(pack(1, {"a": 1})) == checksum(pack(1, {"a": 1}))
    assert checksum(pack(1, {"a": 1})) != checksum(pack(2, {"a": 1}))


def test_without_numpy_plain_values_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert unpack(pack(1, {"a": [1, b"2", "3"]})) == (1, {"a": [1, b"2", "3"]})
    with pytest.raises(ParameterError, match="saving a object needs numpy"):
        pack(1, {"a": object()})
