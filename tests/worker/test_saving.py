"""The agreement on steps to save at, with ranks that interleave in every way."""

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.net import protocol as p
from rallypoint.store.api import Store
from rallypoint.store.memory import MemoryStore
from rallypoint.worker import saving
from rallypoint.worker.change import ChangeKind, PendingChange
from rallypoint.worker.saving import (
    BLOCK_SECONDS,
    PLAN_KEY,
    REQUESTS_PER_SECOND,
    SAVED,
    Saving,
    release_key,
)


def change(number: int = 1, seconds: float = 60.0) -> PendingChange:
    return PendingChange(number, ChangeKind.JOINING, "1 node", "1 node waits", seconds)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Counted(Store):
    """Counts the requests, and may do something before each: whatever others do meanwhile."""

    def __init__(self, store: Store, before: Callable[[], None] = lambda: None) -> None:
        self.requests = 0
        self._store, self._before = store, before

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        self.requests += 1
        self._before()
        return self._store._call(request, timeout)

    def clone(self) -> Store:
        raise NotImplementedError


class Rank:
    """One rank: it goes through the steps, and notes what it was answered."""

    def __init__(self, world: "World", number: int, stride: int) -> None:
        self.world, self.stride = world, stride
        self.knows: PendingChange | None = None
        self.clock = Clock()
        self.answers: dict[int, bool] = {}
        self.busy = False
        store = Counted(world.store, self.meanwhile)
        self.saving = Saving(store, 99, lambda: self.knows, self.clock)

    def meanwhile(self) -> None:
        """Between two requests of this rank others may run, one within the other."""
        if self.world.depth < 4:
            self.world.depth += 1
            self.world.move(self.world.random.randrange(3))
            self.world.depth -= 1

    def step(self) -> None:
        if not self.busy:
            self.busy = True
            number = (max(self.answers) + self.stride) if self.answers else 0
            self.clock.now += self.world.random.choice([0.0, 0.001, 0.05, 0.3, 2.0])
            self.answers[number] = self.saving.should_save(number)
            self.busy = False


class World:
    """Ranks of one round, moved in an order that a seed decides."""

    def __init__(self, seed: int, size: int, strides: tuple[int, ...] = (1,)) -> None:
        self.random = random.Random(seed)
        self.store = MemoryStore()
        self.depth = 0
        self.news = True  # whether ranks learn of changes at random
        self.ranks = [Rank(self, number, self.random.choice(strides)) for number in range(size)]

    def move(self, times: int) -> None:
        for _ in range(times):
            rank = self.random.choice(self.ranks)
            if self.news and self.random.random() < 0.05:
                known = rank.knows
                rank.knows = change(1 if known is None else known.number + 1)
            elif self.news and self.random.random() < 0.02:
                rank.knows = None
            rank.step()

    def agree(self) -> set[int]:
        """Check that no step was answered in two ways; return the steps to save at."""
        answers: dict[int, set[bool]] = {}
        for rank in self.ranks:
            for step, answer in rank.answers.items():
                answers.setdefault(step, set()).add(answer)
        differing = {step for step, given in answers.items() if len(given) > 1}
        assert not differing
        return {step for step, given in answers.items() if given == {True}}


