"""Many deadlines on one timer: each key once, in order, and no removed key."""

import asyncio
from typing import cast

from tests.server.fakes import FakeLoop

from rallypoint.server.timer_queue import SPARE, TimerQueue


class Desk:
    """TimerQueue on a loop whose time the test moves."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.over: list[str] = []
        self.deadlines = TimerQueue[str](cast(asyncio.AbstractEventLoop, self.loop), self.ended)

    def ended(self, key: str) -> None:
        self.over.append(key)

    def wait(self, seconds: float) -> list[str]:
        self.loop.now += seconds
        self.loop.turn()
        over, self.over = self.over, []
        return over


def test_each_key_is_due_in_its_time() -> None:
    desk = Desk()
    for key, seconds in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        desk.deadlines.add(key, seconds)
    assert desk.loop.pending == 1
    assert desk.wait(0.9) == []
    assert desk.wait(0.2) == ["a"]
    assert desk.wait(5.0) == ["b", "c"]
    assert (desk.loop.pending, len(desk.deadlines)) == (0, 0)


def test_removed_key_is_never_due() -> None:
    desk = Desk()
    desk.deadlines.add("a", 1.0)
    desk.deadlines.add("b", 2.0)
    desk.deadlines.remove("a")
    desk.deadlines.remove("nobody")
    assert desk.wait(1.5) == []
    assert desk.wait(1.0) == ["b"]


def test_key_added_again_has_only_its_new_time() -> None:
    desk = Desk()
    desk.deadlines.add("a", 1.0)
    desk.deadlines.remove("a")
    desk.deadlines.add("a", 3.0)
    assert desk.wait(2.0) == []
    assert desk.wait(1.5) == ["a"]


def test_key_added_by_a_due_key_is_due_in_its_time() -> None:
    desk = Desk()
    desk.ended = lambda key: desk.deadlines.add("next", 1.0) if key == "a" else None  # type: ignore[method-assign]
    deadlines = TimerQueue[str](cast(asyncio.AbstractEventLoop, desk.loop), lambda k: desk.ended(k))
    desk.deadlines = deadlines
    deadlines.add("a", 1.0)
    desk.wait(1.0)
    assert len(deadlines) == 1
    desk.wait(1.0)
    assert len(deadlines) == 0


def test_early_timer_is_set_again() -> None:
    desk = Desk()
    desk.deadlines.add("a", 1.0)
    desk.deadlines._ring()
    assert desk.loop.pending == 2  # the one it stands for has not rung yet
    assert desk.wait(1.0) == ["a"]


def test_removed_keys_leave_nothing_behind() -> None:
    desk = Desk()
    desk.deadlines.add("stays", 300.0)
    for number in range(10_000):
        desk.deadlines.add(str(number), 300.0)
        desk.deadlines.remove(str(number))
    assert len(desk.deadlines) == 1
    assert len(desk.deadlines._heap) <= SPARE + 3
    assert desk.loop.pending == 1
    desk.deadlines.remove("stays")
    assert (len(desk.deadlines), len(desk.deadlines._heap), desk.loop.pending) == (0, 0, 0)
