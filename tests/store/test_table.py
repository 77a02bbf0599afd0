"""The keys of a store: each plain request, the books, limits, pipelines, snapshots."""

from collections import deque
from typing import Any

import pytest

from rallypoint.errors import StoreLimitError, StoreValueError
from rallypoint.net import protocol as p
from rallypoint.store.table import DELETED_KEPT, ENTRY_BYTES, INT_MAX, INT_MIN, Table


@pytest.fixture
def table() -> Table:
    table = Table()
    for request in (p.Set("v", b"1"), p.QueuePush("q", b"x"), p.QueuePush("q", b"y")):
        do(table, request)
    return table


def do(table: Table, request: Any) -> Any:
    return table._methods[type(request)](request, None)


@pytest.mark.parametrize(
    ("request_", "result", "v"),
    [
        (p.Set("v", b"2"), None, b"2"),
        (p.Peek("v"), b"1", b"1"),
        (p.Peek("none"), None, b"1"),
        (p.Add("v", -2), -1, b"-1"),
        (p.Add("none", 0), 0, b"1"),
        (p.CompareSet("v", b"1", b"2"), b"2", b"2"),
        (p.CompareSet("v", b"", b"2"), b"1", b"1"),
        (p.CompareSet("none", b"x", b"2"), None, b"1"),
        (p.CompareSet("none", b"", b"2"), b"2", b"1"),
        (p.CompareSwap("v", b"1", b"2"), (True, b"2"), b"2"),
        (p.CompareSwap("v", None, b"2"), (False, b"1"), b"1"),
        (p.CompareSwap("none", b"", b"2"), (False, None), b"1"),
        (p.Check(["v", "q"]), True, b"1"),
        (p.Check(["v", "none"]), False, b"1"),
        (p.Delete("v"), True, None),
        (p.Delete("none"), False, b"1"),
        (p.NumKeys(""), 2, b"1"),
        (p.NumKeys("v"), 1, b"1"),
        (p.List(""), ["q", "v"], b"1"),
        (p.List("q"), ["q"], b"1"),
        (p.MultiSet([("v", b"2"), ("w", b""), ("v", b"3")]), None, b"3"),
        (p.MultiSet([]), None, b"1"),
        (p.Append("v", b"2"), None, b"12"),
        (p.QueueLen("q"), 2, b"1"),
        (p.QueueLen("none"), 0, b"1"),
    ],
)
def test_plain_requests(table: Table, request_: Any, result: Any, v: bytes | None) -> None:
    assert do(table, request_) == result
    assert do(table, p.Peek("v")) == v
    assert table.stored_bytes == Table.restore(table.snapshot()).stored_bytes


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"+5", 5), (b"-5", -5), (b"007", 7), (b"%d" % (INT_MAX - 1), INT_MAX - 1)],
)
def test_add_reads_decimal_text(table: Table, text: bytes, number: int) -> None:
    do(table, p.Set("v", text))
    assert do(table, p.Add("v", 1)) == number + 1


@pytest.mark.parametrize("text", [b"", b"-", b"+-1", b"x", b" 1", b"1_0", b"\xd9\xa1", b"9" * 99])
def test_add_refuses_other_text(table: Table, text: bytes) -> None:
    do(table, p.Set("v", text))
    with pytest.raises(StoreValueError, match="'v' holds b'"):
        do(table, p.Add("v", 1))


@pytest.mark.parametrize(("start", "amount"), [(INT_MAX, 1), (INT_MIN, -1)])
def test_add_stays_within_64_bits(table: Table, start: int, amount: int) -> None:
    do(table, p.Set("v", b"%d" % start))
    with pytest.raises(StoreValueError, match="beyond 64 bits"):
        do(table, p.Add("v", amount))


