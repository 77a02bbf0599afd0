"""Runs and stores as entries, and what is refused when they are read back."""

from collections import deque
from typing import Any, cast

import msgspec
import pytest

from rallypoint.core.state import RunState, encode_state
from rallypoint.errors import JournalCorruptError
from rallypoint.net import protocol as p
from rallypoint.server.journal.group_commit import GroupCommit
from rallypoint.server.journal.records import (
    FORMAT,
    FORMAT_NAME,
    Kept,
    OtherRecords,
    RunRecords,
    Stored,
    StoreRecords,
)
from rallypoint.server.options import Options
from rallypoint.server.store_host import StoreHost


class Notes:
    """A space and what its part makes of it; nothing is written anywhere."""

    def __init__(self, run_id: str = "run") -> None:
        self.trouble, self.marks = "", 0
        self.store = StoreHost(cast(Any, None), Options(store_limit=1 << 20))
        self.part = StoreRecords(run_id, self.store, cast(GroupCommit, self))
        self.stored: dict[str, bytes] = {FORMAT_NAME: FORMAT}

    def mark(self, _part: object) -> None:
        self.marks += 1

    def do(self, *requests: Any) -> dict[str, bytes | None]:
        """Carry out requests; return the entries that change by it."""
        for request in requests:
            self.store.keys.execute(request, "t")
        changes = self.part.unsaved()
        for name, value in changes.items():
            if value is None:
                assert self.stored.pop(name)
            else:
                self.stored[name] = value
        return changes

    def read(self, run_id: str = "run") -> Any:
        return Stored("x", self.stored).stores[run_id]


def pushes(*values: bytes) -> list[p.QueuePush]:
    return [p.QueuePush("q", value) for value in values]


def test_only_what_has_changed_is_written() -> None:
    notes = Notes()
    assert set(notes.do(p.Set("a", b"1"), p.Set("b", b"2"))) == {
        "key/run/a",
        "key/run/b",
        "space/run",
    }
    assert set(notes.do(p.Set("a", b"3"))) == {"key/run/a", "space/run"}
    assert notes.do(p.Peek("a")) == {}
    assert notes.do(p.Delete("b"))["key/run/b"] is None
    found = notes.read()
    assert (found.changes, found.keys) == (4, {"a": (3, b"3", 0)})


def test_push_writes_one_value_and_pop_none() -> None:
    notes = Notes()
    notes.do(*pushes(b"0", b"1", b"2"))
    assert notes.do(*pushes(b"3"))["item/run/3/q"] == b"3"
    assert set(notes.do(*pushes(b"4"))) == {"item/run/4/q", "key/run/q", "space/run"}
    popped = notes.do(p.QueuePop("q", 0.0))
    assert popped.pop("item/run/0/q") is None
    assert set(popped) == {"key/run/q", "space/run"}
    assert notes.read().keys["q"][1:] == (deque([b"1", b"2", b"3", b"4"]), 1)


@pytest.mark.parametrize(
    "requests",
    [
        [p.QueuePop("q", 0.0)] * 3,
        [p.Delete("q")],
        [p.Delete("q"), *pushes(b"new")],
        [p.Delete("q"), p.Set("q", b"value")],
        [p.Delete("q"), *pushes(b"a", b"b", b"c", b"d"), p.QueuePop("q", 0.0)],
        [p.QueuePop("q", 0.0)] * 3 + pushes(b"0", b"1", b"2"),
        [p.QueuePop("q", 0.0), *pushes(b"3"), p.QueuePop("q", 0.0)],
        [*pushes(b"3"), *[p.QueuePop("q", 0.0)] * 4],
    ],
)
def test_queues_that_end_and_begin_leave_no_values_behind(requests: list[Any]) -> None:
    notes = Notes()
    notes.do(*pushes(b"0", b"1", b"2"))
    notes.do(*requests)
    entry = notes.store.keys.entry("q")
    assert notes.read().keys.get("q") == entry
    items = [name for name in notes.stored if name.startswith("item/")]
    assert len(items) == (len(entry[1]) if entry and isinstance(entry[1], deque) else 0)


