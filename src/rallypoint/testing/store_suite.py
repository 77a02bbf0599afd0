"""The conformance suite of the store contract (`rallypoint.store.api`), as a pytest class.

Write a store in a page. Subclass `Store`, carry out requests in `_call` (the easiest way is
to hand them to a `rallypoint.store.keyspace.Keyspace`), and prove it:

    class TestMyStore(StoreSuite):
        @pytest.fixture(autouse=True)
        def data(self, tmp_path):
            self.address = start_something(tmp_path)   # fresh data for each test

        def make_store(self):
            return MyStore(self.address)               # a new handle on that same data

Handles are closed after each test. Waits are bounded: a store that hangs fails, it does not
block the run. Needs pytest and hypothesis.
"""

import time
from datetime import timedelta
from itertools import permutations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rallypoint.errors import ParameterError, StoreTimeoutError, StoreValueError
from rallypoint.store.api import Store
from rallypoint.testing.store_handles import (
    PATIENCE_SECONDS,
    SHORT_SECONDS,
    StoreHandles,
    after_a_moment,
    in_thread,
)

EXAMPLES = 50


class KeyCases(StoreHandles):
    """Cases of the calls that concern keys."""

    # -- one key --------------------------------------------------------------------------

    def test_set_is_seen_by_every_handle(self) -> None:
        """An acknowledged write is what every later read sees."""
        one, two = self.handle(), self.handle()
        one.set("key", b"first")
        assert two.get("key") == b"first"
        two.set("key", "text")
        assert one.get("key") == b"text"
        assert one.get_nowait("key") == b"text"

    def test_keys_and_values_may_be_str_or_bytes(self) -> None:
        """A key is the same as str and as UTF-8 bytes; values come back as bytes."""
        store = self.handle()
        store.set(b"k\xc3\xa9y", "v\u00e9")
        assert store.get("k\u00e9y") == "v\u00e9".encode()
        store.set("mutable", bytearray(b"ab"))
        assert store.get(b"mutable") == b"ab"
        with pytest.raises(StoreValueError):
            store.set(b"\xff", b"")

    def test_any_bytes_survive(self) -> None:
        """case-F3: any bytes are a value: empty, NUL, what looks like a number."""
        store = self.handle()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.binary(max_size=300), st.binary(max_size=300))
        @example(b"", b"\0")
        @example(b"12", b"-1")
        @example(b"1e5", b"0x10")
        @example(b"\xff" * 300, b"")
        def check(value: bytes, other: bytes) -> None:
            store.set("any", value)
            assert store.get("any") == value
            assert store.compare_set("any", value, other) == other
            assert store.compare_and_swap("any", other, value) == (True, value)
            store.queue_push("any queue", value)
            assert store.queue_pop("any queue", block=False) == value

        check()

    def test_a_large_value(self) -> None:
        """A megabyte is a value like any other."""
        store = self.handle()
        value = bytes(range(256)) * 4096
        store.set("large", value)
        assert self.handle().get("large") == value

    def test_get_nowait_gives_the_default(self) -> None:
        """A missing key is None, or what the caller says; an empty value is a value."""
        store = self.handle()
        assert store.get_nowait("missing") is None
        assert store.get_nowait("missing", b"default") == b"default"
        store.set("empty", b"")
        assert store.get_nowait("empty", b"default") == b""

    def test_get_waits_for_another_thread(self) -> None:
        """`get` returns when somebody writes the key."""
        waiting = after_a_moment(self.start("get", "later", PATIENCE_SECONDS))
        self.handle().set("later", b"here")
        assert waiting.result(PATIENCE_SECONDS) == b"here"

    def test_get_times_out(self) -> None:
        """A wait ends at its limit, with StoreTimeoutError naming the key."""
        store = self.handle()
        began = time.monotonic()
        with pytest.raises(StoreTimeoutError, match="missing") as caught:
            store.get("missing", timeout=SHORT_SECONDS)
        assert isinstance(caught.value, TimeoutError)
        assert SHORT_SECONDS * 0.9 <= time.monotonic() - began < PATIENCE_SECONDS
        with pytest.raises(StoreTimeoutError):
            store.get("missing", timeout=0)
        with pytest.raises(StoreTimeoutError):
            store.get("missing", timeout=timedelta(milliseconds=1))

    def test_a_calls_timeout_does_not_leak(self) -> None:
        """case-F4: a call's own timeout holds for that call alone, on this and other handles."""
        store = self.handle()
        default = store.timeout
        with pytest.raises(StoreTimeoutError):
            store.get("missing", timeout=0.001)
        with pytest.raises(StoreTimeoutError):
            store.wait(["missing"], timeout=0.001)
        assert store.timeout == default
        waiting = after_a_moment(in_thread(store.get, "missing"))
        self.handle().set("missing", b"now")
        assert waiting.result(PATIENCE_SECONDS) == b"now"

    def test_set_timeout(self) -> None:
        """`set_timeout` is the limit of later calls that name none; zero is refused."""
        store = self.handle()
        store.set_timeout(SHORT_SECONDS)
        assert store.timeout == timedelta(seconds=SHORT_SECONDS)
        with pytest.raises(StoreTimeoutError):
            store.get("missing")
        with pytest.raises(ParameterError):
            store.set_timeout(0)

    def test_add(self) -> None:
        """`add` counts from 0, also downwards, and shares its text with get and set."""
        store = self.handle()
        assert store.add("n", 5) == 5
        assert store.add("n", -7) == -2
        assert store.get("n") == b"-2"
        store.set("n", b"40")
        assert self.handle().add("n", 2) == 42
        assert store.add("zero", 0) == 0
        assert store.check(["zero"])

    @pytest.mark.parametrize("text", [b"", b"x", b"1.5", b"1 ", b"1_0", b"9" * 30])
    def test_add_to_what_is_no_integer(self, text: bytes) -> None:
        """`add` on another value names the key and changes nothing."""
        store = self.handle()
        store.set("word", text)
        with pytest.raises(StoreValueError, match="word"):
            store.add("word", 1)
        assert store.get("word") == text

    def test_add_loses_nothing(self) -> None:
        """Sums of concurrent adds are all different and nothing is lost."""
        each, handles = 50, [self.handle() for _ in range(4)]

        def count(store: Store) -> list[int]:
            return [store.add("n", 1) for _ in range(each)]

        running = [in_thread(count, store) for store in handles]
        sums = [number for one in running for number in one.result(PATIENCE_SECONDS)]
        assert sorted(sums) == list(range(1, 4 * each + 1))

    COMPARE = (
        # present, expected, what compare_set returns, swapped, present afterwards
        (None, b"", b"new", False, b"new"),
        (None, b"old", b"old", False, None),
        (b"old", b"old", b"new", True, b"new"),
        (b"old", b"", b"old", False, b"old"),
        (b"old", b"other", b"old", False, b"old"),
        (b"", b"", b"new", True, b"new"),
        (b"", b"old", b"", False, b""),
    )

    @pytest.mark.parametrize(("present", "expected", "returned", "_swaps", "after"), COMPARE)
    def test_compare_set(
        self,
        present: bytes | None,
        expected: bytes,
        returned: bytes,
        _swaps: bool,
        after: bytes | None,
    ) -> None:
        """case-F2: key missing, equal, different, with an expected value empty and given."""
        store = self.handle()
        if present is not None:
            store.set("key", present)
        assert store.compare_set("key", expected, b"new") == returned
        assert store.get_nowait("key") == after

    @pytest.mark.parametrize(("present", "expected", "_returned", "swaps", "_after"), COMPARE)
    def test_compare_and_swap(
        self,
        present: bytes | None,
        expected: bytes,
        _returned: bytes,
        swaps: bool,
        _after: bytes | None,
    ) -> None:
        """case-F2: it says which happened and what is there now; missing is not empty."""
        store = self.handle()
        if present is not None:
            store.set("key", present)
        now = b"new" if swaps else present
        assert store.compare_and_swap("key", expected, b"new") == (swaps, now)
        assert store.get_nowait("key") == now

    def test_compare_and_swap_expecting_no_key(self) -> None:
        """Expecting None writes only where no key is."""
        store = self.handle()
        assert store.compare_and_swap("key", None, b"1") == (True, b"1")
        assert store.compare_and_swap("key", None, b"2") == (False, b"1")

    def test_delete(self) -> None:
        """`delete_key` says whether the key was there; it is gone for everybody."""
        store = self.handle()
        store.set("key", b"x")
        assert self.handle().delete_key("key") is True
        assert store.delete_key("key") is False
        assert store.get_nowait("key") is None

    def test_append(self) -> None:
        """`append` begins with nothing and adds at the end."""
        store = self.handle()
        store.append("log", b"a")
        self.handle().append("log", "b")
        assert store.get("log") == b"ab"

    # -- many keys ------------------------------------------------------------------------

    def test_check_wait_list_and_num_keys(self) -> None:
        """They see each key once, counters and queues included."""
        store = self.handle()
        assert store.num_keys() == 0
        assert store.list() == []
        store.set("b/2", b"")
        store.add("b/1", 1)
        store.queue_push("a", b"")
        assert store.check(["a", "b/1", "b/2"]) is True
        assert store.check(["a", "c"]) is False
        assert store.check([]) is True
        store.wait(["a", "b/1"], timeout=0)
        store.wait([])
        assert store.list("b/") == ["b/1", "b/2"]
        assert store.list() == ["a", "b/1", "b/2"]
        assert store.num_keys() == 3

    @pytest.mark.parametrize("there_before", [0, 1, 2, 3])
    def test_wait_in_all_orders(self, there_before: int) -> None:
        """case-F1: whichever keys are there before the wait, and in whichever order they come."""
        store = self.handle()
        for number, order in enumerate(permutations("abc")):
            keys = [f"{number}{letter}" for letter in order]
            for key in keys[:there_before]:
                store.set(key, b"")
            names = sorted(keys)
            waiting = self.start("wait", names, PATIENCE_SECONDS)
            for key in keys[there_before:]:
                after_a_moment(waiting)
                store.set(key, b"")
            assert waiting.result(PATIENCE_SECONDS) is None

    def test_wait_names_what_is_missing(self) -> None:
        """The timeout of `wait` names the missing keys, and no others."""
        store = self.handle()
        store.set("present", b"")
        with pytest.raises(StoreTimeoutError, match="absent") as caught:
            store.wait(["present", "absent"], timeout=SHORT_SECONDS)
        assert "present" not in str(caught.value)

    def test_multi_set_and_multi_get(self) -> None:
        """Many keys in one step; reading waits for those that are missing."""
        store = self.handle()
        waiting = after_a_moment(self.start("multi_get", ["b", "a", "b"], PATIENCE_SECONDS))
        store.multi_set(["a", "b"], [b"1", "2"])
        assert waiting.result(PATIENCE_SECONDS) == [b"2", b"1", b"2"]
        assert store.multi_get([]) == []
        with pytest.raises(StoreTimeoutError, match="absent"):
            store.multi_get(["a", "absent"], timeout=SHORT_SECONDS)
        with pytest.raises(ParameterError):
            store.multi_set(["a"], [])

    def test_watch(self) -> None:
        """`watch` returns on each change, deletion included, with growing versions."""
        store = self.handle()
        with pytest.raises(StoreTimeoutError, match="key"):
            store.watch("key", timeout=SHORT_SECONDS)
        waiting = after_a_moment(self.start("watch", "key", 0, PATIENCE_SECONDS))
        store.set("key", b"1")
        first, value = waiting.result(PATIENCE_SECONDS)
        assert (first > 0, value) == (True, b"1")
        assert tuple(store.watch("key")) == (first, b"1")
        waiting = after_a_moment(self.start("watch", "key", first, PATIENCE_SECONDS))
        store.set("another", b"")
        store.delete_key("key")
        second, value = waiting.result(PATIENCE_SECONDS)
        assert (second > first, value) == (True, None)
        with pytest.raises(StoreTimeoutError):
            store.watch("key", second, timeout=SHORT_SECONDS)
        store.set("key", b"1")
        third, value = store.watch("key", second, timeout=PATIENCE_SECONDS)
        assert (third > second, value) == (True, b"1")


