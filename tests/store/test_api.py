"""The calls of `Store`: which request each makes, and what it makes of the answer."""

from datetime import timedelta
from typing import Any

import pytest

from rallypoint.errors import ParameterError, StoreValueError
from rallypoint.net import protocol as p
from rallypoint.store.api import DEFAULT_TIMEOUT_SECONDS, Store, as_key, as_value


class Recorder(Store):
    """Keeps the last request and limit, and answers what it was told to."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.seen: list[tuple[Any, float]] = []

    def _call(self, request: p.StoreRequest, timeout: float) -> Any:
        self.seen.append((request, timeout))
        return self.answer

    def clone(self) -> Store:
        return Recorder(self.answer)


D = DEFAULT_TIMEOUT_SECONDS


@pytest.mark.parametrize(
    ("method", "args", "answer", "request_", "limit", "result"),
    [
        ("set", (b"k", "v"), None, p.Set("k", b"v"), D, None),
        ("get", ("k",), b"v", p.Get("k", D), D, b"v"),
        ("get", ("k", timedelta(seconds=2)), b"v", p.Get("k", 2.0), 2.0, b"v"),
        ("get", ("k", -1), b"v", p.Get("k", 0.0), 0.0, b"v"),
        ("get_nowait", ("k", b"d"), None, p.Peek("k"), D, b"d"),
        ("get_nowait", ("k", b"d"), b"", p.Peek("k"), D, b""),
        ("add", ("k", True), 1, p.Add("k", 1), D, 1),
        ("compare_set", ("k", "a", "b"), None, p.CompareSet("k", b"a", b"b"), D, b"a"),
        ("compare_set", ("k", "", "b"), b"b", p.CompareSet("k", b"", b"b"), D, b"b"),
        ("compare_and_swap", ("k", None, "b"), [True, b"b"],
         p.CompareSwap("k", None, b"b"), D, (True, b"b")),
        ("compare_and_swap", ("k", "a", "b"), [False, None],
         p.CompareSwap("k", b"a", b"b"), D, (False, None)),
        ("delete_key", ("k",), True, p.Delete("k"), D, True),
        ("append", ("k", "v"), None, p.Append("k", b"v"), D, None),
        ("watch", ("k", 3, 1), [4, None], p.Watch("k", 3, 1.0), 1.0, (4, None)),
        ("check", (iter("ab"),), True, p.Check(["a", "b"]), D, True),
        ("wait", (["a", b"b"], 1), None, p.Wait(["a", "b"], 1.0), 1.0, None),
        ("num_keys", (), 3, p.NumKeys(""), D, 3),
        ("list", ("a",), ["ab"], p.List("a"), D, ["ab"]),
        ("multi_get", (["a"], 1), [b""], p.MultiGet(["a"], 1.0), 1.0, [b""]),
        ("multi_set", (["a"], ["b"]), None, p.MultiSet([("a", b"b")]), D, None),
        ("queue_push", ("q", "v"), None, p.QueuePush("q", b"v"), D, None),
        ("queue_pop", ("q",), b"v", p.QueuePop("q", D), D, b"v"),
        ("queue_pop", ("q", False, 9), b"v", p.QueuePop("q", 0.0), 0.0, b"v"),
        ("queue_len", ("q",), 2, p.QueueLen("q"), D, 2),
        ("barrier", ("b", 2, 1), None, p.Gather("b:b", 2, None, b"", False, 1.0), 1.0, None),
        ("all_gather", ("g", "v", 1, 2, 1), [b"", b"v"],
         p.Gather("g:g", 2, 1, b"v", True, 1.0), 1.0, [b"", b"v"]),
        ("broadcast", ("c", "v", 0, 2, 1), [b"v"],
         p.Gather("c:c", 2, 0, b"v", True, 1.0, True), 1.0, b"v"),
        ("broadcast", ("c", "ignored", 1, 2, 1), [b"v"],
         p.Gather("c:c", 2, 1, b"", True, 1.0, True), 1.0, b"v"),
    ],
)  # fmt: skip
def test_each_call_is_one_request(
    method: str, args: tuple[Any, ...], answer: Any, request_: Any, limit: float, result: Any
) -> None:
    store = Recorder(answer)
    assert getattr(store, method)(*args) == result
    assert store.seen == [(request_, limit)]


def test_wrong_arguments_are_refused_without_a_request() -> None:
    store = Recorder()
    with pytest.raises(ParameterError, match="2 keys but 1 values"):
        store.multi_set(["a", "b"], [b""])
    with pytest.raises(ParameterError, match="rank 0 must give a value"):
        store.broadcast("c", None, 0, 2)
    for wrong in (0, -1, float("nan"), timedelta(0)):
        with pytest.raises(ParameterError, match="must be above zero"):
            store.set_timeout(wrong)
    assert store.seen == []


def test_timeout() -> None:
    store = Recorder(b"")
    assert store.timeout == timedelta(seconds=300)
    store.set_timeout(timedelta(seconds=1.5))
    assert store.timeout == timedelta(seconds=1.5)
    store.get("k")
    assert store.seen == [(p.Get("k", 1.5), 1.5)]


@pytest.mark.parametrize(
    ("given", "key"), [("k", "k"), (b"k\xc3\xa9", "k\u00e9"), ("k\u00e9", "k\u00e9"), ("", "")]
)
def test_keys(given: str | bytes, key: str) -> None:
    assert as_key(given) == key


@pytest.mark.parametrize("given", [b"\xff", "\ud800"])
def test_binary_keys(given: str | bytes) -> None:
    with pytest.raises(StoreValueError, match="is not UTF-8"):
        as_key(given)


@pytest.mark.parametrize("given", [b"ab", "ab", bytearray(b"ab"), memoryview(b"ab")])
def test_values(given: Any) -> None:
    value = as_value(given, "k")
    assert (type(value), value) == (bytes, b"ab")


@pytest.mark.parametrize("wrong", [5, 1.5, None, [1]])
def test_values_and_keys_of_other_types_are_refused(wrong: Any) -> None:
    kind = type(wrong).__name__
    with pytest.raises(StoreValueError, match=f"the value of key 'k' is of type {kind}"):
        Recorder([]).set("k", wrong)
    with pytest.raises(StoreValueError, match=f"of type {kind}; allowed: str or bytes"):
        Recorder([]).set(wrong, b"")


def test_pipeline_sends_one_request() -> None:
    store = Recorder([None, [True, b"y"]])
    with store.pipeline() as pipe:
        pipe.set("a", "1").compare_and_swap("b", None, "y")
        assert store.seen == []
    request = p.Pipeline([p.Set("a", b"1"), p.CompareSwap("b", None, b"y")])
    assert store.seen == [(request, D)]
    assert pipe.results == [None, (True, b"y")]


def test_pipeline_collects_every_plain_call() -> None:
    store = Recorder([None] * 7)
    pipe = store.pipeline().get_nowait("k").add("k", 1).append("k", "v").check(["k"])
    pipe.compare_and_swap("k", "a", "b")
    store.answer = [None, 1, None, True, [False, b""], True, None]
    results = pipe.delete_key("k").queue_push("q", "v").execute()
    assert results == [None, 1, None, True, (False, b""), True, None]
    assert store.seen[0][0] == p.Pipeline(
        [
            p.Peek("k"), p.Add("k", 1), p.Append("k", b"v"), p.Check(["k"]),
            p.CompareSwap("k", b"a", b"b"), p.Delete("k"), p.QueuePush("q", b"v"),
        ]
    )  # fmt: skip


def test_pipeline_without_calls_or_with_an_error_sends_nothing() -> None:
    store = Recorder()
    assert store.pipeline().execute() == []
    pipe = store.pipeline().set("a", b"")
    with pytest.raises(KeyError), pipe:
        raise KeyError
    assert store.seen == []


def test_store_without_resources_is_a_context_manager() -> None:
    with Recorder() as store:
        assert isinstance(store, Recorder)
