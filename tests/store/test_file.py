"""FileStore: the conformance suite, several processes, crashes, compaction, manual time."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreError, StoreTimeoutError, StoreValueError
from rallypoint.net import protocol as p
from rallypoint.store import file as file_module
from rallypoint.store.api import Store
from rallypoint.store.file import FileStore
from rallypoint.testing.store_suite import StoreSuite

SEED = int(os.environ.get("RALLYPOINT_SEED", random.randrange(1 << 32)))
processes = multiprocessing.get_context("spawn")


class TestFileStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def _data(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store"

    def make_store(self) -> Store:
        return FileStore(self.path)


class TestFileStoreThatCompactsAllTheTime(TestFileStore):
    @pytest.fixture(autouse=True)
    def _always(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(file_module, "COMPACT_BYTES", 0)
        monkeypatch.setattr(file_module, "COMPACT_RATIO", 0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


class Clock:
    """Time that passes only while somebody sleeps; `events` happen on the way."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.events: list[tuple[float, Callable[[], Any]]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, duration: float) -> None:
        self.slept.append(duration)
        self.now += duration
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()


def manual(path: str, clock: Clock) -> FileStore:
    return FileStore(path, clock=clock, sleep=clock.sleep)


# -- waiting, in manual time ----------------------------------------------------------------


def test_intervals_grow_from_1_to_50_ms(path: str) -> None:
    clock = Clock()
    with pytest.raises(StoreTimeoutError, match="'k'"):
        manual(path, clock).get("k", 10)
    assert clock.slept[0] == 0.001
    assert sorted(clock.slept[:-1]) == clock.slept[:-1]
    assert max(clock.slept) == 0.05
    assert clock.now == pytest.approx(10)


def test_wait_sees_the_write_of_another_handle(path: str) -> None:
    clock = Clock()
    other = FileStore(path)
    clock.events.append((3.0, lambda: other.set("k", b"v")))
    assert manual(path, clock).get("k", 10) == b"v"
    assert 3.0 <= clock.now < 3.1


def test_answer_at_the_deadline_counts(path: str) -> None:
    clock = Clock()
    store, other = manual(path, clock), FileStore(path)
    real = store._leave

    def last_moment(*args: Any, **options: Any) -> Any:
        other.barrier("b", 2, 0, 1)
        return real(*args, **options)

    store._leave = last_moment  # type: ignore[method-assign]
    store.barrier("b", 2, 5, 0)
    assert clock.now == pytest.approx(5)


def test_interrupted_member_is_removed(path: str) -> None:
    clock = Clock()

    def interrupt() -> None:
        raise KeyboardInterrupt

    clock.events.append((1.0, interrupt))
    with pytest.raises(KeyboardInterrupt):
        manual(path, clock).barrier("b", 2, 5, 0)
    with pytest.raises(StoreTimeoutError, match=r"1 of 2 .*missing ranks: 0"):
        FileStore(path).barrier("b", 2, 0, 1)


def test_member_taken_for_dead_is_notified(path: str) -> None:
    clock = Clock()
    store, other = manual(path, clock), FileStore(path)

    def judge() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(file_module, "_is_dead", lambda _writer, _host: True)
            with pytest.raises(StoreTimeoutError, match=r"1 of 3"):
                other.barrier("b", 3, 0, 1)

    clock.events.append((1.0, judge))
    with pytest.raises(StoreError, match="considered this one dead"):
        store.barrier("b", 3, 5, 0)


# -- handles --------------------------------------------------------------------------------


def test_torchs_second_argument_is_ignored(path: str) -> None:
    with FileStore(path, 4, 7.0) as store:
        assert store.path == path
        assert store.timeout.total_seconds() == 7.0
    with pytest.raises(StoreError, match="closed"):
        store.get_nowait("k")


