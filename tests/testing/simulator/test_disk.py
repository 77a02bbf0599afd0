"""A disk that loses what was not synced, and a journal that another one replaces."""

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import JournalFullError, JournalLostError
from rallypoint.testing.journal_suite import JournalSuite
from rallypoint.testing.simulator.disk import LEASE_SECONDS, Disk, SimulatedJournal
from rallypoint.testing.simulator.virtual_clock import Process, VirtualClock

NOW = Deadline(0.0)


def process(clock: VirtualClock | None = None) -> Process:
    return Process(clock or VirtualClock(1), "server", 100.0)


class TestSimulatedJournal(JournalSuite):
    takes_over = True

    @pytest.fixture(autouse=True)
    def disk(self) -> None:
        self.place, self.clock = Disk(), VirtualClock(1)

    def journal(self) -> SimulatedJournal:
        return SimulatedJournal(self.place, process(self.clock))

    def oust(self, journal: object) -> None:
        self.place.epoch += 1
        self.clock.run_until(self.clock.now + 2 * LEASE_SECONDS)


def test_disk_loses_unsynced_data() -> None:
    disk, durable = Disk(), list[str]()
    disk.write({"a": b"1"}, lambda: durable.append("one"))
    disk.sync()
    disk.write({"a": b"2"}, lambda: durable.append("two"))
    disk.lose_power()
    assert disk.read() == {"a": b"1"}
    disk.write({"a": None, "b": b"3"}, lambda: durable.append("three"))
    assert disk.read() == {"b": b"3"}  # a process that ends leaves its cache
    assert durable == ["one", "three"]
    disk.wipe()
    assert disk.read() == {}


def test_full_disk_refuses_writes() -> None:
    journal = SimulatedJournal(Disk(), process())
    journal.open(NOW)
    journal._disk.full = True
    journal.commit({}, NOW)
    with pytest.raises(JournalFullError):
        journal.commit({"a": b""}, NOW)


def test_journal_knows_its_lease_and_its_end() -> None:
    clock, disk, heard = VirtualClock(1), Disk(), list[JournalLostError]()
    first, other = process(clock), process(clock)
    journal = SimulatedJournal(disk, first)
    journal.on_lost = heard.append
    journal.open(NOW)
    clock.run_until(10.0)
    assert journal.may_answer()
    first.pause()
    clock.run_until(10.0 + LEASE_SECONDS)
    assert not journal.may_answer()
    SimulatedJournal(disk, other).open(NOW)
    assert not heard
    first.resume()
    clock.run_until(11.0 + LEASE_SECONDS)
    assert len(heard) == 1
