"""No frame is sent before it is durable, order is kept, and batches gather meanwhile."""

import asyncio
import threading
from typing import Any, cast

import pytest
from tests.server.fakes import FakeLoop

from rallypoint.deadline import Deadline
from rallypoint.errors import JournalError, JournalFullError, JournalLostError
from rallypoint.server.journal.group_commit import (
    AGAIN_SECONDS,
    Changes,
    Done,
    GroupCommit,
    WriterThread,
)
from rallypoint.testing.fakes import MemoryJournal, Shelf


class Pen:
    """A writer whose commits the test completes."""

    def __init__(self) -> None:
        self.orders: list[tuple[Changes, Done]] = []
        self.stopped = False

    def write(self, changes: Changes, done: Done) -> None:
        self.orders.append((changes, done))

    def stop(self) -> None:
        self.stopped = True

    def finish(self, error: BaseException | None = None) -> Changes:
        """Complete the commit that is under way; return what it wrote."""
        (changes, done), self.orders = self.orders[0], self.orders[1:]
        done(error)
        return changes


class Part:
    """A source with one entry."""

    def __init__(self, name: str) -> None:
        self.name, self.value = name, b""

    def unsaved(self) -> Changes:
        return {self.name: self.value}


class Reader:
    def __init__(self) -> None:
        self.got: list[bytes] = []

    def release(self, data: bytes) -> None:
        self.got.append(data)


class Desk:
    """A group_commit with everything around it."""

    def __init__(self) -> None:
        self.loop, self.pen, self.failures = FakeLoop(), Pen(), list[BaseException]()
        self.journal = MemoryJournal(Shelf())
        self.journal.open(Deadline(1))
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.group_commit = GroupCommit(loop, self.journal, self.pen, self.failures.append)
        self.part, self.reader = Part("a"), Reader()

    def change(self, value: bytes, part: Part | None = None) -> None:
        """Change a part, and tell the reader of it."""
        part = part or self.part
        part.value = value
        self.group_commit.mark(part)
        self.tell(value)

    def tell(self, data: bytes) -> None:
        self.group_commit.hold(self.reader, data)


def test_full_journal_answers_only_inquiries() -> None:
    desk, asks = Desk(), Reader()
    desk.change(b"1")
    desk.group_commit.hold(asks, b"rides", aside=True)
    desk.loop.turn()
    desk.change(b"2")
    desk.group_commit.hold(asks, b"gathers", aside=True)
    assert asks.got == []
    desk.pen.finish(JournalFullError("no room"))
    assert (asks.got, desk.reader.got) == ([b"rides", b"gathers"], [])
    desk.loop.advance(AGAIN_SECONDS + 0.1)
    desk.pen.finish()
    desk.pen.finish()
    assert (asks.got, desk.reader.got) == ([b"rides", b"gathers"], [b"1", b"2"])


def test_frame_without_unsaved_changes_is_sent_at_once() -> None:
    desk = Desk()
    desk.tell(b"1")
    assert desk.reader.got == [b"1"]
    desk.loop.turn()
    assert desk.pen.orders == []


def test_change_is_sent_once_it_is_durable() -> None:
    desk = Desk()
    desk.change(b"1")
    desk.loop.turn()
    assert desk.reader.got == []
    assert desk.pen.finish() == {"a": b"1"}
    assert desk.reader.got == [b"1"]
    assert desk.group_commit.is_resting


def test_reader_of_unsaved_state_waits_too() -> None:
    desk, other = Desk(), Reader()
    desk.change(b"1")
    desk.loop.turn()
    desk.group_commit.hold(other, b"reads 1")  # while it is being written
    assert other.got == []
    desk.pen.finish()
    assert other.got == [b"reads 1"]


def test_changes_gather_while_a_batch_is_written() -> None:
    desk, second = Desk(), Part("b")
    desk.change(b"1")
    desk.loop.turn()
    desk.change(b"2")
    desk.change(b"3", second)
    desk.change(b"4")
    desk.loop.turn()
    assert len(desk.pen.orders) == 1
    desk.pen.finish()
    assert desk.reader.got == [b"1"]
    assert desk.pen.finish() == {"a": b"4", "b": b"3"}
    assert desk.reader.got == [b"1", b"2", b"3", b"4"]
    assert (desk.group_commit.commits, desk.group_commit.entries) == (2, 3)


def test_frames_keep_their_order() -> None:
    desk = Desk()
    for number in range(3):
        desk.change(b"%d" % (3 * number))
        desk.tell(b"%d" % (3 * number + 1))
        desk.loop.turn()
        if number == 1:
            desk.pen.finish()
        desk.tell(b"%d" % (3 * number + 2))
    while desk.pen.orders:
        desk.pen.finish()
    assert desk.reader.got == [b"%d" % n for n in range(9)]


def test_unmarked_source_is_not_stored() -> None:
    desk, second = Desk(), Part("b")
    desk.change(b"1")
    desk.change(b"2", second)
    desk.group_commit.unmark(second)
    desk.loop.turn()
    assert desk.pen.finish() == {"a": b"1"}


def test_status_has_the_time_of_commits() -> None:
    desk = Desk()
    for seconds in (0.5, 1.5):
        desk.change(b"1")
        desk.loop.turn()
        desk.loop.advance(seconds)
        desk.pen.finish()
    told = desk.group_commit.durability()
    assert (told.commits, told.commit_seconds, told.worst_commit_seconds) == (2, 1.0, 1.5)
    assert told.where == desk.journal.where


# -- what goes wrong --------------------------------------------------------------------------


