"""Access needs a token, runs are separate, secrets stay secret, token rotation is seamless."""

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rallypoint.core.events import Admit, Exclude, Leave, Notify
from rallypoint.core.state import Aspect
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    AuthenticationError,
    RendezvousConnectionError,
    RendezvousStateError,
)
from rallypoint.net import protocol as p
from rallypoint.net.connection import ClientConnection, ConnectionConfig, open_connection
from rallypoint.net.token_sources import read_token
from rallypoint.net.tokens import worker_token
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.server import server as module
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.server import Server
from rallypoint.store.tcp import TCPStore
from rallypoint.testing.store_handles import in_thread

Serve = Callable[..., EmbeddedServer]
Make = Callable[..., DynamicRendezvousHandler]
LIMIT = 30.0
TOKENS = "admin root\nall nodes\nrun:one only-one\nread looker\n"
_decoder = msgspec.msgpack.Decoder(wire.ServerBody)


@pytest.fixture(name="make")
def _make() -> Iterator[Make]:
    made: list[DynamicRendezvousHandler] = []

    def start(port: int, run: str, token: str, n: int = 1, **config: Any) -> Any:
        config = {"is_host": False, "token": token, "join": 20, "close": 5, **config}
        params = RendezvousParameters("core", f"127.0.0.1:{port}", run, n, n, config=config)
        made.append(create_handler(params))
        return made[-1]

    yield start
    for handler in made:
        handler.shutdown()


# -- scopes -------------------------------------------------------------------------------


def test_token_for_one_run_opens_no_other(serve: Serve, make: Make) -> None:
    server = serve(token=TOKENS.encode())
    one = make(server.port, "one", "only-one").next_rendezvous()
    two = make(server.port, "two", "nodes").next_rendezvous()
    two.store.set("key", b"of two")
    with pytest.raises(AuthenticationError, match="none of this client's tokens is for run 'two'"):
        TCPStore("127.0.0.1", server.port, run="two", token="run:one only-one", timeout=5)
    with pytest.raises(AuthenticationError, match="is for run 'one', not for 'two'"):
        TCPStore("127.0.0.1", server.port, run="two", token="only-one", timeout=5)
    one.store.set("key", b"of one")
    assert two.store.get("key") == b"of two"
    mine = make(server.port, "one", "only-one")._coordinator.server_status(Deadline(10))  # type: ignore[attr-defined]
    assert [run.run_id for run in mine.runs] == ["one"]
    everyones = make(server.port, "two", "looker")._coordinator.server_status(Deadline(10))  # type: ignore[attr-defined]
    assert {run.run_id for run in everyones.runs} == {"one", "two"}


def test_read_only_token_changes_nothing(serve: Serve, make: Make) -> None:
    server = serve(token=TOKENS.encode())
    member = make(server.port, "one", "nodes")
    member.next_rendezvous()
    looker = make(server.port, "one", "looker")
    assert looker.report().phase == "sealed"
    with pytest.raises(
        RendezvousStateError,
        match=r"take part in a run: it lacks the scope \(all, run:ID or admin\); give a token",
    ):
        looker.next_rendezvous()
    with (
        TCPStore("127.0.0.1", server.port, run="one", token="looker") as store,
        pytest.raises(
            AuthenticationError,
            match=r"may only look, not use the store: it lacks the scope \(all, run:ID or admin",
        ),
    ):
        store.get("key")
    assert member.view().connected


def test_only_admin_tokens_close_a_run_and_the_audit_log_records_it(
    serve: Serve, make: Make
) -> None:
    server = serve(token=TOKENS.encode())
    member = make(server.port, "one", "nodes")
    member.next_rendezvous()
    with pytest.raises(
        RendezvousStateError, match=r"to close run 'one': it lacks the scope \(admin\)"
    ):
        member.set_closed()
    assert not member.is_closed()
    make(server.port, "one", "root").set_closed()
    deadline = Deadline(10)
    while not member.is_closed():
        assert not deadline.expired()
        time.sleep(0.01)
    closed = member.view().closed
    assert closed is not None
    assert "(token " in closed.by
    assert "127.0.0.1)" in closed.by
    assert closed.at


