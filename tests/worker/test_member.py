"""The collectives of one member of a round."""

import numpy as np
import pytest
from tests.worker.group import Group

from rallypoint.errors import ParameterError, StoreTimeoutError
from rallypoint.store.memory import MemoryStore
from rallypoint.worker import Worker


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


def test_rounds_never_mix() -> None:
    store = MemoryStore()
    early = Group(2, round_number=1, store=store)
    early.run(lambda w: w.all_reduce(np.full(2, 100.0), timeout=0.1), ranks=[1])
    late = Group(2, round_number=2, store=store)
    for result in late.run(lambda w: w.all_reduce(np.ones(2))):
        np.testing.assert_array_equal(result, [2.0, 2.0])


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_out_of_range_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ParameterError, match=f"rank={rank}"):
        Worker(MemoryStore(), rank, world_size)
