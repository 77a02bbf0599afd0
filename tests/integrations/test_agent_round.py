import json
import threading
import time

import pytest
from tests.integrations.rounds import make_round

from rallypoint.errors import RendezvousConnectionError, RendezvousStateError, StoreTimeoutError

LONG_SECONDS = 60.0


def test_waits_end_when_the_value_comes() -> None:
    agent_round, _ = make_round()
    timer = threading.Timer(0.7, agent_round.set, ["key", b"value"])
    timer.start()
    assert agent_round.get("key", LONG_SECONDS) == b"value"
    timer.join()
    assert agent_round.multi_get(["key", "key"], LONG_SECONDS) == [b"value", b"value"]
    agent_round.wait(["key"], LONG_SECONDS)


def test_wait_keeps_its_limit_during_the_round() -> None:
    agent_round, _ = make_round()
    began = time.monotonic()
    with pytest.raises(StoreTimeoutError):
        agent_round.get("key", 0.7)
    assert 0.6 < time.monotonic() - began < 5


def test_waits_fail_with_the_reason_when_the_round_ends() -> None:
    agent_round, handler = make_round()
    handler.lose("node3")
    for call in (agent_round.get, lambda key, limit: agent_round.wait([key], limit)):
        with pytest.raises(StoreTimeoutError, match="node3 was lost"):
            call("key", LONG_SECONDS)
    handler.close()
    with pytest.raises(StoreTimeoutError, match="closed by node7: its workers failed"):
        agent_round.get("key", LONG_SECONDS)


@pytest.mark.cases("case-C8")
def test_rank_exchange_ends_with_its_round() -> None:
    agent_round, handler = make_round()
    mine = json.dumps({"role": "trainer", "rank": 1, "local_world_size": 2})
    agent_round.set("role/1", mine)
    agent_round.store.set("role/0", b"theirs")
    handler.lose("node3")
    answers = agent_round.multi_get(["role/0", "role/1", "role/2"], LONG_SECONDS)
    assert answers == [b"theirs", mine.encode(), mine.encode()]
    assert json.loads(agent_round.get("ranks/1", LONG_SECONDS)) == [2, 6, 2, 6]


def test_exit_barrier_reports_the_finish_once() -> None:
    agent_round, handler = make_round()
    assert not agent_round.finished
    assert [agent_round.add("exit/a/count", 1), agent_round.add("exit/a/count", 1)] == [1, 2]
    assert (agent_round.finished, handler.finished) == (True, 1)
    agent_round.add("other/count", 1)
    assert handler.finished == 1


def test_finish_of_an_old_round_is_not_sent() -> None:
    agent_round, handler = make_round()
    handler.error = RendezvousStateError("the round is over")
    assert agent_round.add("exit/a/count", 1) == 1
    assert agent_round.finished


@pytest.mark.cases("case-D3")
def test_exit_barrier_opens_when_no_agent_is_left() -> None:
    agent_round, handler = make_round()
    threading.Timer(0.3, handler.lose, ["node3"]).start()
    agent_round.wait(["exit/a/last"], LONG_SECONDS)


@pytest.mark.cases("case-D3")
def test_finished_agent_sends_no_further_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rallypoint.integrations.agent_round.FINISHED_CHECK_SECONDS", 0.1)
    agent_round, handler = make_round()
    agent_round.add("exit/a/count", 1)
    with pytest.raises(StoreTimeoutError):
        agent_round.wait(["exit/a/last"], 0.35)
    assert handler.asked >= 2
    handler.error = RendezvousConnectionError("the server is gone")
    with pytest.raises(StoreTimeoutError):
        agent_round.wait(["exit/a/last"], 0.35)
    handler.error, handler.round = None, 2
    agent_round.wait(["exit/a/last"], LONG_SECONDS)
