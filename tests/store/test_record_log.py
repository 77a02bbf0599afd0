"""The shared log: framing, torn tails, damage, foreign files, replacing, locks."""

import errno
import fcntl
import os
import random
from pathlib import Path

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreError, StoreTimeoutError
from rallypoint.store.record_log import MAGIC, RecordLog

SEED = int(os.environ.get("RALLYPOINT_SEED", random.randrange(1 << 32)))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "log")


def write(log: RecordLog, *bodies: bytes) -> None:
    for body in bodies:
        with log.locked(Deadline(5)):
            log.read()
            log.append(body)


def test_one_handle_reads_what_another_writes(path: str) -> None:
    one, two = RecordLog(path), RecordLog(path)
    write(one, b"1", b"")
    assert two.read() == (True, [b"1", b""])
    write(two, b"3" * 100_000)
    assert one.read() == (False, [b"3" * 100_000])
    assert one.read() == (False, [])
    one.rewind()
    assert one.read() == (True, [b"1", b"", b"3" * 100_000])
    assert one.size == two.size == os.path.getsize(path)


def test_partial_last_record_is_ignored_and_then_removed(path: str) -> None:
    print(f"RALLYPOINT_SEED={SEED}")
    rng = random.Random(SEED)
    write(RecordLog(path), b"first")
    whole = os.path.getsize(path)
    write(RecordLog(path), bytes(rng.randrange(256) for _ in range(300)))
    content = Path(path).read_bytes()
    for length in [*sorted(rng.sample(range(whole, len(content)), 40)), whole + 1]:
        Path(path).write_bytes(content[:length])
        log = RecordLog(path)
        assert log.read() == (True, [b"first"])
        assert log.read() == (False, [])
        write(log, b"second")
        assert RecordLog(path).read() == (True, [b"first", b"second"])


def test_last_record_with_a_wrong_checksum_is_ignored(path: str) -> None:
    write(RecordLog(path), b"first", b"second")
    flip(path, -1)
    log = RecordLog(path)
    assert log.read() == (True, [b"first"])
    write(log, b"third")
    assert RecordLog(path).read() == (True, [b"first", b"third"])


def flip(path: str, at: int) -> None:
    content = bytearray(Path(path).read_bytes())
    content[at] ^= 0xFF
    Path(path).write_bytes(content)


@pytest.mark.parametrize("inside", [0, 4, 7, 8, 12])
def test_damage_in_the_middle_is_an_error(path: str, inside: int) -> None:
    log = RecordLog(path)
    write(log, b"first")
    start = log.size
    write(log, b"second", b"third")
    flip(path, start + inside)
    before = Path(path).read_bytes()
    fresh = RecordLog(path)
    with pytest.raises(StoreError, match=rf"log: damaged.* offset {start}, .*restore"):
        fresh.read()
    with pytest.raises(StoreError, match="damaged"), fresh.locked(Deadline(1)):
        fresh.append(b"not")
    assert Path(path).read_bytes() == before


def test_partial_value_that_looks_like_a_log_is_removed(path: str) -> None:
    write(RecordLog(path), b"inner", b"inner too")
    copy = Path(path).read_bytes()
    write(RecordLog(path), copy + b"tail")
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 1)
    log = RecordLog(path)
    assert log.read()[1] == [b"inner", b"inner too"]
    write(log, b"goes on")
    assert log.size == os.path.getsize(path)


def test_truncated_file_is_damaged(path: str) -> None:
    log = RecordLog(path)
    write(log, b"first")
    with open(path, "r+b") as file:
        file.truncate(20)
    with pytest.raises(StoreError, match=r"damaged: .* were committed, 20 are left"):
        log.read()


@pytest.mark.parametrize("content", [b"#!/bin/sh\n", b"x", b"rallypoint-stare " * 3])
def test_file_of_another_program_is_refused(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)
    with pytest.raises(StoreError, match="log: is not a Rallypoint store file"):
        RecordLog(path)
    assert Path(path).read_bytes() == content


def test_other_format_is_refused(path: str) -> None:
    Path(path).write_bytes(MAGIC + b"\x01\x00")
    with pytest.raises(StoreError, match="has format 256, this version reads 1"):
        RecordLog(path)


