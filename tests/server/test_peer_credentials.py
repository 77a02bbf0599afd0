"""Whose process is at the other end: the kernel's answers, and what follows from them."""

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.server.fakes import FakeLoop

from rallypoint.deadline import Deadline
from rallypoint.errors import AuthenticationError
from rallypoint.net import protocol as p
from rallypoint.server import peer_credentials as module
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.peer_credentials import (
    Netlink,
    PeerCredentials,
    find_peer_credentials,
    may_talk,
    read_tables,
    refusal,
)
from rallypoint.store.tcp import TCPStore

Serve = Callable[..., EmbeddedServer]
NOBODY = 65534
linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")

HEAD = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n"
)
ROW = "   0: {} {} 01 00000000:00000000 00:00000000 00000000  {}        0 {} 1 x 20 4 30 10 -1\n"


@contextlib.contextmanager
def sockets_of(uid: int) -> Iterator[None]:
    """Make this thread's new sockets another user's."""
    libc = ctypes.CDLL(None)
    before = libc.setfsuid(uid)
    try:
        yield
    finally:
        libc.setfsuid(before)


@contextlib.contextmanager
def pair(host: str, client_host: str = "", uid: int = 0) -> Iterator[tuple[Any, Any, Any]]:
    """Yield a listening socket, a client's and the accepted one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening, contextlib.ExitStack() as own:
        port = listening.getsockname()[1]
        with sockets_of(uid) if uid else contextlib.nullcontext():
            kind = socket.AF_INET6 if ":" in (client_host or host) else socket.AF_INET
            client = own.enter_context(socket.socket(kind))
            client.connect((client_host or host, port))
        accepted = own.enter_context(listening.accept()[0])
        yield listening, client, accepted


# -- what the kernel says -----------------------------------------------------------------


@linux
@pytest.mark.integration
@pytest.mark.parametrize(
    ("host", "client_host"),
    [("127.0.0.1", ""), ("127.0.0.7", ""), ("::1", ""), ("127.0.0.1", "::ffff:127.0.0.1")],
)
def test_netlink_and_proc_know_the_owner(host: str, client_host: str) -> None:
    with contextlib.closing(Netlink()) as netlink, pair(host, client_host) as (_, client, end):
        ends = end.getpeername(), end.getsockname()
        assert netlink.uid(*ends) == os.geteuid()
        assert read_tables([ends]) == [os.geteuid()]
        client.close()
        assert netlink.uid(*ends) is None
        assert read_tables([ends]) == [None]


@linux
@root
@pytest.mark.integration
def test_netlink_and_proc_know_another_user() -> None:
    with contextlib.closing(Netlink()) as netlink, pair("127.0.0.1", uid=NOBODY) as (_, _, end):
        ends = end.getpeername(), end.getsockname()
        assert netlink.uid(*ends) == NOBODY
        assert read_tables([ends]) == [NOBODY]


@linux
@pytest.mark.integration
def test_listener_on_the_clients_port_is_not_the_client() -> None:
    with contextlib.closing(Netlink()) as netlink, socket.create_server(("127.0.0.1", 0)) as other:
        assert netlink.look(other.getsockname(), ("127.0.0.1", 9)) is not None
        assert netlink.uid(other.getsockname(), ("127.0.0.1", 9)) is None


def test_proc_is_read_for_all_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.byteorder != "little":
        pytest.skip("the rows below are those of a little-endian machine")
    (tmp_path / "tcp").write_text(
        HEAD
        + ROW.format("0100007F:9C40", "0100007F:72D8", 1001, 77)
        + ROW.format("0100007F:9C41", "0100007F:72D8", 0, 0)  # closed by its process
    )
    (tmp_path / "tcp6").write_text(
        HEAD
        + ROW.format("0" * 24 + "01000000:9C42", "0" * 24 + "01000000:72D8", 1002, 78)
        + ROW.format(
            "0000000000000000FFFF00000100007F:9C43",
            "0000000000000000FFFF00000100007F:72D8",
            1003,
            79,
        )
    )
    tables = (str(tmp_path / "tcp"), str(tmp_path / "tcp6"))
    monkeypatch.setattr(module, "_TABLES", tables)
    here = ("127.0.0.1", 29400)
    asked: list[Any] = [(("127.0.0.1", port), here) for port in (40000, 40001, 40003, 40009)]
    asked.append((("::1", 40002, 0, 0), ("::1", 29400, 0, 0)))
    assert read_tables(asked) == [1001, None, 1003, None, 1002]
    monkeypatch.setattr(module, "_TABLES", (*tables[:1], str(tmp_path / "missing")))
    assert read_tables(asked[:1]) == [1001]


# -- what is made of it -------------------------------------------------------------------


def test_this_user_and_root_may_talk() -> None:
    assert may_talk(os.geteuid())
    assert may_talk(0)
    assert not may_talk(os.geteuid() + 1)
    assert not may_talk(None)


def test_refusal_says_who_may_talk_and_what_helps() -> None:
    text = refusal(1234)
    assert f"uid {os.geteuid()} and of root only" in text
    assert "uid 1234" in text
    assert "RALLYPOINT_TOKEN" in text
    assert "--insecure" in text
    assert "closed already" in refusal(None)


def test_many_queries_are_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = FakeLoop()
    readings: list[int] = []
    told: list[int | None] = []

    def read(asked: Any) -> list[int | None]:
        readings.append(len(list(asked)))
        loop.now += 0.5
        return [7] * readings[-1]

    monkeypatch.setattr(module, "read_tables", read)
    owners = PeerCredentials(cast(asyncio.AbstractEventLoop, loop), None)
    for port in range(5000):
        owners.ask(("127.0.0.1", port), ("127.0.0.1", 1), told.append)
    assert told == []
    loop.advance(0.125)
    assert (readings, told) == ([5000], [7] * 5000)
    owners.ask(("127.0.0.1", 1), ("127.0.0.1", 1), told.append)
    loop.advance(1.5)
    assert len(readings) == 1  # it rests for several times what the last reading took
    loop.advance(1.0)
    assert readings == [5000, 1]


def test_closed_socket_has_no_owner() -> None:
    told: list[int | None] = []
    owners = PeerCredentials(cast(asyncio.AbstractEventLoop, FakeLoop()), None)
    owners.ask(None, ("127.0.0.1", 1), told.append)
    owners.ask(("127.0.0.1", 1), None, told.append)
    assert told == [None, None]


def test_systems_that_cannot_tell_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = cast(asyncio.AbstractEventLoop, FakeLoop())
    with socket.socket() as sock:
        monkeypatch.setattr(sys, "platform", "darwin")
        assert find_peer_credentials(loop, sock) is None
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(module, "Netlink", refuse)
        monkeypatch.setattr(module, "_TABLES", ("/nowhere/tcp",))
        assert find_peer_credentials(loop, sock) is None


def refuse() -> None:
    raise PermissionError("not in this sandbox")


# -- a server -----------------------------------------------------------------------------


@pytest.fixture(name="way", params=["netlink", "proc"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "proc":
        monkeypatch.setattr(module, "Netlink", refuse)
    return str(request.param)


@linux
@root
@pytest.mark.integration
def test_process_of_another_user_learns_why_it_is_refused(serve: Serve, way: str) -> None:
    server = serve()
    asked = server.call(lambda s: getattr(s.peer_credentials, "_netlink"), Deadline(5))  # noqa: B009
    assert (asked is not None) is (way == "netlink")
    assert server.call(lambda s: s.access, Deadline(5)).endswith("uid 0 and of root")
    with sockets_of(NOBODY), pytest.raises(AuthenticationError, match="uid 65534; give both"):
        TCPStore("127.0.0.1", server.port, timeout=5)
    with TCPStore("127.0.0.1", server.port, timeout=5) as store:
        store.set("key", b"x")
    for open_one in (serve(insecure=True), serve(token=b"secret")):
        token = "secret" if open_one.call(lambda s: bool(s.keyring), Deadline(5)) else None
        with sockets_of(NOBODY), TCPStore("127.0.0.1", open_one.port, token=token) as store:
            store.set("key", b"x")


@linux
@root
@pytest.mark.integration
def test_process_of_another_user_is_refused(serve: Serve) -> None:
    server = serve()
    hello = p.frame(p.Hello(p.PROTOCOL_VERSION, "run", b"c" * 16, b"n" * p.NONCE_BYTES, "test"))
    said = "".join(f"\\x{byte:02x}" for byte in hello)
    script = f"exec 3<>/dev/tcp/127.0.0.1/{server.port}; printf '{said}' >&3; cat <&3"
    answer = subprocess.run(
        ["bash", "-c", script], user=NOBODY, capture_output=True, timeout=20, check=True
    ).stdout
    body = msgspec.msgpack.decode(answer[4:], type=p.Goodbye)
    assert body.code == p.GOODBYE_TOKEN
    assert "uid 65534" in body.reason


@linux
@root
@pytest.mark.integration
def test_root_may_talk_to_another_users_server(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    server = serve()
    with TCPStore("127.0.0.1", server.port, timeout=5) as store:
        store.set("key", b"x")
    with sockets_of(4242), TCPStore("127.0.0.1", server.port, timeout=5) as store:
        assert store.get("key", timeout=5) == b"x"


@linux
@pytest.mark.integration
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("reset", [False, True])
def test_frames_sent_before_the_welcome_change_nothing(serve: Serve, reset: bool) -> None:
    """A client that sends all at once and closes is nobody's by the time it is looked at.

    After a reset the kernel does not even say any more where the client was.
    """
    server = serve()
    hello = p.Hello(p.PROTOCOL_VERSION, "run", b"c" * 16, b"n" * p.NONCE_BYTES, "test")
    ahead = p.frame(hello) + p.frame(p.Proof(b"")) + p.frame(p.Call(1, 1, p.Set("k", b"v")))
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(10)

    server._loop.call_soon_threadsafe(hold)
    assert held.wait(10)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(ahead)
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    go_on.set()
    deadline = Deadline(5)
    while server.call(lambda s: s.requests, deadline) < 1:
        time.sleep(0.01)
    with TCPStore("127.0.0.1", server.port, run="other", timeout=5) as store:  # others go on
        store.set("key", b"x")
    assert server.call(lambda s: (list(s.stores), s.faults.count), Deadline(5)) == (["other"], 0)


@pytest.mark.integration
def test_client_gone_before_its_owner_is_known_does_not_enter(serve: Serve) -> None:
    server, asked = serve(insecure=True), list[Any]()

    class Late:
        def ask(self, _peer: Any, _own: Any, told: Callable[[int], None]) -> None:
            asked.append(told)

        def close(self) -> None: ...

    server.call(lambda s: setattr(s, "peer_credentials", Late()), Deadline(5))
    hello = p.Hello(p.PROTOCOL_VERSION, "run", b"c" * 16, b"n" * p.NONCE_BYTES, "test")
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(p.frame(hello) + p.frame(p.Proof(b"")))
    deadline = Deadline(5)
    while not asked or server.call(lambda s: len(s.connections), deadline):
        time.sleep(0.01)
    server.call(lambda _: asked[0](os.geteuid()), Deadline(5))
    assert server.call(lambda s: list(s.stores), Deadline(5)) == []
