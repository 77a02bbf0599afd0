import http.client
import json
import re
from http import HTTPStatus

import pytest

from rallypoint.agent.health_server import STUCK_SECONDS, HealthServer
from rallypoint.agent.policy.decisions import AgentState, Joining, Stopping, Working
from rallypoint.agent.policy.events import Join
from rallypoint.core.events import Assignment
from rallypoint.errors import ParameterError
from rallypoint.net.endpoints import join_endpoint
from rallypoint.testing.fakes import ManualClock

SEAT = Assignment(1, 1, 0, 1, 0, 1, 0, 1, "h", 1, 0, "all came")


def state(phase: Joining | Working | Stopping) -> AgentState:
    return AgentState("node", 1, phase=phase)


def status(health: HealthServer, path: str) -> int:
    return int(health.answer(path)[0])


@pytest.mark.parametrize("phase", [Joining(), Working(SEAT), Stopping(Join("x"))])
def test_waiting_agent_is_live(phase: Joining | Working | Stopping) -> None:
    clock = ManualClock()
    health = HealthServer(None, clock)
    health.show(state(phase))
    health.idle()
    clock.advance(1e6)
    assert status(health, "/live") == 200
    assert status(health, "/ready") == (200 if isinstance(phase, Working) else 503)
    body = health.answer("/live")[1]
    ready = isinstance(phase, Working)
    told = {"live": True, "ready": ready, "phase": type(phase).__name__.lower()}
    assert body == told, "and nothing that names nodes or carries what programs wrote"


def test_agent_stuck_in_an_action_is_not_live() -> None:
    clock = ManualClock()
    health = HealthServer(None, clock)
    health.show(state(Working(SEAT)))
    clock.advance(STUCK_SECONDS - 1)
    assert status(health, "/live") == 200
    clock.advance(1)
    assert status(health, "/live") == status(health, "/ready") == 503
    health.idle()
    assert status(health, "/ready") == 200


def test_other_paths_are_not_found() -> None:
    assert HealthServer(None).answer("/secrets")[0] is HTTPStatus.NOT_FOUND


def ask(host: str, port: int, path: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body


@pytest.mark.integration
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_over_http(host: str) -> None:
    with HealthServer((host, 0)) as health:
        port = health.port
        assert port is not None
        status, body = ask(host, port, "/live?x=1")
        assert (status, body["phase"]) == (200, "starting")
        assert ask(host, port, "/ready")[0] == 503
        taken = re.escape(f"--health-port {join_endpoint(host, port)}: cannot listen on it: ")
        with pytest.raises(ParameterError, match=taken), HealthServer((host, port)):
            pass


@pytest.mark.integration
@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_listens_on_the_given_address_only(host: str) -> None:
    other = "127.0.0.2" if host == "127.0.0.1" else "127.0.0.1"
    with HealthServer((host, 0)) as health:
        port = health.port
        assert port is not None
        assert ask("127.0.0.1" if other == "127.0.0.2" else "::1", port, "/live")[0] == 200
        with pytest.raises(ConnectionRefusedError):
            ask(other, port, "/live")


@pytest.mark.parametrize("host", ["192.0.2.1", "x" * 70])
def test_unusable_address_is_named(host: str) -> None:
    with (
        pytest.raises(ParameterError, match=f"--health-port {host}:80"),
        HealthServer((host, 80)),
    ):
        pass


def test_without_an_address_it_does_not_listen() -> None:
    with HealthServer(None) as nothing:
        assert nothing.port is None
