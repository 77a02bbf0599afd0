"""Elections on the engine in memory and on real ones."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.engine_servers import EtcdServers, RedisServer, closed_afterwards
from tests.store import election_cases as cases

from rallypoint.deadline import Deadline
from rallypoint.engines.contract import Engine
from rallypoint.engines.election import Election, Leader, NotLeadingError
from rallypoint.engines.etcd.engine import EtcdEngine
from rallypoint.engines.redis.engine import RedisEngine
from rallypoint.testing.fakes import ManualClock, MemoryEngine

every_case = pytest.mark.parametrize("case", cases.CASES)
Case = Callable[[Engine], Any]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closed_afterwards(EtcdEngine), closed_afterwards(RedisEngine):
        yield


@every_case
def test_in_memory(case: Case) -> None:
    case(MemoryEngine())


@pytest.mark.engines
@pytest.mark.integration
@every_case
def test_on_etcd(case: Case, etcd_server: EtcdServers) -> None:
    case(EtcdEngine(etcd_server.url(uuid.uuid4().hex)))


@pytest.mark.engines
@pytest.mark.integration
@every_case
def test_on_redis(case: Case, redis_server: RedisServer) -> None:
    case(RedisEngine(redis_server.url(uuid.uuid4().hex)))


def test_lease_counts_from_before_the_request() -> None:
    clock, limit = ManualClock(), Deadline(5)

    class Slow(MemoryEngine):
        def renew(self, *args: Any) -> bool:
            done = super().renew(*args)
            clock.advance(1.5)
            return done

    election = Election(Slow(clock), "x", 2.0, clock)
    assert not election.is_safe()
    term = election.try_to_lead(Leader("1", "a:1"), limit)
    assert term is not None
    assert election.renew(term, limit)
    clock.advance(0.4)
    assert election.is_safe()
    clock.advance(0.2)
    assert not election.is_safe()
    clock.advance(5)
    with pytest.raises(NotLeadingError, match="nobody leads"):
        election.commit(term, {"a": None}, {"a": b""}, limit)


def test_refused_write_does_not_end_the_leadership() -> None:
    engine, limit = MemoryEngine(), Deadline(5)
    election = Election(engine, "x", 60, ManualClock())
    term = election.try_to_lead(Leader("1", "a:1"), limit)
    assert term is not None
    engine.commit({"a": None}, {"a": b"other"}, limit)
    commit = election.commit(term, {"a": None}, {"a": b"mine"}, limit)
    assert not commit.done
    assert commit.present["a"].value == b"other"
    assert election.is_safe()
