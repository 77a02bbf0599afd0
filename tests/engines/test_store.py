"""The store on any engine: the suite on the engine in memory, round trips, races, foreign data."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from rallypoint.deadline import Deadline
from rallypoint.engines import store as engine_store
from rallypoint.engines.contract import Commit, Entries, Entry
from rallypoint.engines.store import EngineStore, keys_of
from rallypoint.errors import StoreConnectionError, StoreError, StoreTimeoutError, StoreValueError
from rallypoint.net import protocol as p
from rallypoint.testing.fakes import MemoryEngine
from rallypoint.testing.store_handles import in_thread
from rallypoint.testing.store_suite import StoreSuite


class TestEngineStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _data(self) -> None:
        self.engine = MemoryEngine()

    def make_store(self) -> EngineStore:
        return EngineStore(self.engine.clone())


class Counting(MemoryEngine):
    """Counts round trips."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.commits = 0

    def read(self, keys: Sequence[str], deadline: Deadline) -> Entries:
        self.reads += 1
        return super().read(keys, deadline)

    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        self.commits += 1
        return super().commit(expected, changes, deadline, expire)


def test_undisturbed_call_takes_one_round_trip() -> None:
    engine = Counting()
    store = EngineStore(engine)
    store.set("fresh", b"1")
    store.set("fresh", b"2")
    assert store.add("n", 1) == 1
    assert store.add("n", 1) == 2
    store.multi_set(["a", "b"], [b"", b""])
    store.queue_push("q", b"1")
    store.pipeline().set("a", b"x").add("n", 5).execute()
    assert (engine.reads, engine.commits) == (0, 7)
    assert store.get("a") == b"x"
    assert (engine.reads, engine.commits) == (1, 7)


def test_wrong_guess_costs_one_more_round_trip() -> None:
    engine = Counting()
    store, other = EngineStore(engine), EngineStore(engine)
    store.set("n", b"1")
    other.set("n", b"5")  # guesses that there is none: twice
    assert (engine.reads, engine.commits) == (0, 3)
    assert store.add("n", 1) == 6
    assert (engine.reads, engine.commits) == (0, 5)
    other.queue_push("q", b"")
    with pytest.raises(StoreValueError, match="queue"):
        store.set("q", b"")
    assert store.compare_and_swap("n", b"1", b"2") == (False, b"6")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_store, "_KNOWN_KEYS", 3)
    monkeypatch.setattr(engine_store, "_KNOWN_BYTES", 10)
    store = EngineStore(MemoryEngine())
    for number in range(9):
        store.set(f"k{number}", b"")
    store.set("large", b"x" * 100)
    assert sorted(store._known) == ["k6", "k7", "k8"]


def test_endless_conflicts_end_with_an_error() -> None:
    class Faster(MemoryEngine):
        def commit(self, *_: Any, **__: Any) -> Commit:
            return Commit(False, 0, {})

    store = EngineStore(Faster(), timeout=0.1)
    with pytest.raises(StoreTimeoutError, match=r"add on \['n'\]: others wrote first"):
        store.add("n", 1)


def test_wait_ends_at_its_limit_without_a_database() -> None:
    limits: list[float] = []

    class Away(MemoryEngine):
        def read(self, keys: Sequence[str], deadline: Deadline) -> Entries:
            limits.append(deadline.timeout)
            raise StoreConnectionError("away")

    store = EngineStore(Away())
    for call in (lambda: store.get("x", 2), lambda: store.get("x", 0), lambda: store.check(["x"])):
        with pytest.raises(StoreConnectionError):
            call()
    assert limits == [pytest.approx(2, abs=0.1), 0, engine_store.RETRY_SECONDS]


def test_late_watcher_sees_a_deletion_once() -> None:
    engine = MemoryEngine()
    store = EngineStore(engine)
    store.set("key", b"1")
    version, _ = store.watch("key")
    store.delete_key("key")
    deleted, value = store.watch("key", version)
    assert (deleted > version, value) == (True, None)
    mark = engine.read(["t/key"], Deadline(1))["t/key"]
    engine.commit({"t/key": mark}, {"t/key": None}, Deadline(1))  # as if it had expired
    forgotten, value = store.watch("key", version)
    assert (forgotten > deleted, value) == (True, None)
    with pytest.raises(StoreTimeoutError, match=f"no change after version {forgotten}"):
        store.watch("key", forgotten, timeout=0.05)
    with pytest.raises(StoreTimeoutError):
        store.watch("never", 0, timeout=0.05)


def test_waiting_for_many_keys_wakes_for_each() -> None:
    engine = Counting()
    store, keys = EngineStore(engine), [f"k{n}" for n in range(20)]
    waiting = in_thread(EngineStore(engine).wait, keys, 10)
    for key in reversed(keys):
        store.set(key, b"")
    assert waiting.result(10) is None
    assert engine.reads <= 3 * len(keys)


def test_foreign_value_is_named() -> None:
    engine = MemoryEngine()
    engine.commit({"k/x": None}, {"k/x": b"?"}, Deadline(1))
    with pytest.raises(StoreError, match="the key 'x' holds a value that no store has written"):
        EngineStore(engine).get("x")


def test_keys_of_every_request() -> None:
    assert keys_of(p.Pipeline([p.Set("a", b""), p.Check(["b", "a"])])) == ["a", "b"]
    assert keys_of(p.MultiSet([("a", b""), ("a", b"")])) == ["a"]
    with pytest.raises(StoreValueError, match="NumKeys cannot be part of a pipeline"):
        keys_of(p.Pipeline([p.NumKeys("")]))


def test_two_stores_of_one_database_in_threads() -> None:
    store = EngineStore(MemoryEngine())
    running = [in_thread(lambda: [store.add("n", 1) for _ in range(100)]) for _ in range(4)]
    sums = sorted(number for each in running for number in each.result(20))
    assert sums == list(range(1, 401))
    assert threading.active_count() < 20
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sums)) == sums
