"""The simulated server: durable, replaced, without room; and what such faults cost a run."""

import msgspec
import pytest
from tests.testing.simulator.test_world import a_hosted_world, round_of

from rallypoint.core.state import RunState
from rallypoint.deadline import Deadline
from rallypoint.errors import JournalFullError, JournalLostError
from rallypoint.testing.journal_suite import JournalSuite
from rallypoint.testing.simulator import Fault, HostedWorld, Kind, make_world, plan_from
from rallypoint.testing.simulator.plan import Plan
from rallypoint.testing.simulator.search import quiet
from rallypoint.testing.simulator.server import LEASE_SECONDS, Disk, SimulatedJournal
from rallypoint.testing.simulator.virtual_clock import Process, VirtualClock

OUTAGES = {
    Kind.SERVER_KILL, Kind.SERVER_POWER, Kind.SERVER_TWIN, Kind.SERVER_FULL, Kind.SERVER_PAUSE,
}  # fmt: skip


def test_restarted_server_continues_from_its_disk() -> None:
    world = a_hosted_world(Fault(Kind.SERVER_POWER, 3.0, seconds=1.0))
    world.run()
    assert (world.server.starts, world.server.life, world.server.disk.epoch) == (2, 0, 2)
    assert round_of(world) == (1, 3)
    assert {agent.node_id for agent in world.live()} == {"n0.1", "n1.1", "n2.1"}


def test_replaced_server_ends_when_it_continues() -> None:
    world = a_hosted_world(Fault(Kind.SERVER_TWIN, 3.0, seconds=5.0))
    world.start()
    world.clock.run_until(2.0)
    old = world.server.process
    assert old is not None
    with world.watched():
        world.clock.run_until(9.0)
    new = world.server.process
    assert (old.alive, old.paused, new is old, world.server.starts) == (True, True, False, 2)
    with world.watched():
        world.clock.run_until(12.0)
    assert not old.alive
    assert world.server.process is new
    assert round_of(world) == (1, 3)


def test_full_disk_makes_everything_wait() -> None:
    world = a_hosted_world(Fault(Kind.SERVER_FULL, 0.0, seconds=4.0))
    with world.watched():
        world.start()
        world.clock.run_until(3.9)
        assert not world.truth.rounds
        world.clock.run_until(8.0)
    assert round_of(world)[1] == 3


def state_of(world: HostedWorld) -> RunState | None:
    return world.server.state


def test_lost_disk_starts_a_new_epoch() -> None:
    world = a_hosted_world()
    world.server.start()
    assert state_of(world) == RunState(world.run_id)
    world.server.kill(1.0, power=False, lost=True)
    world.server.kill(1.0, power=False, lost=True)
    assert state_of(world) is None
    world.clock.run_until(2.0)
    assert (world.server.starts, world.server.life) == (2, 1)


def test_first_process_is_the_server() -> None:
    world = a_hosted_world()
    world.server.start()
    world.server.replace(1.0)
    world.server.kill(1.0, power=False, lost=False)
    world.server.replace(1.0)
    world.clock.run_until(10.0)
    assert world.server.starts == 2


def outages(seed: int) -> Plan | None:
    """Return the plan of a seed with nothing in it but outages of a durable server."""
    plan = plan_from(seed, shared=False)
    faults = tuple(fault for fault in plan.faults if fault.kind in OUTAGES)
    patient = msgspec.structs.replace(
        plan.settings, rejoin_timeout_seconds=10.0, quarantine_failures=0
    )  # nobody is slower than that
    most = min(plan.latency[1], 0.05)
    return msgspec.structs.replace(
        plan, faults=faults, settings=patient, join_seconds=1000.0, stop_seconds=1.0,
        latency=(plan.latency[0], most),
    ) if faults else None  # fmt: skip


def test_outages_of_a_durable_server_lose_no_node() -> None:
    worlds = 0
    with quiet():
        for seed in range(900):
            plan = outages(seed)
            if plan is not None:
                worlds += 1
                world = make_world(plan)
                world.run()
                assert not world.truth.fenced, plan.lines()
    assert worlds > 250


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
