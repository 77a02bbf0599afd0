"""The host of a store on a loop with manual time: calls once, parked, forgotten."""

import asyncio
from typing import Any, cast

import msgspec
import pytest
from tests.server.fakes import FakeLoop

from rallypoint.net import protocol as p
from rallypoint.server.options import Options
from rallypoint.server.store_host import SPARE, StoreHost, TimerQueue

_decoder = msgspec.msgpack.Decoder(p.Reply | p.Failure)


class Peer:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, data: bytes) -> None:
        self.sent.append(_decoder.decode(data[4:]))

    send_at_once = send

    def take(self) -> list[Any]:
        sent, self.sent = self.sent, []
        return sent


class Desk:
    """A store with one client."""

    def __init__(self, **limits: Any) -> None:
        self.loop = FakeLoop()
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.store = StoreHost(loop, Options(**{"store_limit": 1 << 20} | limits))
        self.peer = Peer()
        assert not self.store.attach(b"c", self.peer)

    def call(self, number: int, request: p.StoreRequest, low: int = 1, *acked: int) -> list[Any]:
        self.store.call(b"c", p.Call(number, low, request, acked))
        return self.peer.take()

    def reconnect(self) -> bool:
        self.store.detach(b"c", self.peer, for_good=False)
        self.peer = Peer()
        return self.store.attach(b"c", self.peer)


def test_repeated_call_takes_effect_once() -> None:
    desk = Desk()
    assert desk.call(1, p.Add("n", 5)) == [p.Reply(1, 5)]
    assert desk.reconnect()
    assert desk.call(1, p.Add("n", 5)) == [p.Reply(1, 5)]
    assert desk.call(2, p.Peek("n")) == [p.Reply(2, b"5")]
    assert desk.store.calls == 2


def test_two_stores_never_number_records_alike() -> None:
    assert Desk().store.record(b"c") != Desk().store.record(b"c")


def test_waiting_call_with_an_effect_takes_effect_once() -> None:
    desk = Desk()
    assert desk.call(1, p.QueuePop("q", 60.0)) == []
    other = Peer()
    desk.store.attach(b"other", other)
    desk.store.call(b"other", p.Call(1, 1, p.QueuePush("q", b"x")))
    assert desk.peer.take() == [p.Reply(1, b"x")]
    assert desk.reconnect()  # the answer was lost on the way
    assert desk.call(1, p.QueuePop("q", 60.0)) == [p.Reply(1, b"x")]


def test_results_are_dropped_once_acknowledged() -> None:
    desk = Desk()
    client = desk.store.clients[b"c"]
    for number in range(1, 6):
        desk.call(number, p.Add("n", 1))
    assert list(client.results) == [1, 2, 3, 4, 5]
    desk.call(6, p.Add("n", 1), 4)
    assert list(client.results) == [4, 5, 6]
    desk.call(7, p.Add("n", 1), 4, 5, 6)  # 4 still waits, those above it are done
    assert list(client.results) == [4, 7]


def test_results_without_an_effect_are_not_kept() -> None:
    desk = Desk()
    assert desk.call(1, p.Get("later", 60.0)) == []
    desk.call(2, p.Set("later", b"x" * 1000))
    desk.call(3, p.Get("later", 60.0))
    assert set(desk.store.clients[b"c"].results) == {2}


def test_parked_calls_are_cancelled_with_the_connection() -> None:
    desk = Desk()
    desk.call(1, p.Get("later", 60.0))
    desk.call(2, p.QueuePop("q", 60.0))
    assert (desk.store.keys.parked, desk.loop.pending) == (2, 1)
    desk.store.detach(b"c", desk.peer, for_good=False)
    assert (desk.store.keys.parked, desk.loop.pending) == (0, 0)


def test_wait_ends_at_its_timeout() -> None:
    desk = Desk()
    assert desk.call(1, p.Get("later", 5.0)) == []
    assert desk.call(1, p.Get("later", 5.0)) == []  # sent twice, parked once
    desk.loop.advance(5.2)
    (failure,) = desk.peer.take()
    assert (failure.id, failure.code) == (1, p.FAIL_TIMEOUT)
    assert "'later'" in failure.text
    assert desk.loop.pending == 0


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, float("nan"), -1.0])
def test_any_timeout_is_accepted(timeout: float) -> None:
    desk = Desk()
    desk.call(1, p.Get("later", timeout))
    desk.call(2, p.Set("later", b"x"))
    assert desk.call(3, p.Get("later", timeout)) == [p.Reply(3, b"x")]


