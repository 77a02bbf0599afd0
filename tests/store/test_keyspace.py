"""The waiting half of the store semantics: tables of what is asked, and a naive model."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.errors import StoreLimitError, StoreTimeoutError, StoreValueError
from rallypoint.net import protocol as p
from rallypoint.store.keyspace import PARKED, Keyspace
from rallypoint.store.table import DELETED_KEPT

NOW, LATER = 0.0, 5.0


@pytest.fixture
def space() -> Keyspace:
    return Keyspace()


def do(space: Keyspace, *requests: Any) -> None:
    for request in requests:
        space.execute(request, "doer")


# -- waiting for keys -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "change", "result"),
    [
        (p.Get("k", LATER), p.Set("k", b"v"), b"v"),
        (p.Get("k", LATER), p.Add("k", 3), b"3"),
        (p.Get("k", LATER), p.Append("k", b"v"), b"v"),
        (p.Get("k", LATER), p.CompareSet("k", b"", b"v"), b"v"),
        (p.Get("k", LATER), p.CompareSwap("k", None, b"v"), b"v"),
        (p.Get("k", LATER), p.MultiSet([("a", b""), ("k", b"v")]), b"v"),
        (p.Get("k", LATER), p.Pipeline([p.Set("k", b"1"), p.Set("k", b"2")]), b"2"),
        (p.Wait(["k"], LATER), p.QueuePush("k", b"v"), None),
        (p.MultiGet(["k", "k"], LATER), p.Set("k", b"v"), [b"v", b"v"]),
        (p.QueuePop("k", LATER), p.QueuePush("k", b"v"), b"v"),
        (p.Watch("k", 0, LATER), p.Set("k", b"v"), (1, b"v")),
        (p.Watch("k", 0, LATER), p.QueuePush("k", b"v"), (1, None)),
    ],
)
def test_blocked_request_is_answered_by(
    space: Keyspace, request_: Any, change: Any, result: Any
) -> None:
    assert space.execute(request_, "t") is PARKED
    assert space.execute(request_, "t") is PARKED  # sent again: still parked once
    assert (space.parked, space.is_empty) == (1, False)
    assert space.completed() == []
    do(space, change)
    assert space.completed() == [("t", result)]
    assert space.completed() == []
    assert space.parked == 0
    assert space.expire("t") is None


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (p.Get("k", NOW), "get 'k': timed out after 0 s; 1 of 1 keys missing: 'k'"),
        (p.Wait(["there", "k", "j"], NOW), "wait: timed out.*2 of 3 keys missing: 'k', 'j'"),
        (p.MultiGet(["k"], NOW), "multi_get 'k'.*missing: 'k'"),
        (p.QueuePop("k", NOW), "queue_pop 'k'.*the queue is empty"),
        (p.Watch("there", 1, NOW), "watch 'there'.*no change after version 1"),
        (p.Gather("b:x", 3, 1, b"", False, NOW), "barrier 'x'.*1 of 3 .*missing ranks: 0, 2"),
        (p.Gather("b:x", 3, None, b"", False, NOW), "barrier 'x'.*1 of 3 members are here"),
        (p.Get("k", -1.0), "timed out"),
        (p.Get("k", float("nan")), "timed out"),
    ],
)
def test_timeout_0_does_not_block(space: Keyspace, request_: Any, text: str) -> None:
    do(space, p.Set("there", b""))
    with pytest.raises(StoreTimeoutError, match=text):
        space.execute(request_, "t")
    assert space.parked == 0


def test_expire_names_what_is_missing(space: Keyspace) -> None:
    space.execute(p.Wait(["a", "b"], 2.5), "t")
    do(space, p.Set("a", b""))
    error = space.expire("t")
    assert isinstance(error, StoreTimeoutError)
    assert "timed out after 2.5 s; 1 of 2 keys missing: 'b' (limit: " in str(error)
    do(space, p.Set("b", b""))
    assert space.completed() == []
    assert space._waiting == {}


def test_long_lists_of_missing_keys_are_shortened(space: Keyspace) -> None:
    with pytest.raises(StoreTimeoutError, match="'k19' and 80 more"):
        space.execute(p.Wait([f"k{n}" for n in range(100)], NOW), "t")


def test_cancel_forgets_silently(space: Keyspace) -> None:
    for token, request in enumerate(
        [p.Get("k", LATER), p.QueuePop("k", LATER), p.Watch("k", 0, LATER)]
    ):
        space.execute(request, token)
    for token in range(3):
        space.cancel(token)
        space.cancel(token)
    assert space.is_empty
    assert space._waiting == {}


def test_wait_needs_all_keys_at_the_same_time(space: Keyspace) -> None:
    space.execute(p.Wait(["a", "b", "c"], LATER), "t")
    do(space, p.Set("a", b""), p.Set("c", b""), p.Delete("a"), p.Set("b", b""))
    assert space.completed() == []
    do(space, p.Set("a", b""))
    assert space.completed() == [("t", None)]


def test_short_lived_key_wakes_no_waiter(space: Keyspace) -> None:
    space.execute(p.Get("k", LATER), "t")
    do(space, p.Pipeline([p.Set("k", b""), p.Delete("k")]))
    assert space.completed() == []
    assert space.parked == 1


def test_get_keeps_waiting_when_the_key_becomes_a_queue(space: Keyspace) -> None:
    space.execute(p.Get("k", LATER), "t")
    do(space, p.QueuePush("k", b""))
    assert space.completed() == []
    do(space, p.Delete("k"), p.Set("k", b"v"))
    assert space.completed() == [("t", b"v")]


def test_answers_come_in_order_of_arrival(space: Keyspace) -> None:
    for token, request in enumerate(
        [p.Watch("b", 0, LATER), p.Get("a", LATER), p.Wait(["b", "a"], LATER), p.Get("b", LATER)]
    ):
        space.execute(request, token)
    do(space, p.Set("a", b"1"), p.Set("b", b"2"))
    assert [token for token, _ in space.completed()] == [0, 1, 2, 3]


def test_waiters_of_one_key_do_not_slow_other_keys(space: Keyspace) -> None:
    for token in range(5000):
        space.execute(p.Get("popular", LATER), token)
    do(space, p.Set("other", b""))
    assert space._touched == {}
    assert space.completed() == []
    do(space, p.Set("popular", b"v"))
    assert space.completed() == [(token, b"v") for token in range(5000)]


# -- queues ---------------------------------------------------------------------------------


def test_values_go_to_poppers_in_order(space: Keyspace) -> None:
    for token in "abc":
        space.execute(p.QueuePop("q", LATER), token)
    space.cancel("b")
    do(space, p.Pipeline([p.QueuePush("q", b"1"), p.QueuePush("q", b"2"), p.QueuePush("q", b"3")]))
    assert space.completed() == [("a", b"1"), ("c", b"2")]
    assert space.execute(p.QueuePop("q", NOW), "d") == b"3"
    assert space.stored_bytes == 0


def test_push_wakes_one_popper(space: Keyspace) -> None:
    for token in range(3000):
        space.execute(p.QueuePop("q", LATER), token)
    for token in range(3000):
        do(space, p.QueuePush("q", b"%d" % token))
        assert space.completed() == [(token, b"%d" % token)]
    assert space.is_empty


# -- watching -------------------------------------------------------------------------------


def test_versions_grow_across_deletions(space: Keyspace) -> None:
    do(space, p.Set("k", b"1"))
    assert space.execute(p.Watch("k", 0, LATER), "t") == (1, b"1")
    assert space.execute(p.Watch("k", 1, LATER), "t") is PARKED
    do(space, p.Set("other", b""), p.Delete("k"))
    assert space.completed() == [("t", (3, None))]
    do(space, p.Set("k", b"2"))
    assert space.execute(p.Watch("k", 3, LATER), "t") == (4, b"2")


def test_watcher_of_a_future_version_waits(space: Keyspace) -> None:
    space.execute(p.Watch("k", 2, LATER), "t")
    do(space, p.Set("k", b"1"), p.Set("k", b"2"))
    assert space.completed() == []
    do(space, p.Set("k", b"3"))
    assert space.completed() == [("t", (3, b"3"))]


def test_deleted_keys_are_forgotten_after_a_limit(space: Keyspace) -> None:
    for number in range(DELETED_KEPT + 1):
        do(space, p.Set(f"k{number}", b""), p.Delete(f"k{number}"))
    assert len(space._deleted) == DELETED_KEPT
    assert space.execute(p.Watch("k1", 0, NOW), "t") == (4, None)
    assert space.execute(p.Watch("k0", 1, NOW), "t") == (2, None)  # who saw it learns it
    with pytest.raises(StoreTimeoutError):
        space.execute(p.Watch("never", 0, NOW), "t")


# -- groups ---------------------------------------------------------------------------------


def member(rank: int | None, name: str = "b:x", size: int = 3, **options: Any) -> p.Gather:
    options = {"value": b"", "collect": False, "timeout": LATER, **options}
    return p.Gather(name, size, rank, **options)


def test_complete_group_frees_its_name(space: Keyspace) -> None:
    for turn in range(2):
        for rank in (2, 0):
            request = member(rank, value=b"%d" % rank, collect=True)
            assert space.execute(request, (turn, rank)) is PARKED
            assert space.execute(request, (turn, rank)) is PARKED
        assert space.groups.members("b:x") == [(turn, 2), (turn, 0)]
        values = [b"0", b"1", b"2"]
        assert space.execute(member(1, value=b"1", collect=True), (turn, 1)) == values
        assert space.completed() == [((turn, 2), values), ((turn, 0), values)]
        assert (space.is_empty, space.stored_bytes) == (True, 0)
        assert space.groups.members("b:x") == []


def test_member_that_left_is_not_counted(space: Keyspace) -> None:
    space.execute(member(0), "a")
    space.execute(member(1), "b")
    space.cancel("a")
    assert space.execute(member(2), "c") is PARKED
    error = space.expire("c")
    assert "2 of 3 members are here; came but disconnected: 0" in str(error)
    assert space.execute(member(0), "a again") is PARKED
    assert space.execute(member(2), "c again") is None
    assert {token for token, _ in space.completed()} == {"a again", "b"}
    assert space.stored_bytes == 0


def test_refused_member_changes_nothing(space: Keyspace) -> None:
    space.execute(member(0), "a")
    before = space.stored_bytes
    with pytest.raises(StoreValueError, match="rank 0 is in it already"):
        space.execute(member(0), "b")
    assert (space.stored_bytes, space.parked) == (before, 1)


# -- limits and hosts -----------------------------------------------------------------------


def test_limits_apply_to_blocked_requests(space: Keyspace) -> None:
    long = "k" * 5000
    for request in (p.Get(long, LATER), p.QueuePop(long, LATER), member(0, name="b:" + long)):
        with pytest.raises(StoreLimitError, match="5"):
            space.execute(request, "t")
    small = Keyspace(limit_bytes=100)
    with pytest.raises(StoreLimitError, match="limit_bytes"):
        small.execute(member(0, value=b"x" * 100), "t")
    assert space.is_empty
    assert small.is_empty


# -- against a naive model ------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from([b"", b"1", b"x"])
PLAIN = st.one_of(
    st.builds(p.Set, KEYS, VALUES),
    st.builds(p.Delete, KEYS),
    st.builds(p.Append, KEYS, VALUES),
    st.builds(p.QueuePush, KEYS, VALUES),
    st.builds(p.Add, KEYS, st.integers(-2, 2)),
    st.builds(p.CompareSet, KEYS, VALUES, VALUES),
    st.builds(p.CompareSwap, KEYS, st.none() | VALUES, VALUES),
    st.builds(p.MultiSet, st.lists(st.tuples(KEYS, VALUES), max_size=3)),
)
WAITING = st.one_of(
    st.builds(p.Get, KEYS, st.just(LATER)),
    st.builds(p.Wait, st.lists(KEYS, max_size=3), st.just(LATER)),
    st.builds(p.MultiGet, st.lists(KEYS, max_size=3), st.just(LATER)),
    st.builds(p.QueuePop, KEYS, st.just(LATER)),
)
STEPS = st.one_of(
    PLAIN,
    WAITING,
    st.builds(p.Pipeline, st.lists(PLAIN, max_size=4)),
    st.tuples(st.sampled_from(["expire", "cancel"]), st.integers(0, 20)),
)


class Refused(Exception):
    pass


class Model:
    """The same meaning, as plainly as it can be put: look at everything after each step."""

    def __init__(self) -> None:
        self.data: dict[str, bytes | list[bytes]] = {}
        self.parked: dict[int, Any] = {}

    def of(self, key: str, kind: type) -> Any:
        value = self.data.get(key)
        if value is not None and not isinstance(value, kind):
            raise Refused
        return value

    def plain(self, request: Any) -> Any:
        kind = type(request).__name__
        steps: dict[str, Callable[[Any], Any]] = {
            "MultiSet": self.multi_set, "Pipeline": self.pipeline, "Add": self.add,
        }  # fmt: skip
        if kind in steps:
            return steps[kind](request)
        key = request.key
        if kind == "Delete":
            return self.data.pop(key, None) is not None
        if kind == "QueuePush":
            self.data[key] = [*(self.of(key, list) or []), request.value]
            return None
        old = self.of(key, bytes)
        if kind in ("Set", "Append"):
            self.data[key] = (old or b"" if kind == "Append" else b"") + request.value
            return None
        same = old == request.expected
        if kind == "CompareSet":
            if same or (old is None and request.expected == b""):
                self.data[key] = request.desired
            return self.data.get(key)
        if same:
            self.data[key] = request.desired
        return same, self.data.get(key)

    def add(self, request: p.Add) -> int:
        old = self.of(request.key, bytes)
        try:
            total = int(b"0" if old is None else old) + request.amount
        except ValueError:
            raise Refused from None
        self.data[request.key] = str(total).encode()
        return total

    def multi_set(self, request: p.MultiSet) -> None:
        for key, _ in request.pairs:
            self.of(key, bytes)
        self.data.update(request.pairs)

    def pipeline(self, request: p.Pipeline) -> list[Any]:
        before = {k: list(v) if isinstance(v, list) else v for k, v in self.data.items()}
        try:
            return [self.plain(each) for each in request.requests]
        except Refused:
            self.data = before
            raise

    def try_waiting(self, request: Any) -> tuple[bool, Any]:
        if isinstance(request, p.QueuePop):
            queue = self.data.get(request.key)
            if not isinstance(queue, list):
                return False, None
            value = queue.pop(0)
            if not queue:
                del self.data[request.key]
            return True, value
        keys = [request.key] if isinstance(request, p.Get) else request.keys
        values = [self.data.get(key) for key in keys]
        if isinstance(request, p.Wait):
            return None not in values, None
        there = all(isinstance(value, bytes) for value in values)
        return there, values[0] if isinstance(request, p.Get) else values

    def check_kind(self, request: Any) -> None:
        if isinstance(request, p.QueuePop):
            self.of(request.key, list)
        elif not isinstance(request, p.Wait):
            for key in [request.key] if isinstance(request, p.Get) else request.keys:
                self.of(key, bytes)

    def execute(self, request: Any, token: int) -> tuple[Any, list[tuple[int, Any]]]:
        done = []
        if isinstance(request, p.Get | p.Wait | p.MultiGet | p.QueuePop):
            self.check_kind(request)
            there, result = self.try_waiting(request)
            if not there:
                self.parked[token] = request
                result = PARKED
        else:
            result = self.plain(request)
        readers_first = sorted(self.parked, key=lambda t: isinstance(self.parked[t], p.QueuePop))
        for each in readers_first:
            there, answer = self.try_waiting(self.parked[each])
            if there:
                done.append((each, answer))
                del self.parked[each]
        return result, sorted(done, key=lambda pair: pair[0])


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_keyspace_matches_the_model(steps: list[Any]) -> None:
    space, model = Keyspace(), Model()
    for token, step in enumerate(steps):
        if isinstance(step, tuple):
            what, who = step
            there = model.parked.pop(who, None) is not None
            left = getattr(space, what)(who)
            assert (left is not None) == (there and what == "expire")
            continue
        try:
            expected: Any = model.execute(step, token)
        except Refused:
            with pytest.raises(StoreValueError):
                space.execute(step, token)
            assert space.completed() == []
        else:
            assert (space.execute(step, token), space.completed()) == expected
        check_books(space, model)


def check_books(space: Keyspace, model: Model) -> None:
    snapshot = space.snapshot()
    held = {key: value for key, _, value in snapshot["values"] + snapshot["queues"]}
    assert held == model.data
    assert space.parked == len(model.parked)
    assert not space._touched
    registered = [
        token
        for waiting in space._waiting.values()
        for table in (waiting.readers, waiting.poppers, waiting.watchers)
        for token in table
    ]
    assert sorted(registered) == sorted(model.parked)  # type: ignore[type-var]
    assert Keyspace.restore(snapshot).stored_bytes == space.stored_bytes
    assert set(space._versions) == set(held)
    assert not set(space._deleted) & set(held)
