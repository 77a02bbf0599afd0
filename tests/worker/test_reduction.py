import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tests.worker.group import Group

from rallypoint import worker
from rallypoint.errors import ParameterError, StoreTimeoutError
from rallypoint.store.memory import MemoryStore
from rallypoint.worker import Worker, reduction


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", [6.0, 3.0]),
        ("mean", [2.0, 1.0]),
        ("max", [3.0, 4.0]),
        ("min", [1.0, -2.0]),
    ],
)
def test_all_reduce(op: worker.Op, expected: list[float]) -> None:
    given = [np.array([1.0, 4.0]), np.array([2.0, 1.0]), np.array([3.0, -2.0])]
    for result in Group(3).run(lambda w: w.all_reduce(given[w.rank], op)):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_reduce_is_bitwise_identical(size: int) -> None:
    given = np.random.default_rng(size).normal(size=(size, 3, 50)).astype(np.float32)

    def thrice(w: Worker) -> list[bytes]:
        return [w.all_reduce(given[w.rank]).tobytes() for _ in range(3)]

    expected = given[0].copy()
    for part in given[1:]:
        expected += part
    assert Group(size).run(thrice) == [[expected.tobytes()] * 3] * size


@pytest.mark.parametrize(
    "array",
    [
        np.float64(3.5),
        np.zeros((0, 4)),
        np.arange(6).reshape(2, 3).T,
        np.array([1 + 2j]),
        np.arange(5, dtype=">i4"),
    ],
    ids=["scalar", "empty", "not contiguous", "complex", "big-endian"],
)
def test_all_reduce_keeps_shape_and_dtype(array: Any) -> None:
    for result in Group(2).run(lambda w: w.all_reduce(array)):
        assert result.shape == array.shape
        assert result.dtype == array.dtype
        np.testing.assert_array_equal(result, array + array)


def test_all_reduce_does_not_change_its_argument() -> None:
    array = np.ones(3)
    for size in (1, 2):
        for result in Group(size).run(lambda w: w.all_reduce(array)):
            assert not np.shares_memory(result, array)
            assert result.flags.writeable
    np.testing.assert_array_equal(array, np.ones(3))


def test_all_reduce_splits_large_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction, "CHUNK_BYTES", 64)
    monkeypatch.setattr(reduction, "READ_BYTES", 128)
    array = np.arange(101, dtype=np.float64)
    for result in Group(5).run(lambda w: w.all_reduce(array)):
        np.testing.assert_array_equal(result, 5 * array)


def test_all_reduce_keeps_only_one_sum_in_the_store() -> None:
    group = Group(3)
    group.run(lambda w: [w.all_reduce(np.ones(4)) for _ in range(10)])
    assert [key for key in group.base.list() if "reduce" in key] == ["worker/1.1/reduce/9/sum"]


def test_all_reduce_names_the_missing_ranks() -> None:
    group = Group(4)
    leader, other = group.run(lambda w: w.all_reduce(np.ones(2), timeout=0.2), ranks=[0, 2])
    for error in (leader, other):
        assert isinstance(error, StoreTimeoutError)
        assert "missing ranks: 1, 3" in str(error)
    assert "rank 2 of 4" in str(other)


def test_all_reduce_error_names_a_missing_rank_0() -> None:
    (error,) = Group(2).run(lambda w: w.all_reduce(np.ones(2), timeout=0.1), ranks=[1])
    assert "missing ranks: 0" in str(error)


def test_all_reduce_can_be_repeated_after_a_timeout() -> None:
    group = Group(2)
    (error,) = group.run(lambda w: w.all_reduce(np.ones(2), timeout=0.1), ranks=[1])
    assert isinstance(error, StoreTimeoutError)
    for result in group.run(lambda w: w.all_reduce(np.ones(2))):
        np.testing.assert_array_equal(result, [2.0, 2.0])


def test_all_reduce_refuses_arrays_that_do_not_match() -> None:
    group = Group(3)
    for error in group.run(lambda w: w.all_reduce(np.ones(2 + (w.rank == 1)))):
        assert isinstance(error, ParameterError)
        assert "rank 1 passed sum of <f8 (3,), but rank 0 passed sum of <f8 (2,)" in str(error)
    for result in group.run(lambda w: w.all_reduce(np.ones(2))):
        np.testing.assert_array_equal(result, [3.0, 3.0])


@pytest.mark.parametrize(
    ("array", "op", "message"),
    [
        (np.array(["a"]), "sum", "sum of dtype <U1"),
        (np.array([1, 2]), "mean", "mean of dtype int64"),
        (np.array([1j]), "max", "max of dtype complex128"),
        (np.ones(1), "median", "must be one of sum, mean, max, min"),
    ],
)
def test_all_reduce_refuses_undefined_operations(array: Any, op: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Worker(MemoryStore(), 0, 1).all_reduce(array, op)


def test_numpy_is_imported_only_where_it_is_needed() -> None:
    code = "import sys, rallypoint.worker; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_numpy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ParameterError, match=r"rallypoint\[examples\]"):
        Worker(MemoryStore(), 0, 1).all_reduce(None)  # type: ignore[arg-type]
