"""Binding exactly what was asked, and housekeeping."""

import errno
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError, StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.connection import Target
from rallypoint.net.token_sources import read_token
from rallypoint.rendezvous.client.coordinator import HostedCoordinator
from rallypoint.server import server as module
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.server.server import Server, bind, endpoint_of
from rallypoint.store.tcp import TCPStore

LIMIT_SECONDS = 20


def addresses(sockets: list[socket.socket]) -> list[str]:
    found = [endpoint_of(sock) for sock in sockets]
    for sock in sockets:
        sock.close()
    return found


def resolver(*places: tuple[int, str]) -> Callable[..., list[Any]]:
    def answer(_host: str, port: int, **_: object) -> list[Any]:
        return [
            (family, socket.SOCK_STREAM, 6, "", (address, port, 0, 0)[: 4 if ":" in address else 2])
            for family, address in places
        ]

    return answer


def test_bind_is_exact(port: int) -> None:
    assert addresses(bind("127.0.0.2", port, Options())) == [f"127.0.0.2:{port}"]


def test_bind_takes_one_port_for_all_addresses_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = resolver(*[(socket.AF_INET, a) for a in ("127.0.0.1", "127.0.0.2", "127.0.0.1")])
    monkeypatch.setattr(socket, "getaddrinfo", twice)
    one, two = addresses(bind("name", 0, Options()))
    assert (one.partition(":")[0], two.partition(":")[0]) == ("127.0.0.1", "127.0.0.2")
    assert one.partition(":")[2] == two.partition(":")[2]


def test_bind_passes_over_addresses_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(socket.AF_INET6, "2001:db8::7"), (socket.AF_INET, "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", resolver(*places))
    (bound,) = addresses(bind("name", 0, Options()))
    assert bound.startswith("127.0.0.1:")
    monkeypatch.setattr(socket, "getaddrinfo", resolver(places[0]))
    with pytest.raises(OSError, match="cannot listen on name:7") as caught:
        bind("name", 7, Options())
    assert caught.value.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def test_bind_asks_for_a_token_only_where_it_would_listen(port: int) -> None:
    with pytest.raises(ParameterError, match=r"0\.0\.0\.0 without a token"):
        bind("0.0.0.0", port, Options())
    with pytest.raises(OSError, match=r"192\.0\.2\.1:29400") as caught:
        bind("192.0.2.1", 29400, Options())  # another machine's: nothing is exposed here
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_bind_names_an_unknown_host() -> None:
    with pytest.raises(socket.gaierror, match=r"cannot listen on nope\.invalid:1"):
        bind("nope.invalid", 1, Options())


def test_a_taken_port_frees_what_was_bound(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(OSError, match=f"127.0.0.1:{port}") as caught:
            bind("127.0.0.1", port, Options())
        assert caught.value.errno == errno.EADDRINUSE


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


def test_tokens_that_were_taken_back_do_not_return(
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


def test_clients_are_told_that_the_server_shuts_down() -> None:
    server = EmbeddedServer("127.0.0.1", 0, Options())
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        assert server.call(lambda s: len(s.connections), Deadline(LIMIT_SECONDS)) == 1
        server.stop()
        assert b"shutting down" in client.recv(1000)


def test_who_is_accepted_as_the_server_ends_is_told_to_come_again() -> None:
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


def test_whose_run_is_over_ends_with_its_last_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 600.0)
    server = EmbeddedServer("127.0.0.1", 0, Options(until_empty=True, linger_seconds=600.0))
    target = Target("127.0.0.1", server.port, "run")
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