@given(st.integers(0, 2**32), st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_every_rank_has_the_same_answer_for_the_same_step(seed: int, size: int) -> None:
    world = World(seed, size)
    world.move(400)
    world.agree()


@given(st.integers(0, 2**32), st.integers(2, 5))
@settings(max_examples=75, deadline=None)
def test_ranks_with_fewer_steps_agree_too(seed: int, size: int) -> None:
    world = World(seed, size, strides=(1, 3, 10))
    world.move(300)
    world.agree()


def test_change_known_to_one_rank_makes_all_save_once() -> None:
    for seed, who in itertools.product(range(10), range(3)):
        world = World(seed, 3)
        ranks, world.news = world.ranks, False
        ranks[who].knows = change()
        world.move(300)
        last = min(max(rank.answers) for rank in ranks)
        assert len([step for step in world.agree() if step <= last]) == 1


def test_ranks_agree_when_the_informed_one_is_last() -> None:
    store = MemoryStore()
    first, last = Saving(store, 2, lambda: None, Clock()), Saving(store, 2, change, Clock())
    answers = [(first.should_save(step), last.should_save(step)) for step in range(5)]
    assert answers == [(False, False), (True, True), *[(False, False)] * 3]


def test_ranks_as_threads_agree() -> None:
    store, answers = MemoryStore(), []
    known: list[PendingChange | None] = [None]

    def one() -> None:
        rank = Saving(store, 8, lambda: known[0])
        answers.append([rank.should_save(step) for step in range(2000)])

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    known[0] = change()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 8
    assert all(answer == answers[0] for answer in answers)


def test_one_request_per_half_second() -> None:
    clock, store = Clock(), Counted(MemoryStore())
    rank = Saving(store, 1, lambda: None, clock)
    for step in range(20_000):
        rank.should_save(step)
        clock.now += 0.001
    lasted = 20_000 * 0.001
    assert store.requests <= lasted / BLOCK_SECONDS + 12  # short blocks at first: 1, 2, 4 ...


def test_many_ranks_poll_less_often() -> None:
    clock, store = Clock(), Counted(MemoryStore())
    rank = Saving(store, 10_000, lambda: None, clock)
    for step in range(1000):
        rank.should_save(step)
        clock.now += 0.05
    assert store.requests <= 50 / (10_000 / REQUESTS_PER_SECOND) + 8


def test_slow_steps_are_agreed_one_by_one() -> None:
    clock, store = Clock(), Counted(MemoryStore())
    rank = Saving(store, 1, lambda: None, clock)
    for step in range(10):
        rank.should_save(step)
        clock.now += 3.0
    assert store.requests == 10


def test_save_is_agreed_within_one_block() -> None:
    clock, known = Clock(), [None, change()]
    rank = Saving(MemoryStore(), 1, lambda: known[clock.now >= 10.0], clock)
    answers = []
    for step in range(2000):
        answers.append(rank.should_save(step))
        clock.now += 0.01
    assert sum(answers) == 1
    assert 1000 <= answers.index(True) <= 1000 + BLOCK_SECONDS / 0.01


def test_store_usage_does_not_grow() -> None:
    store = MemoryStore()
    ranks = [Saving(store, 2, lambda: None, Clock()) for _ in range(2)]
    for step in range(100):
        for rank in ranks:
            rank.should_save(step)
    assert store.list() == [PLAN_KEY]


def test_same_step_has_the_same_answer() -> None:
    rank = Saving(MemoryStore(), 1, change)
    assert [rank.should_save(step) for step in (0, 0, 1, 0)] == [True, True, False, True]


def test_another_announcement_is_another_save() -> None:
    known = [change(1)]
    rank = Saving(MemoryStore(), 1, lambda: known[0])
    first = [rank.should_save(step) for step in range(3)]
    known[0] = change(2)
    assert first == [True, False, False]
    assert [rank.should_save(step) for step in range(3, 9)].count(True) == 1


def test_last_rank_to_save_notifies_the_agents() -> None:
    store = MemoryStore()
    ranks = [Saving(store, 2, change) for _ in range(2)]
    assert [rank.should_save(7) for rank in ranks] == [True, True]
    store.set(release_key(7), b"")
    ranks[0].saved(7)
    assert not store.check([SAVED])
    ranks[0].saved(7)  # counts once
    assert not store.check([SAVED])
    ranks[1].saved(7)
    assert store.get(SAVED) == b"7"


def test_rank_that_saved_waits_for_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    rank = Saving(store, 1, change)
    assert rank.should_save(0)
    waiting = threading.Thread(target=rank.saved, args=[0])
    waiting.start()
    assert store.get(SAVED, 10) == b"0"
    assert waiting.is_alive()
    store.set(release_key(0), b"")
    waiting.join(10)
    assert not waiting.is_alive()


def test_wait_ends_at_the_deadline_of_the_change() -> None:
    store = Counted(MemoryStore())
    monotonic_past = change(seconds=0.0)  # its time is over: the shortest wait
    rank = Saving(store, 1, lambda: monotonic_past)
    assert rank.should_save(0)
    rank.saved(0)
    assert store.requests == 4  # agree, count, tell, wait


def test_saved_does_not_report_regular_saves() -> None:
    store = Counted(MemoryStore())
    rank = Saving(store, 1, lambda: None)
    rank.saved(3)
    assert not rank.should_save(3)
    rank.saved(3)
    assert store.requests == 1
    assert saving.MIN_WAIT_SECONDS <= 1.0


def test_lost_plan_is_made_again() -> None:
    store = MemoryStore()
    ranks = [Saving(store, 2, lambda: None, Clock()) for _ in range(2)]
    for rank in ranks:
        assert not rank.should_save(0)
    store.delete_key(PLAN_KEY)
    assert [rank.should_save(1) for rank in ranks] == [False, False]
