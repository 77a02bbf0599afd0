"""Clients that are not members: case-H1 and case-H2 of README.md."""

import os
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rallypoint.deadline import Deadline
from rallypoint.net import protocol as p
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.server import server as module
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.store.tcp import TCPStore

SEED = int(os.environ.get("RALLYPOINT_SEED") or random.randrange(2**32))
MIB = 1 << 20


def listening(port: int) -> set[str]:
    """Return the addresses of this machine on which the kernel listens at a port."""
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = Path("/proc/net") / name
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            raw, _, number = fields[1].partition(":")
            if fields[3] == "0A" and int(number, 16) == port:
                words = [bytes.fromhex(raw[i : i + 8])[::-1] for i in range(0, len(raw), 8)]
                found.add(socket.inet_ntop(family, b"".join(words)))
    return found


@pytest.mark.cases("case-H1")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc/net")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
def test_only_the_requested_address_is_bound(
    serve: Callable[..., EmbeddedServer], host: str
) -> None:
    server = serve(host)
    assert listening(server.port) == {host}
    assert listening(serve("0.0.0.0", insecure=True).port) == {"0.0.0.0"}


@pytest.mark.cases("case-H1")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc/net")
def test_every_way_of_hosting_binds_only_the_requested_address() -> None:
    with TCPStore("127.0.0.1", 0, is_master=True) as master:
        assert listening(master.port) == {"127.0.0.1"}
    config = {"is_host": True}
    handler = create_handler(
        RendezvousParameters("core", "127.0.0.2:0", "run", 1, 1, config=config)
    )
    port = handler._coordinator.target.port  # type: ignore[attr-defined] # a hosted one
    assert listening(port) == {"127.0.0.2"}
    handler.shutdown()


@pytest.fixture(name="process")
def _process() -> "Iterator[tuple[subprocess.Popen[str], int]]":
    command = [sys.executable, "-m", "rallypoint", "serve", "--bind=127.0.0.1:0", "--verbose"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline().rpartition(":")[2])
        process.kill()


def answer(port: int, data: bytes) -> bytes:
    """Send bytes without a handshake; return the reply until the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(data)
        got = b""
        while piece := sock.recv(65536):
            got += piece
        return got


def tls_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="head")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.integration
@pytest.mark.cases("case-H2")
def test_foreign_protocols_are_closed_with_a_reason(
    process: "tuple[subprocess.Popen[str], int]",
) -> None:
    server, port = process
    print(f"RALLYPOINT_SEED={SEED}")
    rng = random.Random(SEED)
    config = {"is_host": False, "join": 20, "close": 5}
    member = create_handler(
        RendezvousParameters("core", f"127.0.0.1:{port}", "run", 1, 1, config=config)
    )
    info = member.next_rendezvous()
    info.store.set("key", b"x")
    memory = psutil.Process(server.pid).memory_info().rss
    assert b"400 Bad Request" in answer(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 99_999)
    assert b"TLS handshake was sent to a port without TLS" in answer(port, tls_hello())
    assert b"4294967295 bytes is above the limit" in answer(port, b"\xff" * 4 + b"x" * 1000)
    for _ in range(50):
        words = (p.HANDSHAKE_FRAME_LIMIT + rng.randrange(2**31)).to_bytes(4, "big")
        assert b"above the limit" in answer(port, words + rng.randbytes(rng.randrange(5_000)))
        body = rng.randbytes(rng.randrange(1, 4_000))
        assert b"not ours" in answer(port, len(body).to_bytes(4, "big") + body)
    assert psutil.Process(server.pid).memory_info().rss - memory < 32 * MIB
    assert info.store.get("key") == b"x"
    assert member.view().connected
    assert member.view().opened is None
    assert member.report().phase == "sealed"
    member.shutdown()
    assert server.poll() is None


@pytest.mark.cases("case-H2")
def test_silent_or_slow_client_is_closed_with_a_reason(
    serve: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.05)
    server = serve(handshake_seconds=0.5)
    hello = p.frame(p.Hello(p.PROTOCOL_VERSION, "run", b"c", b"n" * p.NONCE_BYTES, "slow"))
    member = TCPStore("127.0.0.1", server.port)
    assert b"no handshake within 0.5 s" in answer(server.port, b"")
    assert b"no handshake within 0.5 s" in answer(server.port, hello)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow:
        slow.settimeout(0.1)
        deadline, got = Deadline(20), b""
        for byte in hello:
            assert not deadline.expired()
            slow.sendall(bytes([byte]))
            try:
                got = slow.recv(4096)
            except TimeoutError:
                continue
            break
        assert b"no handshake within 0.5 s" in got
    member.set("key", b"x")
    member.close()