def test_only_admin_tokens_exclude_nodes_or_act_for_others(serve: Serve, make: Make) -> None:
    server = serve(token=TOKENS.encode())
    member, other = (make(server.port, "one", "nodes", 2) for _ in range(2))
    joining = in_thread(member.next_rendezvous)
    other.next_rendezvous()
    joining.result(LIMIT)
    out = Exclude(Aspect.NODE, other.node_id, "bad memory", "me")
    notice = Notify(other.node_id, "spot machine", "me")
    for order, words in (
        (out, "exclude a node from"),
        (Admit(Aspect.NODE, "x", "me"), "admit a node to"),
        (notice, "give notice for a node of"),
    ):
        with pytest.raises(RendezvousStateError, match=f"does not allow a client to {words} run"):
            member._coordinator.order(order, Deadline(10))
    member.notice("spot machine")  # of itself
    assert [n.id for n in member.report().notices] == [member.node_id]
    admin = make(server.port, "one", "root")._coordinator
    admin.order(notice, Deadline(10))
    admin.order(out, Deadline(10))
    (kept_out,) = member.report().exclusions
    assert kept_out.by.startswith("me (token ")
    assert "127.0.0.1)" in kept_out.by


def test_worker_token_opens_only_the_store_of_its_run(serve: Serve, make: Make) -> None:
    server = serve(token=TOKENS.encode())
    member = make(server.port, "one", "nodes")
    member.next_rendezvous()
    with TCPStore("127.0.0.1", server.port, run="one", token="nodes") as store:
        store.set("key", b"x")
    token = worker_token(b"all nodes", "one")
    with TCPStore("127.0.0.1", server.port, run="one", token=token) as store:
        assert store.get("key", timeout=5) == b"x"
    with pytest.raises(AuthenticationError):
        TCPStore("127.0.0.1", server.port, run="two", token=token, timeout=5)
    worker = make(server.port, "one", token)
    with pytest.raises(RendezvousStateError, match="a worker's token derived from token"):
        worker.next_rendezvous()
    with pytest.raises(RendezvousStateError, match="close"):
        worker.set_closed()
    link = open_connection(
        ConnectionConfig("127.0.0.1", server.port, "one", token.encode()), Deadline(10)
    )
    link.send(p.frame(wire.Ask(7, Leave(member._node_id))))
    assert isinstance(_decoder.decode(link.receive()[0]), wire.Denied)
    link.close()
    assert member.report().phase == "sealed"


def proved_anew(server: Server) -> int:
    """Return how many nodes are connected with the token that the server has now."""
    (key,) = server.keyring.keys
    who = key.rights().who
    sessions: Any = server.runs["run"].connections.values()
    return sum(session.rights.who == who for session in sessions)


# -- rotation -----------------------------------------------------------------------------


