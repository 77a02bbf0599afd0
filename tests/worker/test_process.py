import contextvars
from pathlib import Path

import numpy as np
import pytest
from tests.worker.group import Group

from rallypoint import worker
from rallypoint.engines.store import EngineStore
from rallypoint.errors import ParameterError, StoreTimeoutError
from rallypoint.store.memory import MemoryStore
from rallypoint.testing.fakes import MemoryEngine
from rallypoint.worker import ChangeKind, PendingChange, Worker, process
from rallypoint.worker.change import CHANGE_FILE, ChangeWriter
from rallypoint.worker.saving import release_key

ENVIRONMENT = {
    "RANK": "1",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "1",
    "RALLYPOINT_RUN_ID": "job",
    "RALLYPOINT_ROUND": "4",
    "RALLYPOINT_INCARNATION": "2",
}


def test_use_applies_to_this_thread() -> None:
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

    monkeypatch.setattr(process, "open_engine_store", open_store)
    url = "etcd://h1,h2/jobs"
    environment = ENVIRONMENT | {"RALLYPOINT_STORE": url, "RALLYPOINT_RUN_ID": "job"}
    worker.from_environment(environment).store.set("key", b"value")
    assert opened == [url]
    (key,) = EngineStore(engine).list()
    assert key.startswith("job/")  # runs share the engine


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "RALLYPOINT_STORE"])
def test_missing_environment_error_says_how_to_start(missing: str) -> None:
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
        ("RALLYPOINT_STORE", "tcp://a:1,b", "must be tcp://host:port"),
        ("RALLYPOINT_STORE", "tcp://a:1,,b:2", "must be tcp://host:port"),
        ("RALLYPOINT_STORE", "http://host:80", "must be tcp://host:port"),
    ],
)
def test_a_wrong_environment_is_named(name: str, value: str, message: str) -> None:
    environment = ENVIRONMENT | {"RALLYPOINT_STORE": "tcp://127.0.0.1:1", name: value}
    with pytest.raises(ParameterError, match=message):
        worker.from_environment(environment)


def change() -> PendingChange:
    return PendingChange(1, ChangeKind.JOINING, "1 node", "1 node waits", 0.0)


def test_all_ranks_save_at_the_same_step_for_a_change() -> None:
    store = MemoryStore()

    def one(w: Worker) -> list[int]:
        worker.use(store, w.rank, 2, pending=change)
        assert worker.pending_change() == change()
        steps = [step for step in range(5) if worker.should_save(step)]
        worker.store().set(release_key(steps[0]), b"")
        for step in range(5):
            worker.saved(step)
        return steps

    first, second = Group(2).run(one)
    assert first == second
    assert len(first) == 1


def test_regular_saves_are_the_same_everywhere_and_cost_nothing() -> None:
    worker.use(MemoryStore(), 0, 1)
    assert worker.pending_change() is None
    assert [step for step in range(10) if worker.should_save(step, every=4)] == [4, 8]
    worker.saved(4)
    assert [key for key in worker.store().list() if "count" in key] == []


def test_outside_a_run_only_the_interval_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def outside() -> list[int]:
        assert worker.pending_change() is None
        worker.saved(3)
        return [step for step in range(10) if worker.should_save(step, every=3)]

    monkeypatch.delenv("RALLYPOINT_STORE", raising=False)
    assert contextvars.Context().run(outside) == [3, 6, 9]


def test_the_agents_file_is_read(tmp_path: Path) -> None:
    writer = ChangeWriter(tmp_path / "change.json")
    environment = ENVIRONMENT | {
        "RALLYPOINT_STORE": (tmp_path / "store").as_uri(), CHANGE_FILE: str(writer.path),
    }  # fmt: skip
    found = worker.from_environment(environment)
    assert found.pending_change() is None
    writer.announce(ChangeKind.LEAVING, "node-a", "received SIGTERM", 5.0)
    told = found.pending_change()
    assert told is not None
    assert told.why == "received SIGTERM"
    found.store.close()


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