class GroupCases(StoreHandles):
    """Cases of the calls that concern queues, pipelines and groups."""

    # -- queues ---------------------------------------------------------------------------

    def test_queue_is_first_in_first_out(self) -> None:
        """Values come out in the order they went in; an empty queue is no key."""
        store = self.handle()
        assert store.queue_len("q") == 0
        for value in (b"1", b"", b"3"):
            store.queue_push("q", value)
        assert self.handle().queue_len("q") == 3
        assert [store.queue_pop("q") for _ in range(3)] == [b"1", b"", b"3"]
        assert store.queue_len("q") == 0
        assert not store.check(["q"])

    def test_queue_pop_times_out(self) -> None:
        """An empty queue is a timeout: at its limit, or at once if told not to block."""
        store = self.handle()
        with pytest.raises(StoreTimeoutError, match="q"):
            store.queue_pop("q", block=False)
        with pytest.raises(StoreTimeoutError, match="q"):
            store.queue_pop("q", timeout=SHORT_SECONDS)
        store.queue_push("q", b"kept")
        assert store.queue_pop("q", block=False) == b"kept"

    def test_each_value_goes_to_one_waiter(self) -> None:
        """Of several that wait, each gets one value, and none is lost or doubled."""
        waiting = [self.start("queue_pop", "q", True, PATIENCE_SECONDS) for _ in range(5)]
        for each in waiting:
            after_a_moment(each)
        store = self.handle()
        for number in range(5):
            store.queue_push("q", str(number))
        values = [each.result(PATIENCE_SECONDS) for each in waiting]
        assert sorted(values) == [b"0", b"1", b"2", b"3", b"4"]
        assert store.queue_len("q") == 0

    def test_a_key_is_a_value_or_a_queue(self) -> None:
        """The other kind of call is refused, naming the key, and changes nothing."""
        store = self.handle()
        store.set("value", b"v")
        store.queue_push("queue", b"q")
        for call in (
            lambda: store.queue_push("value", b""),
            lambda: store.queue_pop("value", block=False),
            lambda: store.queue_len("value"),
        ):
            with pytest.raises(StoreValueError, match="value"):
                call()
        for call in (
            lambda: store.set("queue", b""),
            lambda: store.get("queue"),
            lambda: store.add("queue", 1),
            lambda: store.multi_set(["fresh", "queue"], [b"", b""]),
        ):
            with pytest.raises(StoreValueError, match="queue"):
                call()
        assert store.list() == ["queue", "value"]
        assert store.delete_key("queue")
        store.set("queue", b"now a value")

    # -- pipelines ------------------------------------------------------------------------

    def test_pipeline(self) -> None:
        """Calls in order, one result each."""
        store = self.handle()
        with store.pipeline() as pipe:
            pipe.set("a", b"1").add("a", 1).get_nowait("a").get_nowait("missing")
            pipe.append("a", "x").check(["a"]).compare_and_swap("a", b"2x", b"y")
            pipe.delete_key("a").queue_push("q", b"z")
        assert pipe.results == [None, 2, b"2", None, None, True, (True, b"y"), True, None]
        assert store.queue_pop("q") == b"z"
        assert store.pipeline().execute() == []

    def test_a_pipeline_that_fails_has_no_effect(self) -> None:
        """All or nothing; the error says which call it was."""
        store = self.handle()
        store.multi_set(["word", "n"], [b"x", b"1"])
        store.queue_push("q", b"kept")
        pipe = store.pipeline().add("n", 1).set("new", b"").queue_push("q", b"not")
        with pytest.raises(StoreValueError, match="call 4 of 4"):
            pipe.add("word", 1).execute()
        assert (store.get("n"), store.list()) == (b"1", ["n", "q", "word"])
        assert store.queue_len("q") == 1

    # -- groups ---------------------------------------------------------------------------

    def test_barrier_and_its_reuse(self) -> None:
        """All are released when the last one comes, time after time."""
        for turn in range(3):
            ranked = turn % 2 == 0
            waiting = [
                self.start("barrier", "b", 3, PATIENCE_SECONDS, rank if ranked else None)
                for rank in range(2)
            ]
            for each in waiting:
                after_a_moment(each)
            self.handle().barrier("b", 3, PATIENCE_SECONDS, 2 if ranked else None)
            for each in waiting:
                each.result(PATIENCE_SECONDS)
        self.handle().barrier("alone", 1, 0)

    def test_barrier_names_the_missing_ranks(self) -> None:
        """A timeout says how many are here and which ranks are not; then it can be tried again."""
        waiting = self.start("barrier", "b", 4, 1.0, 2)
        after_a_moment(waiting)
        with pytest.raises(StoreTimeoutError, match=r"2 of 4 .*missing ranks: 1, 3"):
            self.handle().barrier("b", 4, SHORT_SECONDS, 0)
        with pytest.raises(StoreTimeoutError, match=r"missing ranks: 1, 3.*timed out: 0"):
            waiting.result(PATIENCE_SECONDS)
        again = [self.start("barrier", "b", 2, PATIENCE_SECONDS, rank) for rank in range(2)]
        for each in again:
            each.result(PATIENCE_SECONDS)

    def test_who_timed_out_is_not_counted(self) -> None:
        """A barrier whose member gave up is not complete without it."""
        waiting = after_a_moment(self.start("barrier", "b", 2, PATIENCE_SECONDS, 0))
        with pytest.raises(StoreTimeoutError):
            self.handle().barrier("other", 2, 0, 1)
        with pytest.raises(StoreTimeoutError):
            self.handle().barrier("other", 2, 0, 0)
        self.handle().barrier("b", 2, PATIENCE_SECONDS, 1)
        waiting.result(PATIENCE_SECONDS)

    def test_group_refuses_what_does_not_fit(self) -> None:
        """A second caller with the same rank, a rank out of range, another size."""
        waiting = after_a_moment(self.start("barrier", "b", 2, PATIENCE_SECONDS, 0))
        store = self.handle()
        for n, rank, text in ((2, 0, "rank 0"), (2, 2, "rank 2"), (2, -1, "rank"), (3, 1, "2")):
            with pytest.raises(StoreValueError, match=text):
                store.barrier("b", n, PATIENCE_SECONDS, rank)
        with pytest.raises(StoreValueError, match="0"):
            store.barrier("none", 0)
        store.barrier("b", 2, PATIENCE_SECONDS, 1)
        waiting.result(PATIENCE_SECONDS)

    def test_all_gather(self) -> None:
        """Everybody gets all values in rank order, whatever order they came in."""
        for turn in range(2):
            waiting = [
                self.start("all_gather", "g", f"{turn}.{rank}", rank, 3, PATIENCE_SECONDS)
                for rank in (2, 0, 1)
            ]
            values = [f"{turn}.{rank}".encode() for rank in range(3)]
            for each in waiting:
                assert each.result(PATIENCE_SECONDS) == values

    def test_broadcast(self) -> None:
        """Everybody gets rank 0's value."""
        waiting = [
            self.start("broadcast", "c", value, rank, 3, PATIENCE_SECONDS)
            for rank, value in ((1, None), (2, b"ignored"), (0, b"news"))
        ]
        for each in waiting:
            assert each.result(PATIENCE_SECONDS) == b"news"
        with pytest.raises(ParameterError):
            self.handle().broadcast("c", None, 0, 1)