def test_any_name_is_read_back() -> None:
    keys = ["", "/", "a/b", "\0", "ä \U0001f600", "item/run/1/q"]
    for run_id in ("", "a/b", "ü %2F", "run"):
        notes = Notes(run_id)
        notes.do(*[p.Set(key, key.encode()) for key in keys])
        notes.do(p.QueuePush("/q/", b"1"))
        found = notes.read(run_id)
        assert {k: v[1] for k, v in found.keys.items()} == {
            **{key: key.encode() for key in keys},
            "/q/": deque([b"1"]),
        }


def test_clients_are_kept_with_their_answers() -> None:
    notes = Notes()
    notes.store.changes = notes.part
    notes.store.attach(b"\0c", cast(Any, None))
    notes.store.clients[b"\0c"].keep(7, b"answer")
    assert notes.marks == 1
    assert set(notes.do()) == {"client/run/0063"}
    record = notes.store.record(b"\0c")
    assert notes.read().clients == {b"\0c": Kept(*record, {7: b"answer"})}


def test_deleted_store_deletes_its_entries() -> None:
    notes = Notes()
    notes.store.changes = notes.part
    notes.store.attach(b"c", cast(Any, None))
    notes.do(p.Set("a", b"1"), *pushes(b"1", b"2"))
    rest = OtherRecords()
    rest.add(notes.part.gone())
    for name in rest.unsaved():
        notes.stored.pop(name, None)
    assert notes.stored == {FORMAT_NAME: FORMAT}
    assert rest.unsaved() == {}


def test_run_is_read_back() -> None:
    class Host:
        state = RunState("a/b", arrivals=3)

    part = RunRecords(cast(Any, Host))
    (name,) = part.gone()
    entries = {FORMAT_NAME: FORMAT, name: part.unsaved()[name] or b""}
    assert Stored("x", entries).runs == {"a/b": Host.state}


def test_empty_journal_is_new() -> None:
    assert Stored("x", {}).is_new
    assert not Stored("x", {FORMAT_NAME: FORMAT}).is_new


STATE = encode_state(RunState("run"))
HEAD = msgspec.msgpack.encode([2, 5, 0, 2])


@pytest.mark.parametrize(
    ("entries", "seen"),
    [
        ({"run/run": b"rally\x01junk"}, "entry 'run/run' of run 'run'"),
        ({"run/other": STATE}, "state of run 'run'"),
        ({"run/run": STATE[:-1]}, "damaged"),
        ({"key/run/k": b"\x93\x01"}, "entry 'key/run/k' of run 'run'"),
        ({"key/run/k": msgspec.msgpack.encode([3, 1, b""])}, "Invalid value 3"),
        ({"key/run/k": msgspec.msgpack.encode([1, 1, b"", 0])}, "length"),
        ({"space/run": b"\xc0"}, "Expected `int`"),
        ({"client/run/63": b"\x90"}, "entry 'client/run/63'"),
        ({"client/run/x": msgspec.msgpack.encode([1, 1, {}])}, "hexadecimal"),
        ({"key/run/q": HEAD, "item/run/0/q": b""}, "1 values are there of"),
        ({"key/run/q": HEAD, "item/run/0/q": b"", "item/run/2/q": b""}, "2 values"),
        ({"item/run/0/q": b""}, "without their head"),
        ({"item/run/one/q": b""}, "'one' is no number"),
        ({"rune/run": b""}, "no entry of that kind"),
    ],
)
def test_unusable_entry_is_refused_by_name(entries: dict[str, bytes], seen: str) -> None:
    with pytest.raises(JournalCorruptError, match=seen) as caught:
        Stored("directory /data", {FORMAT_NAME: FORMAT, **entries})
    assert "directory /data" in str(caught.value)


def test_other_format_is_refused() -> None:
    for entries in ({"run/run": STATE}, {FORMAT_NAME: b"rallypoint server 2"}):
        with pytest.raises(JournalCorruptError, match="use the version that wrote it"):
            Stored("x", entries)