def test_full_journal_retries_the_same_batch() -> None:
    desk = Desk()
    desk.change(b"1")
    desk.loop.turn()
    desk.pen.finish(JournalFullError("no room on x"))
    assert desk.group_commit.trouble == "no room on x"
    desk.change(b"2")
    desk.loop.turn()
    assert desk.pen.orders == []
    desk.loop.advance(AGAIN_SECONDS + 0.1)
    assert desk.pen.finish(JournalFullError("still none")) == {"a": b"1"}
    desk.loop.advance(AGAIN_SECONDS + 0.1)
    assert desk.reader.got == []
    assert desk.pen.finish() == {"a": b"1"}
    assert (desk.reader.got, desk.group_commit.trouble) == ([b"1"], "")
    assert desk.pen.finish() == {"a": b"2"}
    assert desk.reader.got == [b"1", b"2"]
    assert desk.failures == []


@pytest.mark.parametrize("error", [JournalLostError("another leads"), JournalError("broken")])
def test_other_commit_errors_drop_all_held_frames(error: JournalError) -> None:
    desk = Desk()
    desk.change(b"1")
    desk.loop.turn()
    desk.change(b"2")
    desk.pen.finish(error)
    assert desk.failures == [error]
    desk.change(b"3")
    desk.loop.turn()
    assert (desk.reader.got, desk.pen.orders) == ([], [])
    assert desk.group_commit.is_resting is False


def test_doubtful_leader_commits_before_it_answers() -> None:
    desk = Desk()
    other = MemoryJournal(desk.journal._shelf)
    other.open(Deadline(1))
    desk.tell(b"old news")
    assert desk.reader.got == []
    desk.loop.turn()
    changes, done = desk.pen.orders.pop()
    assert changes == {}
    with pytest.raises(JournalLostError) as caught:
        desk.journal.commit(changes, Deadline(1))
    done(caught.value)
    assert desk.reader.got == []
    assert desk.failures == [caught.value]


def test_frames_held_for_a_leadership_proof_keep_their_order() -> None:
    desk = Desk()
    desk.group_commit._may_answer = lambda: False  # a lease that is nearly over, say
    desk.tell(b"1")
    desk.tell(b"2")
    desk.loop.turn()
    desk.tell(b"3")
    desk.pen.finish()
    assert desk.reader.got == [b"1", b"2", b"3"]


def test_journal_reports_its_own_loss() -> None:
    desk, loop = Desk(), asyncio.new_event_loop()
    try:
        group_commit = GroupCommit(loop, desk.journal, desk.pen, desk.failures.append)
        lost = JournalLostError("the lease is over")
        assert desk.journal.on_lost is not None
        thread = threading.Thread(target=desk.journal.on_lost, args=(lost,))
        thread.start()
        thread.join()
        loop.run_until_complete(asyncio.sleep(0))
        assert desk.failures == [lost]
        group_commit.hold(desk.reader, b"1")
        assert desk.reader.got == []
    finally:
        loop.close()


# -- the end, and the thread ------------------------------------------------------------------


async def _rests() -> None:
    desk = Desk()
    loop = asyncio.get_running_loop()
    shelf = Shelf()
    journal = MemoryJournal(shelf)
    journal.open(Deadline(1))
    group_commit = GroupCommit(loop, journal, WriterThread(loop, journal), desk.failures.append)
    assert await group_commit.rest(10)
    for number in range(5):
        desk.part.value = b"%d" % number
        group_commit.mark(desk.part)
        group_commit.hold(desk.reader, desk.part.value)
        await asyncio.sleep(0)
    assert await group_commit.rest(10)
    group_commit.close()
    assert desk.reader.got == [b"%d" % n for n in range(5)]
    assert shelf.entries == {"a": b"4"}
    assert not journal.may_answer()  # closed by its thread


def test_at_rest_everything_is_stored_and_sent() -> None:
    asyncio.run(_rests())


async def _does_not_rest() -> None:
    desk = Desk()
    group_commit = GroupCommit(
        asyncio.get_running_loop(), desk.journal, desk.pen, desk.failures.append
    )
    group_commit.mark(desk.part)
    group_commit.hold(desk.reader, b"1")
    assert not await group_commit.rest(0.05)
    group_commit.close()
    assert desk.pen.stopped
    desk.pen.finish()  # it has become durable all the same: nobody was told, which is allowed
    assert desk.reader.got == []


def test_hanging_journal_delays_no_shutdown() -> None:
    asyncio.run(_does_not_rest())


async def _ends_with_a_failure() -> float:
    desk, loop = Desk(), asyncio.get_running_loop()
    group_commit = GroupCommit(loop, desk.journal, desk.pen, desk.failures.append)
    group_commit.mark(desk.part)
    resting = asyncio.ensure_future(group_commit.rest(60))
    await asyncio.sleep(0)
    before = loop.time()
    desk.pen.finish(JournalError("broken"))
    assert not await resting
    assert len(desk.failures) == 1
    return loop.time() - before


def test_failed_commit_ends_the_wait_of_a_shutdown() -> None:
    assert asyncio.run(_ends_with_a_failure()) < 30


class Broken(MemoryJournal):
    def commit(self, changes: Changes, deadline: Deadline) -> None:
        raise ZeroDivisionError("a bug")


async def _hands_over() -> None:
    failures: asyncio.Queue[BaseException] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    journal = Broken(Shelf())
    journal.open(Deadline(1))
    group_commit = GroupCommit(loop, journal, WriterThread(loop, journal), failures.put_nowait)
    group_commit.mark(Part("a"))
    error: Any = await asyncio.wait_for(failures.get(), 10)
    assert isinstance(error, ZeroDivisionError)
    group_commit.close()


def test_error_in_the_writer_thread_reaches_the_server() -> None:
    asyncio.run(_hands_over())