@pytest.mark.parametrize(
    "request_",
    [
        p.Set("q", b""),
        p.Peek("q"),
        p.Add("q", 1),
        p.CompareSet("q", b"", b""),
        p.CompareSwap("q", None, b""),
        p.Append("q", b""),
        p.MultiSet([("new", b""), ("q", b"")]),
        p.QueuePush("v", b""),
        p.QueueLen("v"),
    ],
)
def test_wrong_kind_of_value_is_refused(table: Table, request_: Any) -> None:
    before = table.snapshot()
    with pytest.raises(StoreValueError, match=r"'q' holds a queue of 2|'v' holds a value"):
        do(table, request_)
    assert table.snapshot() == before


@pytest.mark.parametrize(
    "request_",
    [
        p.Set("new", b"x" * 100),
        p.Append("v", b"x" * 200),
        p.QueuePush("q", b"x" * 100),
        p.QueuePush("r", b"x" * 100),
        p.MultiSet([("v", b""), ("new", b"x" * 100)]),
        p.Set("k" * 5000, b""),
        p.Set("\u20ac" * 1400, b""),
        p.QueuePush("k" * 5000, b""),
        p.MultiSet([("k" * 5000, b"")]),
    ],
)
def test_limits(table: Table, request_: Any) -> None:
    table._limit_bytes = table.stored_bytes + 100
    before = table.snapshot(), table.stored_bytes
    with pytest.raises(StoreLimitError, match=r"limit_bytes|key_limit"):
        do(table, request_)
    assert (table.snapshot(), table.stored_bytes) == before


def test_full_store_accepts_deletions(table: Table) -> None:
    do(table, p.Set("v", b"x" * 50))
    table._limit_bytes = 0
    do(table, p.Set("v", b"y" * 49))
    do(table, p.Delete("v"))
    do(table, p.Delete("q"))
    assert table.stored_bytes == 0


def test_stored_bytes_counts_keys_values_and_entries() -> None:
    table = Table()
    do(table, p.Set("key", b"value"))
    assert table.stored_bytes == 3 + 5 + ENTRY_BYTES
    do(table, p.QueuePush("q", b"12"))
    assert table.stored_bytes == 3 + 5 + ENTRY_BYTES + 1 + 2 + 2 * ENTRY_BYTES


def test_failed_pipeline_changes_nothing(table: Table) -> None:
    do(table, p.Set("gone", b""))
    do(table, p.Delete("gone"))
    before = table.snapshot(), table.stored_bytes, table.changes
    calls: list[p.PlainRequest] = [
        p.Peek("v"), p.Set("v", b"long value"), p.QueuePush("q", b"z"), p.Delete("q"),
        p.QueuePush("q", b"other"), p.Set("gone", b"back"), p.Delete("v"), p.Set("new", b""),
        p.MultiSet([("m", b""), ("v", b"")]), p.QueuePush("r", b""), p.Add("new", 1),
    ]  # fmt: skip
    with pytest.raises(StoreValueError, match=r"call 11 of 11 .*none took effect.*'new'"):
        do(table, p.Pipeline(calls))
    assert (table.snapshot(), table.stored_bytes, table.changes) == before
    assert do(table, p.Pipeline(calls[:-1]))[0] == b"1"


def test_snapshot_and_restore() -> None:
    table = Table()
    for request in (p.Set("a", b"1"), p.QueuePush("q", b"2"), p.Set("b", b""), p.Delete("b")):
        do(table, request)
    again = Table.restore(table.snapshot(), limit_bytes=5000)
    assert again.snapshot() == table.snapshot()
    assert (again.changes, again.stored_bytes) == (4, table.stored_bytes)
    assert again._limit_bytes == 5000
    do(again, p.QueuePush("q", b"3"))
    assert do(table, p.QueueLen("q")) == 1


