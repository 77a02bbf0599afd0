"""The server's housekeeping."""

import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.connection import ConnectionConfig
from rallypoint.net.token_sources import read_token
from rallypoint.rendezvous.client.coordinator import HostedCoordinator
from rallypoint.server import server as module
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.server.server import Server, endpoint_of
from rallypoint.store.tcp import TCPStore

LIMIT_SECONDS = 20


def test_endpoint_of_an_ipv6_socket_has_brackets() -> None:
    with socket.socket(socket.AF_INET6) as sock:
        assert endpoint_of(sock) == "[::]:0"


def test_unused_stores_of_strangers_are_forgotten(
    serve: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.02)
    server = serve(resume_seconds=0.05)
    with TCPStore("127.0.0.1", server.port, run="kept") as kept:
        kept.set("key", b"x")
    TCPStore("127.0.0.1", server.port, run="empty").close()
    deadline = Deadline(10)
    while server.call(lambda s: set(s.stores), Deadline(LIMIT_SECONDS)) != {"kept"}:
        assert not deadline.expired()


def test_withdrawn_tokens_do_not_return(
    serve: Callable[..., EmbeddedServer],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.02)
    path = tmp_path / "token"
    path.write_text("revoked\nkept\n")
    token = read_token(None, str(path))
    server = serve(token=token)

    def secrets() -> list[bytes]:
        return server.call(lambda s: [key.secret for key in s.keyring.keys], Deadline(10))

    path.write_text("kept\n")
    deadline = Deadline(10)
    while secrets() != [b"kept"]:
        assert not deadline.expired()
    for content, words in (("", "is empty"), ("admin", "line 1"), (None, "cannot be read")):
        path.unlink() if content is None else path.write_text(content)
        deadline = Deadline(10)
        while not any(words in said for said in caplog.messages):
            assert not deadline.expired()
        assert secrets() == [b"kept"]
    again = serve(token=token)  # as one that takes over in this process
    assert again.call(lambda s: [key.secret for key in s.keyring.keys], Deadline(10)) == [b"kept"]


def test_the_number_of_runs_is_limited(serve: Callable[..., EmbeddedServer]) -> None:
    server = serve(runs_limit=2)
    stores = [TCPStore("127.0.0.1", server.port, run=run) for run in ("a", "b")]
    with pytest.raises(StoreConnectionError, match="limit of 2 runs"):
        TCPStore("127.0.0.1", server.port, run="c")
    for store in stores:
        store.close()


def test_clients_learn_that_the_server_shuts_down() -> None:
    server = EmbeddedServer("127.0.0.1", 0, Options())
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        assert server.call(lambda s: len(s.connections), Deadline(LIMIT_SECONDS)) == 1
        server.stop()
        assert b"shutting down" in client.recv(1000)


def test_client_accepted_during_shutdown_gets_a_goodbye() -> None:
    said: list[str] = []

    def accept(server: Server) -> None:
        server.stop()
        late = server.new_connection()
        late.close = lambda goodbye: said.append(goodbye.code)  # type: ignore[method-assign]
        server.opened(late)
        server.closed(late)

    server = EmbeddedServer("127.0.0.1", 0, Options())
    server.call(accept, Deadline(LIMIT_SECONDS))
    server.stop()
    assert said == [p.GOODBYE_SHUTDOWN]


def test_server_of_an_ended_run_ends_with_its_last_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 600.0)
    server = EmbeddedServer("127.0.0.1", 0, Options(until_empty=True, linger_seconds=600.0))
    target = ConnectionConfig("127.0.0.1", server.port, "run")
    with TCPStore("127.0.0.1", server.port, run="run"):
        coordinator = HostedCoordinator(target, 15.0)
        coordinator.close("enough", Deadline(LIMIT_SECONDS))
        coordinator.shutdown(Deadline(LIMIT_SECONDS))
        assert server.call(lambda s: s.runs["run"].is_closed, Deadline(LIMIT_SECONDS))
    server._thread.join(LIMIT_SECONDS)
    assert not server._thread.is_alive()


def test_limit_of_open_files_is_raised_as_far_as_possible() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] // 2, before[1]))
        assert module.raise_file_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