@pytest.mark.parametrize("length", [0, 1, 16, 17])
def test_partial_header_is_completed(path: str, length: int) -> None:
    write(RecordLog(path), b"x")
    Path(path).write_bytes(Path(path).read_bytes()[:length])
    assert RecordLog(path).read() == (True, [])
    write(RecordLog(path), b"y")
    assert RecordLog(path).read() == (True, [b"y"])


def test_unopenable_or_missing_file(path: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="none/log: cannot open"):
        RecordLog(str(tmp_path / "none" / "log"))
    log = RecordLog(path)
    os.unlink(path)
    with pytest.raises(StoreError, match="gone"):
        log.read()
    log.close()
    log.close()
    with pytest.raises(StoreError, match="closed"):
        log.read()


@pytest.mark.parametrize("sync", [False, True])
def test_replacing(path: str, sync: bool) -> None:
    one, two = RecordLog(path, sync), RecordLog(path)
    write(one, b"1", b"2")
    two.read()
    os.chmod(path, 0o640)
    with one.locked(Deadline(5)):
        one.read()
        one.replace(b"all")
        one.append(b"3")  # the lock is held on the new file too
        with pytest.raises(StoreTimeoutError), two.locked(Deadline(0)):
            pass
    assert two.read() == (True, [b"all", b"3"])
    write(two, b"4")
    assert one.read() == (False, [b"4"])
    assert os.stat(path).st_mode & 0o777 == 0o640
    assert os.listdir(os.path.dirname(path)) == ["log"]


def test_writer_waiting_for_an_old_lock_uses_the_new_file(path: str) -> None:
    one = RecordLog(path)
    write(one, b"1")
    compacting = one.locked(Deadline(5))
    compacting.__enter__()
    one.read()
    tries: list[float] = []

    def let_go(duration: float) -> None:
        tries.append(duration)
        if len(tries) == 60:  # past the eager tries
            one.replace(b"all")
            compacting.__exit__(None, None, None)

    two = RecordLog(path, sleep=let_go)
    write(two, b"2")
    assert RecordLog(path).read() == (True, [b"all", b"2"])
    assert (tries[0], tries[-1]) == (0.0, 0.0005)


def test_lock_is_never_released(path: str) -> None:
    one, two = RecordLog(path), RecordLog(path)
    with (
        one.locked(Deadline(5)),
        pytest.raises(StoreTimeoutError, match=r"another process held .* lock for 0\.01 s"),
        two.locked(Deadline(0.01)),
    ):
        pass


def test_partial_record_of_a_live_writer_is_kept(path: str) -> None:
    one, two = RecordLog(path), RecordLog(path)
    with one.locked(Deadline(5)):
        one.read()
        with open(path, "ab") as file:
            file.write(b"\xf5RP\nhalf")
        assert two.read() == (True, [])
        one.append(b"whole")
    assert two.read() == (False, [b"whole"])


@pytest.mark.parametrize("what", ["append", "replace"])
def test_full_disk_leaves_the_file_unchanged(
    path: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RecordLog(path)
    write(log, b"1")
    real = os.pwrite

    def full(fd: int, data: memoryview, offset: int) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[:5], offset)

    with log.locked(Deadline(5)):
        log.read()
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match=r"cannot (write|compact) .*No space left"):
            getattr(log, what)(b"a long record")
        monkeypatch.undo()
    write(log, b"2")
    assert RecordLog(path).read() == (True, [b"1", b"2"])
    assert os.listdir(os.path.dirname(path)) == ["log"]


def test_lock_fails(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RecordLog(path)

    def no_locks(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(StoreError, match="cannot lock"), log.locked(Deadline(5)):
        pass


def test_forked_child_opens_the_file_itself(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RecordLog(path)
    write(log, b"1")
    other = RecordLog(path)
    other.read()
    before = os.fstat(other._fd).st_ino
    monkeypatch.setattr(os, "getpid", lambda: -1)
    old_fd = os.dup(other._fd)  # as the parent keeps it
    assert other.read() == (False, [])
    with other.locked(Deadline(5)), pytest.raises(BlockingIOError):
        fcntl.flock(old_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(old_fd)
    assert os.fstat(other._fd).st_ino == before
