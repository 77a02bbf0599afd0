"""Clients over TLS: what is accepted and refused, large and small values, two threads."""

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.certificates import Certificates, make_certificates

from rallypoint.deadline import Deadline
from rallypoint.errors import AuthenticationError, StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.connection import ConnectionConfig, open_connection
from rallypoint.net.handshake import NotOurProtocolError
from rallypoint.net.tls import TLS
from rallypoint.net.tls_socket import TLSSocket
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.store.tcp import TCPStore

Serve = Callable[..., EmbeddedServer]
MIB = 1 << 20
SECRET = "secret"


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(name="secured")
def _secured(serve: Serve, files: Certificates) -> EmbeddedServer:
    return serve(token=b"secret", tls=TLS(cert=str(files.cert), key=str(files.key)))


def open_store(server: EmbeddedServer, tls: TLS, token: str = SECRET) -> TCPStore:
    return TCPStore("127.0.0.1", server.port, token=token, tls=tls, timeout=10)


def test_values_of_all_sizes(secured: EmbeddedServer, files: Certificates) -> None:
    with open_store(secured, TLS(ca=str(files.ca))) as store:
        for size in (0, 1, 16 * 1024, 16 * 1024 + 1, MIB, 20 * MIB):
            store.set("key", b"x" * size)
            assert store.get("key") == b"x" * size


def test_one_thread_waits_while_another_sends(secured: EmbeddedServer, files: Certificates) -> None:
    with open_store(secured, TLS(ca=str(files.ca))) as store:
        got: list[bytes] = []
        waiter = threading.Thread(target=lambda: got.append(store.get("later", timeout=20)))
        waiter.start()
        for number in range(200):
            store.set(f"k{number}", b"x" * (number * 100))
        store.set("later", b"now")
        waiter.join(20)
        assert got == [b"now"]


def test_many_frames_are_sent_and_read_at_once(
    secured: EmbeddedServer, files: Certificates
) -> None:
    target = ConnectionConfig(
        "127.0.0.1", secured.port, "run", b"secret", tls=TLS(ca=str(files.ca))
    )
    link = open_connection(target, Deadline(10))
    assert isinstance(link.sock, TLSSocket)
    link.send(p.frame(p.Call(1, 1, p.Set("big", b"x" * MIB))))
    assert link.receive()
    frames = [p.frame(p.Call(n, 2, p.Append("big", b"y" * MIB))) for n in range(2, 12)]
    reads = [p.frame(p.Call(n, 2, p.Peek("big"))) for n in range(12, 22)]
    answers = link.send_reading([*frames, *reads], Deadline(20))
    while len(answers) < 20:
        answers += link.receive()
    assert len(answers[-1]) > 11 * MIB
    link.close()


def test_invalid_values_are_refused(secured: EmbeddedServer, files: Certificates) -> None:
    with pytest.raises(AuthenticationError, match=r"certificate of .* is not accepted"):
        open_store(secured, TLS(system=True))
    with pytest.raises(AuthenticationError, match="does not know this client's token"):
        open_store(secured, TLS(ca=str(files.ca)), token="wrong")
    elsewhere = ConnectionConfig(
        "127.0.0.2", secured.port, "", b"secret", tls=TLS(ca=str(files.ca))
    )
    with pytest.raises(
        StoreConnectionError
    ):  # no process is listening there, least of all by that name
        open_connection(elsewhere, Deadline(0.2))


def test_plain_against_tls_error_says_so(
    serve: Serve, secured: EmbeddedServer, files: Certificates
) -> None:
    with pytest.raises(NotOurProtocolError, match="this server speaks TLS"):
        open_store(secured, TLS())
    with pytest.raises(NotOurProtocolError, match="does not speak TLS"):
        open_store(serve(token=b"secret"), TLS(ca=str(files.ca)))


def test_client_certificate_is_required(serve: Serve, files: Certificates) -> None:
    own = TLS(str(files.ca), str(files.cert), str(files.key), verify_client=True)
    server = serve(token=b"secret", tls=own)
    with pytest.raises(AuthenticationError, match="asks for a certificate of this client"):
        open_store(server, TLS(ca=str(files.ca)))
    shown = TLS(str(files.ca), str(files.client_cert), str(files.client_key))
    open_store(server, shown).close()


def test_unusable_ca_file_is_named(secured: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "nowhere.pem"):
        with pytest.raises(ValueError, match=f"tls_ca=.*{name}"):
            open_store(secured, TLS(ca=str(tmp_path / name)))


def test_the_proof_is_bound_to_the_certificate(
    serve: Serve, files: Certificates, tmp_path: Path
) -> None:
    """Whoever ends TLS in between, with a certificate that is accepted, gets nowhere."""
    server = serve(token=b"secret", tls=TLS(cert=str(files.cert), key=str(files.key)))
    target = ConnectionConfig("127.0.0.1", server.port, "run", b"secret", tls=TLS(ca=str(files.ca)))
    link = open_connection(target, Deadline(10))
    assert len(link.binding) == 32
    hello = p.Hello(1, "run", b"c", b"n" * 16, "x")
    proofs = {p.proof(b"secret", b"client", hello, b"s" * 16, b) for b in (b"", link.binding)}
    assert len(proofs) == 2
    link.close()
    server.call(lambda s: setattr(s.tls, "binding", b"another"), Deadline(5))
    with pytest.raises(AuthenticationError, match="nothing in between ends TLS"):
        open_connection(target, Deadline(10))


def test_lost_server_is_an_error(secured: EmbeddedServer, files: Certificates) -> None:
    target = ConnectionConfig(
        "127.0.0.1", secured.port, "run", b"secret", tls=TLS(ca=str(files.ca))
    )
    link = open_connection(target, Deadline(10))
    link.read_timeout(10)
    secured.stop()
    said = msgspec.msgpack.decode(link.receive()[0], type=p.Goodbye)
    assert said.code == p.GOODBYE_SHUTDOWN
    with pytest.raises(StoreConnectionError, match="closed the connection"):
        link.receive()
    link.close()