class StoreSuite(KeyCases, GroupCases):
    """Every case; subclass it and give `make_store`. See the module."""

    # -- handles and threads --------------------------------------------------------------

    def test_a_blocked_thread_holds_up_nobody(self) -> None:
        """case-B3: one thread waits in get(60), another makes 1,000 calls on the same handle."""
        store = self.handle()
        waiting = after_a_moment(in_thread(store.get, "late", 60.0))
        counting = in_thread(lambda: [store.add("beat", 1) for _ in range(1000)])
        assert counting.result(PATIENCE_SECONDS) == list(range(1, 1001))
        store.set("late", b"own answer")
        assert waiting.result(PATIENCE_SECONDS) == b"own answer"

    def test_clone(self) -> None:
        """A clone sees the same data, and has its own timeout and its own end."""
        store = self.handle()
        other = store.clone()
        other.set_timeout(SHORT_SECONDS)
        assert store.timeout != other.timeout
        other.set("key", b"x")
        assert store.get("key") == b"x"
        other.close()
        store.set("key", b"y")
        assert store.get("key") == b"y"

    def test_context_manager(self) -> None:
        """Leaving the block closes the handle and keeps the data."""
        with self.make_store() as store:
            store.set("key", b"x")
        assert self.handle().get("key", PATIENCE_SECONDS) == b"x"


__all__ = ["StoreSuite"]
