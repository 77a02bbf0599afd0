"""The journal in a database: the contract on each of them, the cost of a commit, fencing."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine_servers import EtcdServers, RedisServer, closed_afterwards

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Engine, Entry
from rallypoint.engines.election import Election, Leader, Term
from rallypoint.engines.etcd.engine import EtcdEngine
from rallypoint.engines.redis.engine import RedisEngine
from rallypoint.errors import (
    JournalCorruptError,
    JournalError,
    JournalFullError,
    JournalLostError,
    StoreConnectionError,
    StoreError,
    StoreLimitError,
    StoreValueError,
)
from rallypoint.server.journal.contract import Journal, Opened
from rallypoint.server.journal.engine import ELECTION, LOG, EngineJournal
from rallypoint.testing.fakes import ManualClock, MemoryEngine
from rallypoint.testing.journal_suite import JournalSuite
from rallypoint.testing.store_handles import in_thread

LEASE = 30.0  # longer than any test: nobody renews here


def within() -> Deadline:
    return Deadline(30)


class StandingJournal(EngineJournal):
    """Stands for election when it is opened, and resigns when it is closed."""

    def __init__(self, engine: Engine, election: Election, leader: Leader) -> None:
        super().__init__(engine, election, Term(0, leader, Entry(0, b"")))
        self._leads = False

    def open(self, deadline: Deadline) -> Opened:
        term = self._election.try_to_lead(self._term.leader, deadline)
        while term is None:
            present = self._election.present(deadline)
            if deadline.expired():
                raise JournalLostError(f"{present and present.leader.where} leads")
            if present is not None:
                self._election.wait(present, deadline)
            term = self._election.try_to_lead(self._term.leader, deadline)
        self._term = term
        self._leads = True
        return super().open(deadline)

    def close(self) -> None:
        super().close()
        if self._leads:
            self._leads = False
            with contextlib.suppress(StoreError):
                self._election.resign(self._term, within())


def journal_on(engine: Engine, name: str = "a", clock: Any = time.monotonic) -> EngineJournal:
    election = Election(engine, ELECTION, LEASE, clock)
    return StandingJournal(engine, election, Leader(name, f"{name}:1"))


class _OnEngine(JournalSuite):
    takes_over = True
    engine: Engine

    def journal(self) -> Journal:
        return journal_on(self.engine.clone())

    def oust(self, journal: Journal) -> None:
        key = f"leader/{ELECTION}"
        seen = self.engine.read([key], within())[key]
        assert self.engine.commit({key: seen}, {key: None}, within()).done


class TestInMemory(_OnEngine):
    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.engine = MemoryEngine()


@pytest.mark.engines
@pytest.mark.integration
class TestOnEtcd(_OnEngine):
    @pytest.fixture(autouse=True)
    def place(self, etcd_server: EtcdServers) -> Iterator[None]:
        with closed_afterwards(EtcdEngine):
            self.engine = EtcdEngine(etcd_server.url(uuid.uuid4().hex))
            yield


@pytest.mark.engines
@pytest.mark.integration
class TestOnRedis(_OnEngine):
    @pytest.fixture(autouse=True)
    def place(self, redis_server: RedisServer) -> Iterator[None]:
        with closed_afterwards(RedisEngine):
            self.engine = RedisEngine(redis_server.url(uuid.uuid4().hex))
            yield


class Counting(MemoryEngine):
    """Counts, and fails when it is told to."""

    commits = reads = 0
    failure: Exception | None = None

    def commit(self, *args: Any, **options: Any) -> Any:
        self.commits += 1
        if self.failure is not None:
            raise self.failure
        return super().commit(*args, **options)

    def read(self, *args: Any) -> Any:
        self.reads += 1
        return super().read(*args)


@pytest.fixture(name="engine")
def _engine() -> Counting:
    return Counting()


def test_commit_is_one_write(engine: Counting) -> None:
    journal = journal_on(engine)
    journal.open(within())
    before = engine.commits
    for batch in range(20):
        journal.commit({f"n{i}": b"%d" % batch for i in range(1000)}, within())
    assert engine.commits - before == journal.writes == 20
    assert len(engine.scan(LOG, within())) <= 2  # what is dead goes with the next commit
    for number in range(500):
        journal.commit({f"once/{number}": b"v"}, within())
    assert engine.commits - before == 520
    assert len(engine.scan(LOG, within())) < 140
    journal.close()
    entries = journal_on(engine).open(within()).entries
    assert len(entries) == 1500


def test_paused_leader_changes_nothing() -> None:
    clock = ManualClock()
    engine = Counting(clock)
    first, second = journal_on(engine, "a", clock), journal_on(engine, "b", clock)
    first.open(within())
    first.commit({"a": b"1"}, within())
    assert first.may_answer()
    clock.advance(LEASE + 1)
    assert not first.may_answer()
    opened = second.open(within())
    assert dict(opened.entries) == {"a": b"1"}
    with pytest.raises(JournalLostError, match="b:1 leads in epoch"):
        first.commit({"a": b"2"}, within())
    with pytest.raises(JournalLostError, match="is over"):
        first.commit({}, within())
    second.commit({"b": b"1"}, within())
    second.close()
    last = journal_on(engine, "c", clock).open(within())
    assert dict(last.entries) == {"a": b"1", "b": b"1"}
    assert last.epoch > opened.epoch


def test_closed_journal_keeps_its_term(engine: Counting) -> None:
    election = Election(engine, ELECTION, LEASE, time.monotonic)
    term = election.try_to_lead(Leader("a", "a:1"), within())
    assert term is not None
    journal = EngineJournal(engine, election, term)
    assert journal.open(within()).epoch == term.epoch
    journal.commit({"a": b""}, within())
    journal.close()
    assert election.present(within()) == term
    with pytest.raises(JournalLostError, match="closed here"):
        journal.commit({"a": b""}, within())


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (StoreLimitError("full; nothing was written"), JournalFullError),
        (StoreConnectionError("away"), JournalError),
        (StoreValueError("not ours"), JournalCorruptError),
    ],
)
def test_database_errors_become_journal_errors(
    engine: Counting, failure: Exception, kind: type[Exception]
) -> None:
    journal = journal_on(engine)
    journal.open(within())
    engine.failure = failure
    with pytest.raises(JournalError, match=str(failure)) as caught:
        journal.commit({"a": b"1"}, within())
    assert type(caught.value) is kind
    engine.failure = None
    journal.commit({"a": b"2"}, within())  # the same journal goes on, where it may
    journal.close()
    assert dict(journal_on(engine).open(within()).entries) == {"a": b"2"}


def test_foreign_entry_is_refused_by_name(engine: Counting) -> None:
    engine.commit({f"{LOG}7": None}, {f"{LOG}7": b"what"}, within())
    with pytest.raises(JournalCorruptError, match=f"memory: {LOG}7 begins with"):
        journal_on(engine).open(within())
    other = Counting()
    other.commit({f"{LOG}x": None}, {f"{LOG}x": b"rpl1:\x80"}, within())
    with pytest.raises(JournalCorruptError, match=f"{LOG}x is no segment"):
        journal_on(other).open(within())


def test_close_ends_a_blocked_call() -> None:
    class Away(Counting):
        def commit(self, *args: Any, **options: Any) -> Any:
            if self.failure is None:
                return super().commit(*args, **options)
            deadline = args[2]
            while not deadline.expired():
                waiting.release()
                go_on.acquire(timeout=20)
            raise self.failure

    waiting, go_on = threading.Semaphore(0), threading.Semaphore(0)
    engine = Away()
    election = Election(engine, ELECTION, LEASE, time.monotonic)
    term = election.try_to_lead(Leader("a", "a:1"), within())
    assert term is not None
    journal = EngineJournal(engine, election, term)
    journal.open(within())
    engine.failure = StoreConnectionError("away")
    commit = in_thread(journal.commit, {"a": b""}, Deadline(600))
    assert waiting.acquire(timeout=20)
    journal.close()
    go_on.release()
    with pytest.raises(JournalLostError, match="was closed here meanwhile"):
        commit.result(20)


def test_commit_uses_the_journals_own_client(engine: Counting) -> None:
    """The election's client has limits that are too short for large values."""
    quick = engine.clone()
    election = Election(quick, ELECTION, LEASE, time.monotonic)
    term = election.try_to_lead(Leader("a", "a:1"), within())
    assert term is not None
    own = Counting()
    own._data = engine._data
    journal = EngineJournal(own, election, term)
    journal.open(within())
    journal.commit({"a": b""}, within())
    assert (own.commits, journal.may_answer()) == (1, True)
