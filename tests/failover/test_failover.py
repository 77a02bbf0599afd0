"""Faults of the leading server and of etcd while a job runs: two seeds of each kind.

`python -m tests.failover.run --runs 50` does more, and prints the table of docs/.
"""

import random
import threading
from collections.abc import Iterator

import pytest
from tests.engine_servers import EtcdServers
from tests.failover.server_pair import FAULTS, ServerPair, kill_leader, pair_on

from rallypoint.deadline import Deadline
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.testing.store_handles import in_thread

pytestmark = [pytest.mark.integration, pytest.mark.engines]

SEEDS = range(2)
LEAD_SECONDS = 3.0  # the lease of 2 s and one more
SLACK_SECONDS = 5.0  # for a busy machine
SERVED_SECONDS = {
    "kill the leading server": 8.0,
    "kill the etcd leader": 10.0,
    "pause the leading server for 10 s": 12.0,
    "cut the leading server off from etcd": 10.0,
}


@pytest.fixture(name="pair", scope="module")
def _pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPair]:
    etcd = EtcdServers(3).start()
    try:
        with pair_on(etcd, tmp_path_factory.mktemp("pair"), "failover") as pair:
            yield pair
    finally:
        etcd.stop()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", FAULTS)
def test_job_continues(pair: ServerPair, kind: str, seed: int) -> None:
    outcome = pair.run(FAULTS[kind], seed)
    assert outcome.calls > 10
    if kind != "kill the etcd leader":
        assert outcome.led is not None
        assert outcome.led < LEAD_SECONDS + SLACK_SECONDS
    assert outcome.held < SERVED_SECONDS[kind] + SLACK_SECONDS
    assert outcome.node < SERVED_SECONDS[kind] + SLACK_SECONDS


def test_next_leader_continues_a_gathering_round(pair: ServerPair) -> None:
    config = {"join": 60, "close": 5}
    handlers = [
        create_handler(
            RendezvousParameters("core", pair.endpoint, "gathering", 3, 3, config=dict(config))
        )
        for _ in range(3)
    ]
    joins = [in_thread(handler.next_rendezvous) for handler in handlers[:2]]
    deadline = Deadline(60)
    while len(handlers[0].report().members) < 2:
        assert not deadline.expired()
        threading.Event().wait(0.05)
    kill_leader(pair, pair.leader(), random.Random(0))
    joins.append(in_thread(handlers[2].next_rendezvous))
    assert sorted(join.result(60).rank for join in joins) == [0, 1, 2]
    assert {handler.round for handler in handlers} == {1}
    for handler in handlers:
        handler.shutdown()
