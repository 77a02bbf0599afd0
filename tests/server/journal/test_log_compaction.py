"""Segments: whatever is committed and compacted, the replay is the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.errors import JournalCorruptError
from rallypoint.server.journal import log_compaction as module
from rallypoint.server.journal.log_compaction import Segments, pack, replayed, unpack

Changes = dict[str, bytes | None]


class Log:
    """A log in memory, cleaned as a journal does."""

    def __init__(self) -> None:
        self.segments = Segments()
        self.stored: dict[int, bytes] = {}
        self.read = self.carried = 0

    def commit(self, changes: Changes) -> None:
        segments, number = self.segments, self.segments.next_number
        victims = segments.victims()
        merged: Changes = {}
        for victim in segments.to_read(victims):
            found = unpack("", self.stored[victim])
            self.read += 1
            merged |= segments.carried(victim, found, changes)
        self.carried += len(merged)
        merged |= changes
        for victim in victims:
            del self.stored[victim]
        self.stored[number] = pack(merged)
        segments.add(number, merged)
        segments.remove(victims)

    def entries(self) -> dict[str, bytes]:
        return replayed(unpack("", self.stored[number]) for number in sorted(self.stored))

    def reopened(self) -> "Log":
        log = Log()
        log.stored = dict(self.stored)
        for number in sorted(log.stored):
            log.segments.add(number, unpack("", log.stored[number]))
        return log


names = st.sampled_from("abcdef")
batches = st.lists(
    st.dictionaries(names, st.none() | st.binary(max_size=40), min_size=1, max_size=4), max_size=60
)


@settings(max_examples=300, deadline=None)
@given(batches, st.integers(1, 4), st.integers(0, 60))
def test_replay_yields_what_was_committed(
    changes: list[Changes], most: int, reopen_at: int
) -> None:
    before = module.MOST_SEGMENTS, module.SLACK_BYTES, module.VICTIMS, module.CARRIED_BYTES
    module.MOST_SEGMENTS, module.SLACK_BYTES, module.VICTIMS, module.CARRIED_BYTES = most, 30, 3, 60
    try:
        log, wanted = Log(), dict[str, bytes]()
        for at, batch in enumerate(changes):
            log.commit(batch)
            wanted = replayed([wanted, batch])
            assert log.entries() == wanted
            assert set(log.segments.known) == set(log.stored)
            if at == reopen_at:
                log = log.reopened()
        again = log.reopened().segments
        for number, segment in log.segments.known.items():
            assert segment.live <= segment.total
            assert again.known[number].total == segment.total
            assert again.known[number].live >= segment.live  # deletions that a scan cannot judge
    finally:
        (module.MOST_SEGMENTS, module.SLACK_BYTES, module.VICTIMS, module.CARRIED_BYTES) = before


def test_dead_segment_is_removed_unread_by_the_next_commit() -> None:
    log = Log()
    for number in range(10):
        log.commit({"state": b"%d" % number})
    assert len(log.stored) <= 2
    assert log.read == 0


def test_deletion_is_dropped_once_no_segment_has_the_entry() -> None:
    log = Log()
    log.commit({"a": b"1", "b": b"1"})
    log.commit({"a": None})
    assert log.segments.known[2].live
    log.commit({"b": b"2"})  # now the first is dead
    log.commit({"b": b"3"})
    log.commit({"b": b"4"})
    assert list(log.entries()) == ["b"]
    assert len(log.stored) <= 2


def test_the_number_of_segments_is_bounded_and_carrying_is_cheap() -> None:
    log, count = Log(), 3000
    for number in range(count):
        log.commit({f"key{number}": b"v"})
        assert len(log.stored) <= module.MOST_SEGMENTS + 1
    assert len(log.entries()) == count
    assert log.carried < 12 * count


def test_large_live_value_is_not_carried() -> None:
    log = Log()
    log.commit({"large": bytes(8 << 20)})
    for number in range(1000):
        log.commit({"state": b"%d" % number, f"key{number % 300}": b"v"})
    assert 1 in log.stored
    assert log.entries()["state"] == b"999"


def test_mostly_dead_segment_is_compacted() -> None:
    log = Log()
    for number in range(8):
        log.commit({"small": b"%d" % number, f"keep{number}": b"k", "large": bytes(3 << 20)})
        total = sum(segment.total for segment in log.segments.known.values())
        assert total < 3 * (3 << 20) + 2 * module.SLACK_BYTES
    assert len(log.entries()) == 10


@pytest.mark.parametrize("size", [0, 100, module.PACKED_BYTES * 3])
def test_packing(size: int) -> None:
    changes: Changes = {"a": bytes(size), "gone": None, "": b"\0"}
    data = pack(changes)
    assert unpack("x", data) == changes
    assert len(data) < max(200, size // 10)


@pytest.mark.parametrize("data", [b"", b"other", b"rpl1:\xff\xff", b"rpl1z:abc", b"rpl2:abc"])
def test_foreign_entry_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(JournalCorruptError, match="segment 7"):
        unpack("segment 7", data)


@pytest.mark.parametrize(("size", "head"), [(-1, b"rpl1:"), (0, b"rpl1z:")])
def test_only_large_segments_are_compressed(size: int, head: bytes) -> None:
    names = 6  # bytes for the table, the name and the length
    assert pack({"a": bytes(module.PACKED_BYTES - names + size)}).startswith(head)


def test_compaction_carries_little_but_always_removes_a_segment() -> None:
    segments = Segments()
    for number in range(1, module.MOST_SEGMENTS + 2):
        segments.add(number, {f"key{number}": bytes(module.CARRIED_BYTES // 4)})
    chosen = segments.victims()
    assert len(chosen) == 3
    assert chosen == segments.to_read(chosen)


def test_compaction_removes_a_bounded_number_of_segments() -> None:
    segments, last = Segments(), module.MOST_SEGMENTS + 12
    for number in range(1, last):
        segments.add(number, {f"key{number}": b"v"})
    segments.add(last, {f"key{number}": b"v" for number in range(1, 11)})
    chosen = segments.victims()
    assert len(chosen) == len(set(chosen)) == module.VICTIMS
    assert set(range(1, 11)) <= set(chosen)