def test_failures_have_codes() -> None:
    desk = Desk(store_limit=1000)
    desk.call(1, p.Set("word", b"x"))
    (value,) = desk.call(2, p.Add("word", 1))
    (limit,) = desk.call(3, p.Set("big", b"x" * 2000))
    (timeout,) = desk.call(4, p.Get("missing", 0.0))
    codes = [failure.code for failure in (value, limit, timeout)]
    assert codes == [p.FAIL_VALUE, p.FAIL_LIMIT, p.FAIL_TIMEOUT]


def test_answer_above_the_frame_limit_is_a_failure() -> None:
    desk = Desk(frame_limit=1000)
    desk.call(1, p.Set("a", b"x" * 600))
    assert desk.call(2, p.MultiGet(["a"], 1.0)) == [p.Reply(2, [b"x" * 600])]
    (failure,) = desk.call(3, p.MultiGet(["a", "a"], 1.0))
    assert failure.code == p.FAIL_LIMIT
    assert "fewer keys" in failure.text


def test_client_with_a_goodbye_is_forgotten_at_once_others_later() -> None:
    desk = Desk()
    other = Peer()
    desk.store.attach(b"other", other)
    desk.store.detach(b"other", other, for_good=True)
    assert set(desk.store.clients) == {b"c"}
    desk.store.call(b"other", p.Call(1, 1, p.Peek("k")))  # late, on another connection
    desk.store.detach(b"c", desk.peer, for_good=False)
    desk.store.forget(desk.loop.now - 60)
    assert set(desk.store.clients) == {b"c"}
    desk.store.forget(desk.loop.now + 1)
    assert desk.store.is_unused
    assert not desk.store.attach(b"c", desk.peer)  # not known any more


def test_replaced_connection_ends_without_effect() -> None:
    desk = Desk()
    old, new = desk.peer, Peer()
    assert desk.store.attach(b"c", new)
    desk.store.call(b"c", p.Call(1, 1, p.Get("k", 60.0)))
    desk.store.detach(b"c", old, for_good=True)
    assert desk.store.keys.parked == 1
    desk.store.call(b"c", p.Call(2, 1, p.Set("k", b"v")))
    assert new.take() == [p.Reply(2, None), p.Reply(1, b"v")]


# -- many deadlines on one timer --------------------------------------------------------------


class TimerDesk:
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
    desk = TimerDesk()
    for key, seconds in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        desk.deadlines.add(key, seconds)
    assert desk.loop.pending == 1
    assert desk.wait(0.9) == []
    assert desk.wait(0.2) == ["a"]
    assert desk.wait(5.0) == ["b", "c"]
    assert (desk.loop.pending, len(desk.deadlines)) == (0, 0)


def test_removed_key_is_never_due() -> None:
    desk = TimerDesk()
    desk.deadlines.add("a", 1.0)
    desk.deadlines.add("b", 2.0)
    desk.deadlines.remove("a")
    desk.deadlines.remove("nobody")
    assert desk.wait(1.5) == []
    assert desk.wait(1.0) == ["b"]


def test_key_added_again_has_only_its_new_time() -> None:
    desk = TimerDesk()
    desk.deadlines.add("a", 1.0)
    desk.deadlines.remove("a")
    desk.deadlines.add("a", 3.0)
    assert desk.wait(2.0) == []
    assert desk.wait(1.5) == ["a"]


def test_key_added_by_a_due_key_is_due_in_its_time() -> None:
    desk = TimerDesk()
    desk.ended = lambda key: desk.deadlines.add("next", 1.0) if key == "a" else None  # type: ignore[method-assign]
    deadlines = TimerQueue[str](cast(asyncio.AbstractEventLoop, desk.loop), lambda k: desk.ended(k))
    desk.deadlines = deadlines
    deadlines.add("a", 1.0)
    desk.wait(1.0)
    assert len(deadlines) == 1
    desk.wait(1.0)
    assert len(deadlines) == 0


def test_early_timer_is_set_again() -> None:
    desk = TimerDesk()
    desk.deadlines.add("a", 1.0)
    desk.deadlines._ring()
    assert desk.loop.pending == 2  # the one it stands for has not rung yet
    assert desk.wait(1.0) == ["a"]


def test_removed_keys_leave_nothing_behind() -> None:
    desk = TimerDesk()
    desk.deadlines.add("stays", 300.0)
    for number in range(10_000):
        desk.deadlines.add(str(number), 300.0)
        desk.deadlines.remove(str(number))
    assert len(desk.deadlines) == 1
    assert len(desk.deadlines._heap) <= SPARE + 3
    assert desk.loop.pending == 1
    desk.deadlines.remove("stays")
    assert (len(desk.deadlines), len(desk.deadlines._heap), desk.loop.pending) == (0, 0, 0)
