"""Groups on an engine: who is held up, dies, comes too late."""

import threading
import time
from typing import Any

import pytest

from rallypoint.deadline import Deadline
from rallypoint.engines import groups
from rallypoint.engines.store import EngineStore
from rallypoint.errors import StoreConnectionError, StoreError, StoreTimeoutError
from rallypoint.testing.fakes import ManualClock, MemoryEngine
from rallypoint.testing.store_handles import after_a_moment, in_thread


def keys(engine: MemoryEngine) -> list[str]:
    return engine.scan("", Deadline(1))


def test_many_members_at_once() -> None:
    engine = MemoryEngine()
    stores = [EngineStore(engine.clone()) for _ in range(32)]
    for turn in range(3):
        running = [
            in_thread(store.all_gather, "g", f"{turn}.{rank}", rank, 32, 20)
            for rank, store in enumerate(stores)
        ]
        values = [f"{turn}.{rank}".encode() for rank in range(32)]
        assert all(each.result(20) == values for each in running)


def test_open_group_leaves_only_expiring_keys() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    store = EngineStore(engine)
    waiting = after_a_moment(in_thread(store.barrier, "b", 2, 10, 0))
    store.barrier("b", 2, 10, 1)
    waiting.result(10)
    assert [key for key in keys(engine) if key[0] in "gk"] == []
    clock.advance(groups.ANSWER_SECONDS + 1)
    assert keys(engine) == []


def test_dead_members_are_not_counted() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    store = EngineStore(engine)
    after_a_moment(in_thread(store.barrier, "b", 3, 1.0, 0))
    with engine._data.changed:  # member 0 has died: it neither beats nor leaves
        engine._data.ends = dict.fromkeys(engine._data.ends, clock())
    with pytest.raises(StoreTimeoutError, match=r"1 of 3 .*missing ranks: 0, 2"):
        store.barrier("b", 3, 0, 1)


def test_delayed_member_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "BEAT_SECONDS", 0.05)
    clock = ManualClock()
    engine = MemoryEngine(clock)
    store = EngineStore(engine)
    waiting = after_a_moment(in_thread(store.barrier, "b", 2, 10, 0))
    clock.advance(groups.PRESENCE_SECONDS + 1)  # nobody has come meanwhile
    time.sleep(0.2)
    store.barrier("b", 2, 5, 1)
    waiting.result(10)


def test_member_taken_for_dead_is_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "BEAT_SECONDS", 0.3)
    clock = ManualClock()
    engine = MemoryEngine(clock)
    store = EngineStore(engine)
    waiting = after_a_moment(in_thread(store.barrier, "b", 3, 10, 0))
    clock.advance(groups.PRESENCE_SECONDS + 1)
    second = in_thread(store.barrier, "b", 3, 10, 1)
    with pytest.raises(StoreError, match="considered dead"):
        waiting.result(5)
    third = in_thread(store.barrier, "b", 3, 10, 2)
    store.barrier("b", 3, 10, 0)
    second.result(10)
    third.result(10)


def test_answer_at_the_deadline_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = MemoryEngine()
    store = EngineStore(engine)
    real = groups.GroupCalls._leave

    def last_moment(self: Any, *args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        EngineStore(engine).barrier("b", 2, 5, 1)
        return real(self, *args, **options)

    monkeypatch.setattr(groups.GroupCalls, "_leave", last_moment)
    store.barrier("b", 2, 0.05, 0)


def test_interrupted_member_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = EngineStore(MemoryEngine())

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(groups.GroupCalls, "_await", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.barrier("b", 2, 5, 0)
    with pytest.raises(StoreTimeoutError, match="missing ranks: 0"):
        store.barrier("b", 2, 0, 1)


def test_database_goes_away_during_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = MemoryEngine()
    store = EngineStore(engine)

    def away(*_: Any) -> None:
        raise StoreConnectionError("away")

    monkeypatch.setattr(engine, "wait", away)
    with pytest.raises(StoreConnectionError, match="away"):
        store.barrier("b", 2, 5, 0)
    assert threading.active_count() < 20
