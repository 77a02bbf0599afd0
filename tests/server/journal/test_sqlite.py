"""The journal in a directory: the contract, kill -9 during a write, no room, refused files."""

import logging
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import (
    JournalCorruptError,
    JournalError,
    JournalFullError,
    JournalLostError,
)
from rallypoint.server.journal.sqlite import FILE_NAME, FORMAT, LOCK_NAME, SQLiteJournal
from rallypoint.testing.journal_suite import JournalSuite

SOON = Deadline(30)
WRITER = """
import sys
from rallypoint.deadline import Deadline
from rallypoint.server.journal.sqlite import SQLiteJournal
journal = SQLiteJournal(sys.argv[1])
entries = journal.open(Deadline(30)).entries
start = int(entries.get("last", b"0"))
for number in range(start + 1, start + 100_000):
    text = b"%d" % number
    changes = {"last": text, f"n{number % 50}": text * 200, f"n{number % 7}": None}
    journal.commit(changes, Deadline(30))
    print(number, flush=True)
"""


class TestSQLiteJournal(JournalSuite):
    takes_over = False

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> None:
        self.place = tmp_path / "deep" / "data"

    def journal(self) -> SQLiteJournal:
        return SQLiteJournal(self.place)


@pytest.fixture
def journal(tmp_path: Path) -> SQLiteJournal:
    return SQLiteJournal(tmp_path / "data")


def refused(directory: Path, kind: type[JournalError]) -> str:
    """Return why a directory is not opened."""
    with pytest.raises(kind) as caught:
        SQLiteJournal(directory).open(SOON)
    assert type(caught.value) is kind
    return str(caught.value)


def test_directory_and_files_are_private(journal: SQLiteJournal) -> None:
    journal.open(SOON)
    journal.commit({"a": b"1"}, SOON)
    for path in (journal.directory, journal.file, journal.directory / LOCK_NAME):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    journal.close()


def test_second_server_learns_who_has_the_directory(journal: SQLiteJournal) -> None:
    journal.open(SOON)
    why = refused(journal.directory, JournalLostError)
    assert f"pid {os.getpid()}" in why
    assert str(journal.directory) in why
    journal.close()
    again = SQLiteJournal(journal.directory)
    again.open(SOON)
    again.close()