def test_table_is_restored_key_by_key(table: Table) -> None:
    table._take("q", deque_of(table, "q"))
    again = Table()
    again.resume(table.changes, 0)
    for name in table.names():
        entry = table.entry(name)
        assert entry is not None
        again.put_back(name, *entry)
    assert again.snapshot() == table.snapshot()
    assert again.stored_bytes == table.stored_bytes
    assert [again.entry(name) for name in ("v", "q")] == [table.entry("v"), table.entry("q")]
    assert again.entry("none") is None


def deque_of(table: Table, key: str) -> "deque[bytes]":
    queue = table._queue(key)
    assert queue is not None
    return queue


def test_byte_count_is_right_after_queue_pops(table: Table) -> None:
    before = table.stored_bytes
    assert table._take("q", deque_of(table, "q")) == b"x"
    assert table.stored_bytes == before - 1 - ENTRY_BYTES
    assert table._take("q", deque_of(table, "q")) == b"y"  # the last one takes the key along
    assert table.names() == ["v"]


def test_changed_keys_are_recorded_for_saving(table: Table) -> None:
    table.unsaved = {}
    for request in (p.Set("v", b"2"), p.Delete("q"), p.Peek("v")):
        do(table, request)
    assert list(table.unsaved) == ["v", "q"]


def test_changed_keys_with_waiters_are_recorded(table: Table) -> None:
    table._waited = {"v": object()}
    for request in (p.Set("v", b"2"), p.Set("w", b"2")):
        do(table, request)
    assert list(table._touched) == ["v"]


def test_number_of_keys_is_limited() -> None:
    table = Table(limit_keys=2)
    do(table, p.MultiSet([("a", b""), ("b", b"")]))
    for request in (p.Set("c", b""), p.QueuePush("c", b""), p.MultiSet([("a", b""), ("c", b"")])):
        with pytest.raises(StoreLimitError, match="its limit of 2 keys"):
            do(table, request)
    do(table, p.Set("a", b"again"))


def test_versions_grow_across_deletion_and_forgetting(table: Table) -> None:
    version = table._version("v", 0)
    do(table, p.Delete("v"))
    deleted = table._version("v", version)
    assert deleted > version
    for number in range(DELETED_KEPT):
        do(table, p.Set(f"k{number}", b""))
        do(table, p.Delete(f"k{number}"))
    assert table._version("v", version) == deleted  # all that is known of it: it is gone since
    assert table._version("v", 0) == 0  # who never saw it has missed nothing


def test_numbers_of_queue_values_are_never_reused(table: Table) -> None:
    def numbers() -> range | None:
        entry = table.entry("q")
        return entry and range(entry[2], entry[2] + len(entry[1]))

    seen = [numbers()]
    assert seen == [range(1, 3)]
    queue = table._values["q"]
    assert isinstance(queue, deque)
    assert table._take("q", queue) == b"x"
    assert numbers() == range(2, 3)
    do(table, p.QueuePush("q", b"z"))
    assert numbers() == range(2, 4)
    with pytest.raises(StoreValueError):
        do(table, p.Pipeline([p.Delete("q"), p.QueuePush("q", b"1"), p.Add("v", 1 << 70)]))
    assert numbers() == range(2, 4)
    do(table, p.Delete("q"))
    assert table.entry("q") is None
    do(table, p.QueuePush("q", b"new"))
    first = numbers()
    assert first is not None
    assert first.start > 4


def test_entry_of_a_plain_value_has_number_0(table: Table) -> None:
    assert table.entry("v") == (1, b"1", 0)


def test_add_reaches_both_ends_of_64_bits(table: Table) -> None:
    for end, step in ((INT_MAX, 1), (INT_MIN, -1)):
        do(table, p.Set("v", b"0"))
        assert do(table, p.Add("v", end)) == end
        with pytest.raises(StoreValueError, match="beyond 64 bits"):
            do(table, p.Add("v", step))


def test_taking_a_value_changes_the_version(table: Table) -> None:
    version, queue = table._version("q", 0), table._values["q"]
    assert isinstance(queue, deque)
    table._take("q", queue)
    assert table._version("q", 0) > version
