"""The part of the store suite about keys: one at a time, many, and watching them."""

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