def test_other_programs_cannot_write_into_it(journal: SQLiteJournal) -> None:
    journal.open(SOON)
    with (
        closing(sqlite3.connect(journal.file, timeout=0)) as other,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        other.execute("DELETE FROM entries")
    journal.close()


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert str(tmp_path / "file") in refused(tmp_path / "file" / "data", JournalError)
    assert str(tmp_path / "file") in refused(tmp_path / "file", JournalError)


@pytest.mark.parametrize("content", [b"not a database at all", b"SQLite format 3\0" + bytes(4080)])
def test_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert str(tmp_path / FILE_NAME) in refused(tmp_path, JournalCorruptError)
    assert (tmp_path / FILE_NAME).read_bytes() == content


def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("CREATE TABLE entries (name, value)")
    database.commit()
    database.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    why = refused(tmp_path, JournalCorruptError)
    assert "no file of a rallypoint server" in why
    assert "another directory" in why
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_newer_format_is_refused(journal: SQLiteJournal) -> None:
    journal.open(SOON)
    journal.close()
    database = sqlite3.connect(journal.file)
    database.execute(f"PRAGMA user_version={FORMAT + 1}")
    database.close()
    why = refused(journal.directory, JournalCorruptError)
    assert f"format {FORMAT + 1}" in why
    assert "newer" in why


def test_damaged_file_is_refused(journal: SQLiteJournal) -> None:
    journal.open(SOON)
    journal.commit({f"n{i}": bytes(1000) for i in range(100)}, SOON)
    journal.close()
    data = bytearray(journal.file.read_bytes())
    data[8192:40_000] = b"\xff" * (40_000 - 8192)
    journal.file.write_bytes(data)
    why = refused(journal.directory, JournalCorruptError)
    assert str(journal.file) in why
    assert "put back a copy" in why
    assert journal.file.read_bytes() == bytes(data)


def test_new_empty_file_is_used(journal: SQLiteJournal) -> None:
    journal.directory.mkdir()
    journal.file.touch()  # killed between making and writing it
    assert journal.open(SOON).epoch == 1
    journal.close()


def test_truncated_file_is_refused(journal: SQLiteJournal) -> None:
    journal.open(SOON)
    journal.commit({"a": b"1"}, SOON)
    journal.close()
    os.truncate(journal.file, 0)
    for _ in range(2):  # the first refusal leaves the mark
        assert "it is empty, and was not" in refused(journal.directory, JournalCorruptError)
    assert journal.file.stat().st_size == 0
    journal.file.unlink()  # as the message advises
    assert journal.open(SOON).entries == {}
    journal.close()


def test_changed_value_is_refused_by_name(journal: SQLiteJournal) -> None:
    journal.open(SOON)
    journal.commit({"a": b"1", "b": b"2"}, SOON)
    journal.close()
    with closing(sqlite3.connect(journal.file)) as database:
        database.execute("UPDATE entries SET value = x'33' WHERE name = x'62'")
        database.commit()
    why = refused(journal.directory, JournalCorruptError)
    assert "the entry 'b' is not as it was stored" in why
    assert "put back a copy" in why


def test_file_without_checksums_gets_them(journal: SQLiteJournal) -> None:
    journal.open(SOON)
    journal.commit({"a": b"1"}, SOON)
    journal.close()
    with closing(sqlite3.connect(journal.file)) as database:
        database.execute("ALTER TABLE entries DROP COLUMN checksum")
        database.execute("PRAGMA user_version=1")
        database.commit()
    opened = journal.open(SOON)
    assert (opened.epoch, dict(opened.entries)) == (2, {"a": b"1"})
    journal.commit({"b": b"2"}, SOON)
    journal.close()
    assert dict(journal.open(SOON).entries) == {"a": b"1", "b": b"2"}
    journal.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_removed_directory_is_noticed(journal: SQLiteJournal, replaced: bool) -> None:
    journal.open(SOON)
    journal.commit({"a": b"1"}, SOON)
    kept = journal.directory.rename(journal.directory.with_name("kept"))
    if replaced:
        shutil.copytree(kept, journal.directory)
    why = "another file is in its place" if replaced else "No such file"
    with pytest.raises(JournalError, match=f"was removed .*{why}"):
        journal.commit({"a": b"2"}, SOON)
    journal.close()


@pytest.mark.parametrize(("mode", "warned"), [(0o777, True), (0o755, False)])
def test_directory_writable_by_others_is_warned_about(
    journal: SQLiteJournal, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    journal.directory.mkdir()
    journal.directory.chmod(mode)
    with caplog.at_level(logging.WARNING):
        journal.open(SOON)
    journal.close()
    assert ("chmod 700" in caplog.text) is warned


def test_full_journal_stores_nothing_and_recovers(journal: SQLiteJournal) -> None:
    journal.open(SOON)
    journal.commit({"a": b"1"}, SOON)
    assert journal._database is not None
    (pages,) = journal._database.execute("PRAGMA page_count").fetchone()
    journal._database.execute(f"PRAGMA max_page_count={pages + 10}")
    with pytest.raises(JournalFullError, match=r"has no room \(.* MiB free\)") as caught:
        journal.commit({"a": b"2", "big": bytes(1 << 20)}, SOON)
    assert str(journal.directory) in str(caught.value)
    journal.commit({"b": b"3"}, SOON)
    journal._database.execute("PRAGMA max_page_count=100000")
    journal.commit({"big": bytes(1 << 20)}, SOON)
    journal.close()
    again = SQLiteJournal(journal.directory)
    assert dict(again.open(SOON).entries) == {"a": b"1", "b": b"3", "big": bytes(1 << 20)}
    again.close()


def test_closed_journal_writes_nothing(journal: SQLiteJournal) -> None:
    journal.open(SOON)
    journal.close()
    with pytest.raises(JournalLostError, match="closed"):
        journal.commit({"a": b"1"}, SOON)


def after(commits: int) -> dict[str, bytes]:
    """Return what the writer's first commits make of an empty journal."""
    entries: dict[str, bytes] = {}
    for number in range(1, commits + 1):
        text = b"%d" % number
        entries |= {"last": text, f"n{number % 50}": text * 200}
        entries.pop(f"n{number % 7}", None)
    return entries


@pytest.mark.integration
def test_commits_survive_kill_9(tmp_path: Path) -> None:
    last = 0
    for lines in (1, 40, 7, 90):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process.stdout as said:
            for _ in range(lines):
                last = int(said.readline())
            process.send_signal(signal.SIGKILL)
            rest = said.read().split()
        process.wait(30)
        last = max([last, *map(int, rest)])
        journal = SQLiteJournal(tmp_path)
        entries = journal.open(SOON).entries
        journal.close()
        stored = int(entries["last"])
        assert stored in (last, last + 1)  # the one after may be stored without an answer
        assert dict(entries) == after(stored)  # whole commits only
        last = stored


def fill(journal: SQLiteJournal, stored: list[str]) -> None:
    """Store entries until that fails, and note their names."""
    while True:
        name = f"n{len(stored)}"
        journal.commit({name: bytes(100_000)}, SOON)
        stored.append(name)


@pytest.mark.integration
def test_full_disk_is_an_error_of_its_own(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount")
    try:
        journal = SQLiteJournal(place)
        journal.open(SOON)
        journal.commit({"a": b"1"}, SOON)
        (place / "hog").write_bytes(bytes(1 << 20))
        stored: list[str] = []
        with pytest.raises(JournalFullError, match="MiB free"):
            fill(journal, stored)
        (place / "hog").unlink()
        journal.commit({"b": b"2"}, SOON)
        journal.close()
        again = SQLiteJournal(place)
        assert sorted(again.open(SOON).entries) == sorted(["a", "b", *stored])
        again.close()
    finally:
        subprocess.run(["umount", str(place)], check=True)
