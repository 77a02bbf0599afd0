"""Leading and standing by, on the database in memory: who leads when, and how losses show."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Commit, Entries, Entry
from rallypoint.engines.election import Election, Leader
from rallypoint.errors import StoreConnectionError
from rallypoint.server.ha.leadership import SILENT_LEASES, Leadership, LeaderStatus
from rallypoint.testing.fakes import ManualClock, MemoryEngine

LEASE = 0.3  # real seconds; nothing here depends on how long it is
LIMIT = 20.0


class Faulty(MemoryEngine):
    """An engine that can be away."""

    away = False
    broken: BaseException | None = None

    def clone(self) -> "Faulty":
        twin = Faulty(self._clock)
        twin._data = self._data
        return twin

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken
        if self.away:
            raise StoreConnectionError("memory: away")

    def read(self, keys: Sequence[str], deadline: Deadline) -> Entries:
        self._check()
        return super().read(keys, deadline)

    def commit(
        self,
        expected: Mapping[str, Entry | None],
        changes: Mapping[str, bytes | None],
        deadline: Deadline,
        expire: Mapping[str, float] | None = None,
    ) -> Commit:
        self._check()
        return super().commit(expected, changes, deadline, expire)

    def renew(self, *args: Any) -> bool:
        self._check()
        return super().renew(*args)


class Server:
    """What a server does with its leadership: it listens."""

    def __init__(self, name: str, engine: Faulty, clock: ManualClock | None = None) -> None:
        self.engine = engine
        self.statuses: list[LeaderStatus] = []
        self.changed = threading.Condition()
        options = {} if clock is None else {"clock": clock}
        self.election = Election(engine, "server", LEASE, clock or engine._clock)
        self.leadership = Leadership(
            self.election, Leader(name, f"{name}:1"), LEASE, self._changed, **options
        )
        self.leadership.start()

    def _changed(self, status: LeaderStatus) -> None:
        with self.changed:
            self.statuses.append(status)
            self.changed.notify_all()

    def until(self, wanted: Any) -> LeaderStatus:
        with self.changed:
            done = self.changed.wait_for(lambda: self.statuses and wanted(self.statuses[-1]), LIMIT)
            assert done, self.statuses
            return self.statuses[-1]

    def leads(self) -> LeaderStatus:
        return self.until(lambda status: status.term is not None)


@pytest.fixture(name="pair")
def _pair() -> Iterator[tuple[Server, Server]]:
    engine = Faulty()
    first = Server("a", engine)
    first.leads()
    second = Server("b", engine.clone())
    yield first, second
    for each in (first, second):
        each.leadership.stop()


def test_one_leads_and_the_other_knows_who(pair: tuple[Server, Server]) -> None:
    first, second = pair
    status = second.until(lambda status: status.leader is not None)
    assert status.term is None
    assert status.leader is not None
    assert status.leader.leader == Leader("a", "a:1")
    assert first.statuses[-1].leader == first.statuses[-1].term


def test_stopped_leader_is_replaced_at_once_in_a_new_epoch(pair: tuple[Server, Server]) -> None:
    first, second = pair
    term = first.statuses[-1].term
    first.leadership.stop()
    won = second.leads().term
    assert term is not None
    assert won is not None
    assert won.epoch > term.epoch
    assert not first.election.is_safe()


def test_resigned_leader_stands_by_again(pair: tuple[Server, Server]) -> None:
    first, second = pair
    term = first.statuses[-1].term
    assert term is not None
    second.until(lambda status: status.leader is not None)
    first.leadership.resign(term)
    won = second.leads().term
    assert won is not None
    assert first.until(lambda status: status.leader is not None).leader == won


def test_leader_without_an_entry_stands_by(pair: tuple[Server, Server]) -> None:
    first, _ = pair
    entry = first.engine.read(["leader/server"], Deadline(1))["leader/server"]
    first.engine.commit({"leader/server": entry}, {"leader/server": None}, Deadline(1))
    first.until(lambda status: "is gone" in status.trouble or status.leader is not None)
    for each in pair:
        each.until(lambda status: status.leader is not None)


def test_database_down_for_two_leases_ends_a_term(
    pair: tuple[Server, Server],
) -> None:
    first, second = pair
    second.until(lambda status: status.leader is not None)
    first.engine.away = True
    second.leads()
    status = first.until(lambda status: status.term is None)
    assert status.trouble == "memory: away"
    assert not first.election.is_safe()
    first.engine.away = False
    found = first.until(lambda status: status.leader is not None).leader
    assert found is not None
    assert found.leader.name == "b"


def test_short_outage_of_the_database_is_waited_for() -> None:
    engine, clock = Faulty(lambda: 0.0), ManualClock()  # nothing expires
    server = Server("a", engine, clock)
    server.leads()
    engine.away = True
    clock.advance(SILENT_LEASES * LEASE - 0.01)
    threading.Event().wait(LEASE)
    engine.away = False
    threading.Event().wait(LEASE)
    assert len(server.statuses) == 1
    server.leadership.stop()


def test_own_earlier_term_is_not_waited_for() -> None:
    engine, clock = Faulty(lambda: 0.0), ManualClock()  # nothing expires
    server = Server("a", engine, clock)
    term = server.leads().term
    engine.away = True
    clock.advance(SILENT_LEASES * LEASE + 0.01)
    server.until(lambda status: status.term is None)
    engine.away = False
    again = server.leads().term
    assert term is not None
    assert again is not None
    assert again.epoch > term.epoch
    server.leadership.stop()


def test_unexpected_error_is_reported() -> None:
    engine = Faulty()
    engine.broken = KeyError("a bug")
    server = Server("a", engine)
    status = server.until(lambda status: status.failure is not None)
    assert status.failure is engine.broken
    server.leadership.stop()


def test_database_down_at_the_start_is_waited_for() -> None:
    engine = Faulty()
    engine.away = True
    server = Server("a", engine)
    assert server.until(lambda status: bool(status.trouble)).trouble == "memory: away"
    engine.away = False
    server.leads()
    server.leadership.stop()
