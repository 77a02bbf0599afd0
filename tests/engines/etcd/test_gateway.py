"""The client of etcd's gateway, against a server that answers as it is told."""

import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.engine_servers import free_ports

from rallypoint.deadline import Deadline
from rallypoint.engines.etcd import messages as m
from rallypoint.engines.etcd.gateway import EXHAUSTED, UNAUTHENTICATED, Gateway, GatewayError
from rallypoint.engines.url import parse_engine_url
from rallypoint.errors import AuthenticationError, StoreConnectionError, StoreLimitError

OK: tuple[int, Any] = (200, {"header": {"revision": "7"}, "succeeded": True})


def refusal(code: int, text: str = "refused") -> tuple[int, Any]:
    return 400, {"code": code, "message": text}


class Member:
    """One member: answers each path from a list, the last answer again and again."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, Any, str]] = []
        member = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                path = self.path.removeprefix("/v3")
                token = self.headers.get("Authorization", "")
                member.asked.append((path, json.loads(body), token))
                answers = member.answers.get(path, [OK])
                status, content = answers.pop(0) if len(answers) > 1 else answers[0]
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]


@pytest.fixture
def members() -> Iterator[list[Member]]:
    made = [Member(), Member()]
    yield made
    for member in made:
        member.close()


@pytest.fixture
def gateways() -> Iterator[list[Gateway]]:
    made: list[Gateway] = []
    yield made
    for gateway in made:
        gateway.close()


@pytest.fixture
def open_gateway(gateways: list[Gateway]) -> Any:
    def make(*ports: int, credentials: str = "", options: str = "?timeout=1") -> Gateway:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        url = f"etcd://{credentials}{hosts}/x{options}"
        gateway = Gateway(parse_engine_url(url, "etcd", 2379, frozenset(("timeout",)), {}))
        gateways.append(gateway)
        return gateway

    return make


def ask(gateway: Gateway, seconds: float = 2.0) -> m.Txn:
    return gateway.call("/kv/txn", {"success": [m.get(b"k")]}, m.Txn, Deadline(seconds))


def test_answer_has_its_type(members: list[Member], open_gateway: Any) -> None:
    answer = ask(open_gateway(members[0].port))
    assert (answer.succeeded, answer.header.revision) == (True, 7)
    assert members[0].asked[0][1]["success"][0]["request_range"]["key"] == "aw=="


@pytest.mark.parametrize(
    "trouble",
    [
        refusal(14, "etcdserver: no leader"),
        refusal(4, "deadline exceeded"),
        (502, b"<html>a load balancer</html>"),
        (200, b"not JSON"),
        (200, {"succeeded": True}),
    ],
)
def test_failing_member_is_skipped(
    members: list[Member], open_gateway: Any, trouble: tuple[int, Any]
) -> None:
    members[0].answers["/kv/txn"] = [trouble]
    gateway = open_gateway(members[0].port, members[1].port)
    assert ask(gateway).succeeded
    assert ask(gateway).succeeded
    assert len(members[0].asked) == 1  # and is not asked first again


def test_refusing_and_silent_members_are_skipped(members: list[Member], open_gateway: Any) -> None:
    (nobody,) = free_ports(1)
    assert ask(open_gateway(nobody, members[0].port)).succeeded


def test_error_names_the_failure_of_every_member(members: list[Member], open_gateway: Any) -> None:
    for member in members:
        member.answers["/kv/txn"] = [refusal(14, "no leader here")]
    gateway = open_gateway(members[0].port, members[1].port)
    began = time.monotonic()
    with pytest.raises(StoreConnectionError, match=r"\d+ tries in 0.\d s; .*no leader here"):
        ask(gateway, 0.3)
    assert time.monotonic() - began < 1
    assert 4 <= len(members[0].asked) + len(members[1].asked) <= 40  # with growing pauses


def test_refusals_are_distinguished_by_code(members: list[Member], open_gateway: Any) -> None:
    gateway = open_gateway(members[0].port, credentials="me:pw@")
    members[0].answers["/auth/authenticate"] = [(200, {"token": "t1"})]
    for code, kind in ((3, GatewayError), (5, GatewayError), (7, AuthenticationError)):
        members[0].answers["/kv/txn"] = [refusal(code)]
        with pytest.raises(kind, match="refused"):
            ask(gateway)


def test_token_is_fetched_again_only_when_it_expired(
    members: list[Member], open_gateway: Any
) -> None:
    gateway = open_gateway(members[0].port, credentials="me:pw@")
    members[0].answers["/auth/authenticate"] = [(200, {"token": "t1"}), (200, {"token": "t2"})]
    ask(gateway)
    ask(gateway)
    members[0].answers["/kv/txn"] = [refusal(UNAUTHENTICATED), OK]
    ask(gateway)
    tokens = [token for path, _, token in members[0].asked if path == "/kv/txn"]
    assert tokens == ["t1", "t1", "t1", "t2"]
    assert members[0].asked[0][1] == {"name": "me", "password": "pw"}


def test_disabled_authentication_lets_clients_in(members: list[Member], open_gateway: Any) -> None:
    members[0].answers["/auth/authenticate"] = [refusal(9, "authentication is not enabled")]
    assert ask(open_gateway(members[0].port, credentials="me:pw@")).succeeded


@pytest.mark.parametrize(("code", "kind"), [(3, AuthenticationError), (9, GatewayError)])
def test_missing_credentials_fail_at_once(
    members: list[Member], open_gateway: Any, code: int, kind: type[Exception]
) -> None:
    members[0].answers["/kv/txn"] = [refusal(3, "user name is empty")]
    members[0].answers["/auth/authenticate"] = [refusal(code)]
    with pytest.raises(kind, match="no user was given") as caught:
        ask(open_gateway(members[0].port))
    assert type(caught.value) is kind


def test_full_and_busy_are_distinguished(members: list[Member], open_gateway: Any) -> None:
    gateway = open_gateway(members[0].port)
    members[0].answers["/kv/txn"] = [refusal(EXHAUSTED, "too many requests"), OK]
    members[0].answers["/maintenance/alarm"] = [(200, {})]
    assert ask(gateway).succeeded
    members[0].answers["/kv/txn"] = [refusal(EXHAUSTED, "database space exceeded")]
    for alarms in ((200, {"alarms": [{"memberID": "1", "alarm": "NOSPACE"}]}), refusal(7)):
        members[0].answers["/maintenance/alarm"] = [alarms]
        with pytest.raises(StoreLimitError, match=r"database space exceeded.*alarm disarm"):
            ask(gateway)


def test_refused_watch(members: list[Member], open_gateway: Any) -> None:
    members[0].answers["/watch"] = [refusal(14, "no leader")]
    gateway = open_gateway(members[0].port)
    with (
        pytest.raises(StoreConnectionError, match="no leader"),
        gateway.watch(b"k", Deadline(1)),
    ):
        pass


def test_end_of_a_stream_wakes_the_waiter(members: list[Member], open_gateway: Any) -> None:
    members[0].answers["/watch"] = [(200, b'{"result":{"created":true}}\n')]
    gateway = open_gateway(members[0].port)
    with gateway.watch(b"k", Deadline(1)) as watch:
        assert watch.next(1.0)
    assert members[0].paths() == ["/kv/range", "/watch"]


def test_forked_child_has_its_own_connections(
    members: list[Member], open_gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = open_gateway(members[0].port)
    ask(gateway)
    before = gateway._pools
    monkeypatch.setattr(os, "getpid", lambda: -1)
    ask(gateway)
    assert gateway._pools is not before
    for pool in before:
        pool.close()
