import os
import time
from pathlib import Path

import pytest

from rallypoint.worker.change import (
    ChangeKind,
    ChangeReader,
    ChangeWriter,
    PendingChange,
    no_change,
)


def test_no_change_is_pending_without_an_announcement(tmp_path: Path) -> None:
    assert ChangeReader(tmp_path / "change.json")() is None
    assert no_change() is None


def test_workers_read_what_their_agent_announces(tmp_path: Path) -> None:
    writer = ChangeWriter(tmp_path / "change.json")
    read = ChangeReader(writer.path)
    writer.announce(ChangeKind.JOINING, "1 node", "1 node waits", 60.0)
    change = read()
    assert change is not None
    assert (change.number, change.kind, change.who, change.why) == (
        1, ChangeKind.JOINING, "1 node", "1 node waits",
    )  # fmt: skip
    assert 0 < change.seconds_left <= 60
    writer.announce(ChangeKind.LEAVING, "node-a", "received SIGTERM", 5.0)
    again = read()
    assert again is not None
    assert (again.number, again.kind) == (2, ChangeKind.LEAVING)
    writer.cancel()
    writer.cancel()
    assert read() is None
    assert list(tmp_path.iterdir()) == []


def test_announcement_is_read_once_per_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ChangeWriter(tmp_path / "change.json")
    read = ChangeReader(writer.path)
    writer.announce(ChangeKind.JOINING, "1 node", "1 node waits", 60.0)
    first = read()
    monkeypatch.setattr(Path, "read_bytes", None)
    assert read() is first
    assert os.stat(writer.path).st_size < 4096  # one small file


def test_past_deadline_is_zero() -> None:
    change = PendingChange(1, ChangeKind.JOINING, "", "", time.monotonic() - 5)
    assert change.seconds_left == 0.0
