import http.client
import json
from http import HTTPStatus

import pytest

from rallypoint.agent.endpoint import STUCK_SECONDS, Health, HealthEndpoint
from rallypoint.agent.events import Join
from rallypoint.agent.policy import AgentState, Joining, Stopping, Working
from rallypoint.errors import ParameterError
from rallypoint.rendezvous.core.events import Assignment
from rallypoint.testing.clock import ManualClock

SEAT = Assignment(1, 1, 0, 1, 0, 1, 0, 1, "h", 1, 0, "all came")


def state(phase: Joining | Working | Stopping) -> AgentState:
    return AgentState("node", 1, phase=phase)


def status(health: Health, path: str) -> int:
    return int(health.answer(path)[0])


@pytest.mark.parametrize("phase", [Joining(), Working(SEAT), Stopping(Join("x"))])
def test_every_wait_is_live_however_long(phase: Joining | Working | Stopping) -> None:
    clock = ManualClock()
    health = Health(clock)
    health.show(state(phase), "because")
    health.rests()
    clock.advance(1e6)
    assert status(health, "/live") == 200
    assert status(health, "/ready") == (200 if isinstance(phase, Working) else 503)
    body = health.answer("/live")[1]
    assert (body["phase"], body["reason"]) == (type(phase).__name__.lower(), "because")


def test_an_agent_that_is_stuck_in_an_action_is_not() -> None:
    clock = ManualClock()
    health = Health(clock)
    health.show(state(Working(SEAT)), "")
    clock.advance(STUCK_SECONDS - 1)
    assert status(health, "/live") == 200
    clock.advance(1)
    assert status(health, "/live") == status(health, "/ready") == 503
    health.rests()
    assert status(health, "/ready") == 200


def test_other_paths_are_not_found() -> None:
    assert Health().answer("/secrets")[0] is HTTPStatus.NOT_FOUND


def ask(port: int, path: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body


@pytest.mark.integration
def test_over_http() -> None:
    with HealthEndpoint(0) as health:
        port = health.port
        assert port is not None
        status, body = ask(port, "/live?x=1")
        assert (status, body["phase"]) == (200, "starting")
        assert ask(port, "/ready")[0] == 503
        with pytest.raises(ParameterError, match=f"--health-port {port}"), HealthEndpoint(port):
            pass
    with HealthEndpoint(None) as nothing:
        assert nothing.port is None


def test_a_node_that_waits_says_for_what() -> None:
    health = Health()
    health.waits_for = lambda: "1 of 2 nodes, waiting for 1"
    health.show(state(Joining()), "joining")
    assert health.answer("/ready")[1]["reason"] == "1 of 2 nodes, waiting for 1"
    health.show(state(Working(SEAT)), "sealed")
    assert health.answer("/ready")[1]["reason"] == "sealed"
