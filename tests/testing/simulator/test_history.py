from typing import Any

import pytest

from rallypoint.net import protocol as p
from rallypoint.testing.simulator.history import UNKNOWN, Call, explain, is_linearizable


def call(asked: float, answered: float, request: Any, result: Any, client: str = "c") -> Call:
    return Call(client, request, asked, answered, result)


SET_A, SET_B, READ = p.Set("k", b"a"), p.Set("k", b"b"), p.Peek("k")


@pytest.mark.parametrize(
    ("result", "fits"), [(b"a", True), (b"b", True), (None, False), (b"c", False)]
)
def test_concurrent_writes_may_be_in_either_order(result: bytes | None, fits: bool) -> None:
    calls = [call(0, 2, SET_A, None), call(1, 3, SET_B, None), call(4, 5, READ, result)]
    assert is_linearizable(calls) is fits


def test_read_may_not_go_back_in_time() -> None:
    calls = [
        call(0, 9, SET_A, None),
        call(1, 2, READ, b"a"),
        call(3, 4, READ, None),
    ]
    assert not is_linearizable(calls)
    assert "no order of the calls about 'k'" in explain(calls)


def test_call_in_doubt_happened_at_most_once() -> None:
    doubt = Call("c", p.Add("k", 1), 0.0)
    assert doubt.result is UNKNOWN
    for seen in (1, 2):
        assert is_linearizable([doubt, call(1, 2, p.Add("k", 1), seen)])
    assert not is_linearizable([doubt, call(1, 2, p.Add("k", 1), 3)])


def test_each_queue_value_is_delivered_once() -> None:
    push, pop = p.QueuePush("q", b"x"), p.QueuePop("q", 1.0)
    once = [call(0, 1, push, None), call(0, 2, pop, b"x")]
    assert explain(once) == ""
    assert explain([*once, call(0, 3, pop, b"x", "d")])


def test_other_calls_have_a_model() -> None:
    calls = [
        call(0, 1, p.CompareSwap("k", None, b"1"), [True, b"1"]),
        call(2, 3, p.CompareSwap("k", b"x", b"2"), [False, b"1"]),
        call(4, 5, p.Append("k", b"0"), None),
        call(6, 7, p.Get("k", 1.0), b"10"),
        call(8, 9, p.Add("k", 5), 15),
        call(10, 11, p.Delete("k"), True),
        call(12, 13, p.Delete("k"), False),
        call(14, 15, READ, None),
    ]
    assert explain(calls) == ""
    with pytest.raises(TypeError, match="no model"):
        explain([call(0, 1, p.QueueLen("k"), 0)])


def test_equivalent_orders_are_checked_once() -> None:
    doubts = [Call("c", SET_A, 0.0) for _ in range(12)]  # 12! orders, and as many outcomes as 2
    assert not is_linearizable([*doubts, call(1, 2, READ, b"c")])


def test_append_and_pop_replace_values_of_another_kind() -> None:
    push, pop = p.QueuePush("k", b"x"), p.QueuePop("k", 1.0)
    assert explain([call(0, 1, p.Append("k", b"a"), None), call(2, 3, READ, b"a")]) == ""
    calls = [call(0, 1, push, None), call(2, 3, p.Append("k", b"a"), None), call(4, 5, READ, b"a")]
    assert explain(calls) == ""
    assert explain([call(0, 1, SET_A, None), call(2, 3, pop, b"a")])
    assert explain([call(0, 1, push, None), call(2, 3, pop, b"x"), call(4, 5, pop, b"x")])


def test_queue_keeps_its_values_in_order() -> None:
    calls = [call(i, i + 0.5, p.QueuePush("q", b"%d" % i), None) for i in range(2)]
    calls += [call(i + 2, i + 2.5, p.QueuePop("q", 1.0), b"%d" % i) for i in range(2)]
    assert explain(calls) == ""
    assert explain([call(0, 1, p.QueuePush("k", b"x"), None), call(2, 3, p.Add("k", 5), 5)]) == ""