def test_call_without_effect_writes_nothing(path: str) -> None:
    store = FileStore(path, sync=True)
    store.multi_set(["k", "word"], [b"1", b"x"])
    store.queue_push("q", b"")
    store.queue_pop("q")
    size = os.path.getsize(path)
    store.compare_set("k", b"2", b"3")
    store.delete_key("missing")
    store.get("k")
    with pytest.raises(StoreValueError):
        store.add("word", 1)
    with pytest.raises(StoreTimeoutError):
        store.queue_pop("q", block=False)
    assert os.path.getsize(path) == size


def test_pop_that_loses_the_race_keeps_waiting(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store, other = manual(path, clock), FileStore(path)
    store.queue_push("q", b"contested")
    real = store._log.locked

    def overtaken(deadline: Any) -> Any:
        monkeypatch.undo()
        assert other.queue_pop("q") == b"contested"
        return real(deadline)

    monkeypatch.setattr(store._log, "locked", overtaken)
    clock.events.append((1.0, lambda: other.queue_push("q", b"next")))
    assert store.queue_pop("q") == b"next"


def test_failed_write_changes_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(path)
    store.add("n", 1)

    def full(_body: bytes) -> None:
        raise StoreError("no space")

    monkeypatch.setattr(store._log, "append", full)
    with pytest.raises(StoreError, match="no space"):
        store.add("n", 1)
    assert store.get("n") == b"1"
    monkeypatch.undo()
    assert store.add("n", 1) == 2


def test_invalid_record_is_an_error_each_time(path: str) -> None:
    store = FileStore(path)
    with store._log.locked(Deadline(1)):
        store._log.read()
        store._log.append(b"\x93\x01\x02\x03")
    for _ in range(2):
        with pytest.raises(StoreError, match="store: a record cannot be carried out"):
            FileStore(path).get_nowait("k")


# -- compaction -----------------------------------------------------------------------------


def test_log_of_old_records_is_compacted(path: str) -> None:
    one, two = FileStore(path), FileStore(path)
    two.set("kept", b"x")
    two.queue_push("q", b"1")
    version, _ = two.watch("kept")
    sizes = []
    for number in range(300):
        one.set("big", bytes(10_000))
        one.set("number", str(number))
        sizes.append(os.path.getsize(path))
    assert max(sizes) < 1.1 * file_module.COMPACT_BYTES
    assert sizes != sorted(sizes)
    assert two.multi_get(["kept", "number"]) == [b"x", b"299"]
    assert two.watch("kept", 0, 0) == (version, b"x")
    assert two.queue_pop("q") == b"1"
    assert one.queue_len("q") == 0


def test_log_without_old_records_is_not_compacted(path: str) -> None:
    store = FileStore(path)
    inode = os.stat(path).st_ino
    for number in range(20):
        store.set(f"k{number}", bytes(100_000))
    assert os.stat(path).st_ino == inode


def test_open_groups_and_answers_survive_compaction(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that sleeps through the completion and two compactions gets its answer."""
    clock = Clock()
    store, other = manual(path, clock), FileStore(path)

    def meanwhile() -> None:
        monkeypatch.setattr(file_module, "COMPACT_RATIO", 0)
        other._compact_at = 0
        other.set("k", b"1")
        assert other.all_gather("g", b"one", 1, 2, 0) == [b"zero", b"one"]
        for number in range(3):
            other._compact_at = 0
            other.set("k", f"{number}")

    clock.events.append((1.0, meanwhile))
    assert store.all_gather("g", b"zero", 0, 2, 5) == [b"zero", b"one"]
    assert store._fetched == [1]
    store.barrier("b", 1)
    other.get("k")
    assert (other._replica.answers, store._replica.answers) == ({}, {})


def test_unfetched_answers_are_dropped(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "ANSWERS_KEPT", 2)
    store = FileStore(path)
    replica = store._replica
    for number in range(3):
        for rank in range(2):
            request = p.Gather("b:b", 2, rank, b"", False, 5.0)
            replica.apply(file_module._Do("w", 2 * number + rank, request, []))
    assert set(replica.answers) == {("w", 2), ("w", 4)}


# -- other processes ------------------------------------------------------------------------


def add_many(path: str, times: int) -> None:
    store = FileStore(path)
    for _ in range(times):
        store.add("n", 1)


def gather_many(path: str, rank: int, size: int, times: int) -> None:
    store = FileStore(path)
    for turn in range(times):
        values = store.all_gather("g", f"{turn}.{rank}", rank, size, 60)
        if values != [f"{turn}.{each}".encode() for each in range(size)]:
            raise AssertionError(values)
        store.barrier("b", size, 60, rank)


def pop_many(path: str, to: str) -> None:
    store = FileStore(path)
    while (value := store.queue_pop("q", timeout=60)) != b"end":
        store.queue_push(to, value)


def run_all(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
    running = [processes.Process(target=target, args=each) for each in arguments]
    for each in running:
        each.start()
    for each in running:
        each.join(60)
    assert [each.exitcode for each in running] == [0] * len(running)


@pytest.mark.integration
def test_no_update_of_four_processes_is_lost(path: str) -> None:
    run_all(add_many, [(path, 500)] * 4)
    assert FileStore(path).get("n") == b"2000"


@pytest.mark.integration
def test_groups_of_processes(path: str) -> None:
    run_all(gather_many, [(path, rank, 3, 10) for rank in range(3)])


@pytest.mark.integration
def test_each_value_goes_to_one_process(path: str) -> None:
    store = FileStore(path)
    for number in range(100):
        store.queue_push("q", str(number))
    for _ in range(3):
        store.queue_push("q", b"end")
    run_all(pop_many, [(path, f"out{number}") for number in range(3)])
    got = []
    for number in range(3):
        queue = f"out{number}"
        mine = [int(store.queue_pop(queue)) for _ in range(store.queue_len(queue))]
        assert mine == sorted(mine)
        got += mine
    assert sorted(got) == list(range(100))


# Says after each add what it was told, so that the test knows what was acknowledged.
WRITER = """
import sys
from rallypoint.store.file import FileStore
store = FileStore(sys.argv[1])
while True:
    total = store.add("n", 1)
    store.set("big" + str(total % 7), b"x" * (total * 7919 % 60000))
    print(total, flush=True)
"""


@pytest.mark.integration
def test_killed_writers_lose_no_acknowledged_write(path: str) -> None:
    print(f"RALLYPOINT_SEED={SEED}")
    rng = random.Random(SEED)
    told = 0
    for _ in range(6):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        for each in writers:
            assert each.stdout is not None
            each.stdout.readline()
        time.sleep(rng.random() * 0.05)
        for each in writers:
            each.kill()
        told += sum(1 + each.communicate()[0].count("\n") for each in writers)
        store = FileStore(path)
        total = store.add("n", 0)
        # Each round, a writer may have died between its add and telling us of it.
        assert told <= total <= told + 2
        told = total
        store.set("still", b"writable")


@pytest.mark.integration
def test_next_member_removes_a_killed_one(path: str) -> None:
    code = "import sys; from rallypoint.store.file import FileStore as F; "
    code += "F(sys.argv[1]).barrier('b', 3, 60, 0)"
    member = subprocess.Popen([sys.executable, "-c", code, path])
    store = FileStore(path)
    deadline = time.monotonic() + 30
    while "2 of 3" not in failure(store) and time.monotonic() < deadline:
        pass
    member.send_signal(signal.SIGKILL)
    member.wait()
    with pytest.raises(StoreTimeoutError, match=r"1 of 3 .*missing ranks: 1-2"):
        store.barrier("b", 3, 0, 0)


def failure(store: Store) -> str:
    try:
        store.barrier("b", 3, 0.01, 1)
    except StoreTimeoutError as error:
        return str(error)
    return ""


def test_dead_processes_are_known_on_this_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    host = file_module._host()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert file_module._is_dead(f"{host}|{child.pid}|x", host)
    assert not file_module._is_dead(f"{host}|{os.getpid()}|x", host)
    assert not file_module._is_dead(f"elsewhere|{child.pid}|x", host)

    def not_ours(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_ours)
    assert not file_module._is_dead(f"{host}|{child.pid}|x", host)

    def no_proc(_path: str) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "readlink", no_proc)
    assert file_module._host() == os.uname().nodename