@pytest.mark.integration
def test_token_rotation_disturbs_nobody(
    serve: Serve, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.1)
    nodes, path = 100, tmp_path / "token"
    path.write_text("old-secret\n")
    server = serve(token=read_token(None, str(path)))
    handlers = [
        make(server.port, "run", "", nodes, token_file=str(path), lease=5) for _ in range(nodes)
    ]
    threads = [threading.Thread(target=handler.next_rendezvous) for handler in handlers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    before = [handler.view() for handler in handlers]

    def wait_for(count: int) -> None:
        deadline = Deadline(10)
        while server.call(lambda s: len(s.keyring.keys), deadline) != count:
            assert not deadline.expired()

    path.write_text("new-secret\nold-secret\n")
    wait_for(2)
    both = [
        TCPStore("127.0.0.1", server.port, run="run", token=token, timeout=5)
        for token in ("old-secret", "new-secret")
    ]
    links = [store._connection for store in both]
    for token in ("new-secret", "old-secret", "unknown\nnew-secret"):
        TCPStore("127.0.0.1", server.port, run="run", token=token, timeout=5).close()
    path.write_text("new-secret\n")
    wait_for(1)
    with pytest.raises(AuthenticationError):
        TCPStore("127.0.0.1", server.port, run="run", token="old-secret", timeout=5)
    # connections of the old token are closed, and reconnect with the token in the file
    deadline = Deadline(20)
    while server.call(proved_anew, deadline) < nodes:
        assert not deadline.expired()
        time.sleep(0.05)
    with pytest.raises(AuthenticationError, match="does not know this client's token"):
        both[0].set("key", b"x")
    both[1].set("key", b"x")
    assert both[1]._connection is links[1]
    for store in both:
        store.close()
    assert [handler.view() for handler in handlers] == before
    assert {handler.report().phase for handler in handlers[:3]} == {"sealed"}
    assert {handler.view().opened for handler in handlers} == {None}


# -- hostile clients ----------------------------------------------------------------------


def hello(**changes: Any) -> bytes:
    plain = p.Hello(p.PROTOCOL_VERSION, "run", b"c" * 16, b"n" * p.NONCE_BYTES, "test")
    return p.frame(msgspec.structs.replace(plain, **changes))


def end_of(port: int, *said: bytes) -> bytes:
    """Send bytes; return all replies until the connection ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as sock:
        for data in said:
            sock.sendall(data)
        got = b""
        while piece := sock.recv(65536):
            got += piece
        return got


def test_recorded_proofs_are_useless_on_other_connections(serve: Serve) -> None:
    server = serve(token=b"secret")
    target = ConnectionConfig("127.0.0.1", server.port, "run", b"secret")
    sent: list[bytes] = []
    original = ClientConnection.send

    def send(link: ClientConnection, data: bytes) -> None:
        sent.append(data)
        original(link, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientConnection, "send", send)
        open_connection(target, Deadline(10)).close()
    assert b"not this server's" in end_of(server.port, *sent)  # replayed, with an old nonce
    with socket.create_connection(("127.0.0.1", server.port), timeout=15) as sock:
        sock.sendall(sent[0])
        challenge = _decoder.decode(sock.recv(4096)[4:])
        assert isinstance(challenge, p.Challenge)
        sock.sendall(p.frame(p.Proof(challenge.proof)))  # the server's own, reflected
        assert b"not this server's" in sock.recv(4096)


@pytest.mark.parametrize(
    "said",
    [
        (hello(), p.frame(p.Proof(b""))),
        (hello(key=b"x" * 8), p.frame(p.Proof(b"y" * 32))),
        (hello(key=b"x" * 1000), p.frame(p.Proof(b""))),
        (hello(worker=True), p.frame(p.Proof(b"y" * 32))),
        (hello(), p.frame(p.Call(1, 1, p.Set("k", b"v")))),
        (p.frame(p.Proof(b"y" * 32)),),
    ],
)
def test_nothing_is_reachable_without_a_token(serve: Serve, said: tuple[bytes, ...]) -> None:
    server = serve(token=b"secret")
    assert p.GOODBYE_TOKEN.encode() in (end := end_of(server.port, *said)) or b"protocol" in end
    assert server.call(lambda s: (len(s.stores), len(s.runs)), Deadline(5)) == (0, 0)


@pytest.mark.integration
def test_flood_of_strangers_does_not_disturb_members(serve: Serve, make: Make) -> None:
    server = serve(token=b"secret", handshakes_limit=200, handshake_seconds=2.0)
    members = [make(server.port, "run", "secret", 3, lease=3) for _ in range(3)]
    threads = [threading.Thread(target=member.next_rendezvous) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    rng, held = random.Random(1), []
    said = [b"", hello()[:9], hello(), b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 900, rng.randbytes(99)]
    for n in range(1500):
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=15)
        sock.sendall(said[n % len(said)])
        held.append(sock)
        if len(held) > 500:
            held.pop(0).close()
    with TCPStore("127.0.0.1", server.port, run="run", token="secret") as store:
        store.set("key", b"x")
    pending = server.call(lambda s: len(s.connection_limits._pending), Deadline(5))
    for sock in held:
        sock.close()
    assert pending <= 200
    assert all(member.view().connected and not member.view().opened for member in members)


# -- secrets ------------------------------------------------------------------------------

WORKER = """
import os, sys, time
from rallypoint import worker
print("environment", sorted(os.environ.items()))
worker.store().set(f"here-{worker.rank()}", b"x")
worker.barrier()
time.sleep(1.5)
raise SystemExit(3)
"""


def everything_said_of(pids: list[int]) -> bytes:
    """Return command lines and titles of processes and their children."""
    import psutil

    said = b""
    for pid in pids:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            for name in ("cmdline", "comm", "status"):
                path = Path(f"/proc/{process.pid}/{name}")
                said += path.read_bytes() if path.exists() else b""
    return said


@pytest.mark.integration
def test_secrets_appear_nowhere(tmp_path: Path, port: int) -> None:
    secret = "SeCrEt" + os.urandom(12).hex()
    (tmp_path / "token").write_text(f"all {secret}\n")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "work.py").write_text(WORKER)
    env = {k: v for k, v in os.environ.items() if not k.startswith("RALLYPOINT_")}
    env |= {"RALLYPOINT_TOKEN_FILE": str(tmp_path / "token"), "TMPDIR": str(tmp_path)}
    own = [sys.executable, "-m", "rallypoint"]
    endpoint = f"127.0.0.1:{port}"
    command = [*own, "run", "--nnodes=2", f"--endpoint={endpoint}", "--run-id=job"]
    command += ["--max-restarts=0", f"--log-dir={tmp_path / 'logs'}", "--tee=3"]
    command += [f"--events={tmp_path / 'events'}", "--log-format=json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    agents = [
        subprocess.Popen([*command, str(tmp_path / "work.py")], env=env, **pipes) for _ in range(2)
    ]
    said, deadline = b"", Deadline(LIMIT)
    while b"rank" not in said:
        assert not deadline.expired()
        time.sleep(0.2)
        status = [*own, "status", f"--endpoint={endpoint}", "--run-id=job", "--json"]
        said = subprocess.run(status, env=env, capture_output=True, timeout=20, check=False).stdout
    said += everything_said_of([agent.pid for agent in agents])
    for extra in ("explain", "wrong"):
        changed = {**env, "RALLYPOINT_TOKEN_FILE": ""} if extra == "wrong" else env
        asked = [*command, "--explain"] if extra == "explain" else [*own, "status"]
        if extra == "wrong":
            asked += [f"--endpoint={endpoint}"]
            changed["RALLYPOINT_TOKEN"] = f"wrong-{secret}"
        done = subprocess.run(asked, env=changed, capture_output=True, timeout=30, check=False)
        said += done.stdout + done.stderr
    for agent in agents:
        output, _ = agent.communicate(timeout=40)
        said += output
        assert agent.returncode != 0
    said += kept_by_a_server(own, env, tmp_path, secret)
    assert list((tmp_path / "data").iterdir())
    assert (tmp_path / "events").stat().st_size > 0
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "token":
            said += path.read_bytes()
    assert b"environment" in said  # the workers printed their whole environment
    assert b"worker:" in said  # workers have another token, for the store of one run
    assert secret.encode() not in said


def kept_by_a_server(own: list[str], env: dict[str, str], folder: Path, secret: str) -> bytes:
    """Use a server that keeps its runs in `folder`; return its output."""
    command = [*own, "serve", "--bind=127.0.0.1:0", f"--data-dir={folder / 'data'}", "--verbose"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen([sys.executable, "-u", *command[1:]], env=env, **pipes) as server:
        assert server.stdout is not None
        first = server.stdout.readline()
        port = int(first.rpartition(b":")[2])
        params = RendezvousParameters(
            "core", f"127.0.0.1:{port}", "kept", 1, 1, config={"token": secret, "is_host": False}
        )
        member = create_handler(params)
        member.next_rendezvous().store.set("key", b"value")
        member.shutdown()
        server.terminate()
        rest, _ = server.communicate(timeout=20)
    return first + rest


def test_errors_contain_no_token(serve: Serve, make: Make) -> None:
    server = serve(token=b"the-servers")
    with pytest.raises(AuthenticationError) as refused:
        TCPStore("127.0.0.1", server.port, token="the-clients", timeout=5)
    handler = make(server.port, "run", "the-clients")
    with pytest.raises(RendezvousConnectionError) as failed:
        handler.next_rendezvous()
    for caught in (refused, failed):
        assert "the-" not in f"{caught.value} {caught.value!r}"
