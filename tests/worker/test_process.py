"""The worker's side: who it is, and collectives among threads that share one MemoryStore."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rallypoint import worker
from rallypoint.errors import ParameterError, StoreTimeoutError
from rallypoint.store.engine_store import EngineStore
from rallypoint.store.memory import MemoryStore
from rallypoint.testing.memory_engine import MemoryEngine
from rallypoint.worker import Worker

ENVIRONMENT = {
    "RANK": "1",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "1",
    "RALLYPOINT_RUN_ID": "job",
    "RALLYPOINT_ROUND": "4",
    "RALLYPOINT_INCARNATION": "2",
}


class Group:
    """Workers of one round, each called in a thread of its own."""

    def __init__(self, size: int, round_number: int = 1, store: MemoryStore | None = None) -> None:
        self.base = store or MemoryStore()
        self.size = size
        self.workers = [
            Worker(self.base, rank, size, round_number=round_number) for rank in range(size)
        ]

    def run(self, call: Callable[[Worker], Any], ranks: list[int] | None = None) -> list[Any]:
        """Return what `call` returned or raised for each rank."""
        members = self.workers if ranks is None else [self.workers[rank] for rank in ranks]
        results: list[Any] = [None] * len(members)

        def one(index: int) -> None:
            try:
                results[index] = call(members[index])
            except Exception as error:
                results[index] = error

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(members))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


def test_all_gather_returns_the_values_in_rank_order() -> None:
    results = Group(3).run(lambda w: w.all_gather(f"from {w.rank}"))
    assert results == [[b"from 0", b"from 1", b"from 2"]] * 3


def test_broadcast_returns_the_value_of_rank_0() -> None:
    assert Group(3).run(lambda w: w.broadcast(f"from {w.rank}")) == [b"from 0"] * 3
    assert Group(2).run(lambda w: w.broadcast(b"x" if w.rank == 0 else None)) == [b"x"] * 2


def test_barrier_can_be_used_again() -> None:
    def twice(w: Worker) -> int:
        w.barrier()
        count = w.store.add("count", 1)
        w.barrier()
        return count and int(w.store.get("count"))

    assert Group(4).run(twice) == [4] * 4


def test_barrier_names_the_missing_ranks() -> None:
    first, second = Group(4).run(lambda w: w.barrier(timeout=0.2), ranks=[0, 2])
    assert isinstance(first, StoreTimeoutError)
    assert isinstance(second, StoreTimeoutError)
    assert "1" in str(first)
    assert "3" in str(first)


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
def test_all_reduce_gives_the_same_bits_to_all_and_again(size: int) -> None:
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


def test_all_reduce_leaves_its_argument_alone() -> None:
    array = np.ones(3)
    for size in (1, 2):
        for result in Group(size).run(lambda w: w.all_reduce(array)):
            assert not np.shares_memory(result, array)
            assert result.flags.writeable
    np.testing.assert_array_equal(array, np.ones(3))


def test_all_reduce_of_a_big_array_goes_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CHUNK_BYTES", 64)
    monkeypatch.setattr(worker, "READ_BYTES", 128)
    array = np.arange(101, dtype=np.float64)
    for result in Group(5).run(lambda w: w.all_reduce(array)):
        np.testing.assert_array_equal(result, 5 * array)


def test_all_reduce_leaves_one_sum_behind() -> None:
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


def test_all_reduce_says_when_rank_0_is_the_missing_one() -> None:
    (error,) = Group(2).run(lambda w: w.all_reduce(np.ones(2), timeout=0.1), ranks=[1])
    assert "missing ranks: 0" in str(error)


def test_all_reduce_can_be_made_again_after_a_timeout() -> None:
    group = Group(2)
    (error,) = group.run(lambda w: w.all_reduce(np.ones(2), timeout=0.1), ranks=[1])
    assert isinstance(error, StoreTimeoutError)
    for result in group.run(lambda w: w.all_reduce(np.ones(2))):
        np.testing.assert_array_equal(result, [2.0, 2.0])


def test_all_reduce_refuses_what_does_not_match_on_every_member() -> None:
    group = Group(3)
    for error in group.run(lambda w: w.all_reduce(np.ones(2 + (w.rank == 1)))):
        assert isinstance(error, ParameterError)
        assert "rank 1 gave sum of <f8 (3,), but rank 0 gave sum of <f8 (2,)" in str(error)
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
def test_all_reduce_refuses_what_is_not_defined(array: Any, op: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Worker(MemoryStore(), 0, 1).all_reduce(array, op)


def test_rounds_never_mix() -> None:
    store = MemoryStore()
    early = Group(2, round_number=1, store=store)
    early.run(lambda w: w.all_reduce(np.full(2, 100.0), timeout=0.1), ranks=[1])
    late = Group(2, round_number=2, store=store)
    for result in late.run(lambda w: w.all_reduce(np.ones(2))):
        np.testing.assert_array_equal(result, [2.0, 2.0])


def test_use_is_for_this_thread_and_the_functions_follow_it() -> None:
    store = MemoryStore()

    def one(w: Worker) -> tuple[int, int, int, int]:
        worker.use(store, w.rank, w.world_size, local_rank=0, round_number=3)
        worker.barrier()
        total = int(worker.all_reduce(np.array([1]))[0])
        assert worker.all_gather(b"a") == [b"a", b"a"]
        assert worker.broadcast(b"b") == b"b"
        assert worker.store() is worker.current().store
        return worker.rank(), worker.world_size(), worker.round(), total + worker.local_rank()

    assert Group(2).run(one) == [(0, 2, 3, 2), (1, 2, 3, 2)]


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_out_of_range_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ParameterError, match=f"rank={rank}"):
        Worker(MemoryStore(), rank, world_size)


def test_from_environment_with_a_file_store(tmp_path: Path) -> None:
    path = tmp_path / "a store"
    found = worker.from_environment(ENVIRONMENT | {"RALLYPOINT_STORE": path.as_uri()})
    assert (found.rank, found.world_size, found.local_rank, found.round) == (1, 3, 1, 4)
    found.store.set("key", b"value")
    assert found.store.get("key") == b"value"
    found.store.close()
    assert path.exists()


def test_from_environment_with_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, opened = MemoryEngine(), []

    def open_store(url: str) -> EngineStore:
        opened.append(url)
        return EngineStore(engine)

    monkeypatch.setattr(worker, "open_engine_store", open_store)
    url = "etcd://h1,h2/jobs"
    environment = ENVIRONMENT | {"RALLYPOINT_STORE": url, "RALLYPOINT_RUN_ID": "job"}
    worker.from_environment(environment).store.set("key", b"value")
    assert opened == [url]
    (key,) = EngineStore(engine).list()
    assert key.startswith("job/")  # runs share the engine


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "RALLYPOINT_STORE"])
def test_without_the_environment_it_says_how_to_be_started(missing: str) -> None:
    environment = ENVIRONMENT | {"RALLYPOINT_STORE": "tcp://127.0.0.1:1"}
    del environment[missing]
    with pytest.raises(ParameterError, match=f"{missing} is not set.*rallypoint run"):
        worker.from_environment(environment)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "one", "RANK='one' in the environment: must be an integer"),
        ("RALLYPOINT_STORE", "127.0.0.1:29400", "must be tcp://host:port or file:///path"),
        ("RALLYPOINT_STORE", "tcp://host", "must be tcp://host:port"),
        ("RALLYPOINT_STORE", "tcp://host:99999", "must be tcp://host:port"),
        ("RALLYPOINT_STORE", "tcp://[::1:5", "must be tcp://host:port"),
        ("RALLYPOINT_STORE", "http://host:80", "must be tcp://host:port"),
    ],
)
def test_a_wrong_environment_is_named(name: str, value: str, message: str) -> None:
    environment = ENVIRONMENT | {"RALLYPOINT_STORE": "tcp://127.0.0.1:1", name: value}
    with pytest.raises(ParameterError, match=message):
        worker.from_environment(environment)


def test_numpy_is_imported_only_where_it_is_needed() -> None:
    code = "import sys, rallypoint.worker; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_numpy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ParameterError, match=r"rallypoint\[examples\]"):
        Worker(MemoryStore(), 0, 1).all_reduce(None)  # type: ignore[arg-type]
