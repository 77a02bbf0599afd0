"""TLS on the server: versions, reloading, unfinished and broken handshakes."""

import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.certificates import Certificates, make_certificates

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError
from rallypoint.net.tls import TLS
from rallypoint.server import server as module
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.tls import ServerTLS
from rallypoint.store.tcp import TCPStore

Serve = Callable[..., EmbeddedServer]


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def server_files(files: Certificates) -> TLS:
    return TLS(cert=str(files.cert), key=str(files.key))


def client(files: Certificates, most: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = most
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_two_versions(serve: Serve, files: Certificates, version: ssl.TLSVersion) -> None:
    server = serve(tls=server_files(files))
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        secured = client(files, version).wrap_socket(sock, server_hostname="127.0.0.1")
        assert secured.version() == version.name.replace("_", ".")
        assert not secured.session_reused
        secured.close()


def test_older_tls_version_is_refused(serve: Serve, files: Certificates) -> None:
    server = serve(tls=server_files(files))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock,
        pytest.raises(OSError),  # noqa: PT011 - whatever each OpenSSL calls it
    ):
        context.wrap_socket(sock)


def test_renewed_certificate_closes_no_connection(
    serve: Serve, files: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.05)
    renewed = make_certificates(tmp_path)
    cert, key, ca = tmp_path / "cert", tmp_path / "key", tmp_path / "both"
    cert.write_bytes(files.cert.read_bytes())
    key.write_bytes(files.key.read_bytes())
    ca.write_bytes(files.ca.read_bytes() + renewed.ca.read_bytes())
    server = serve(token=b"secret", tls=TLS(cert=str(cert), key=str(key)))
    before = server.call(lambda s: s.tls and s.tls.binding, Deadline(5))

    def connected() -> TCPStore:
        return TCPStore("127.0.0.1", server.port, token="secret", tls=TLS(ca=str(ca)))

    old = connected()
    cert.write_text("half written")  # is passed over until it is whole
    for source, place in ((renewed.key, key), (renewed.cert, cert)):
        fresh = place.with_suffix(".new")
        fresh.write_bytes(source.read_bytes())
        os.replace(fresh, place)
    deadline = Deadline(10)
    while server.call(lambda s: s.tls and s.tls.binding, Deadline(5)) == before:
        assert not deadline.expired()
    with connected() as new:
        new.set("key", b"x")
    assert old.get("key") == b"x"
    old.close()


def test_files_that_cannot_be_used_are_named(files: Certificates, tmp_path: Path) -> None:
    for wrong in (TLS(cert=str(tmp_path / "none")), TLS(cert=str(files.cert), key=str(files.ca))):
        with pytest.raises(ParameterError, match="tls_cert="):
            ServerTLS(wrong)


def test_unfinished_tls_handshake_is_closed(
    serve: Serve, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.05)
    server = serve(tls=server_files(files), handshake_seconds=0.3)
    for said in (b"", b"\x16", b"\x16\x03\x01\x00\x05abc"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            sock.sendall(said)
            assert sock.recv(100) in (b"", b"\x15\x03\x01\x00\x02\x02\x32")


def test_nonsense_within_tls_ends_the_connection_alone(serve: Serve, files: Certificates) -> None:
    server = serve(tls=server_files(files))
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        secured = client(files, ssl.TLSVersion.TLSv1_3).wrap_socket(
            sock, server_hostname="127.0.0.1"
        )
        secured.sendall(b"\xff" * 100)
        assert b"above the limit" in secured.recv(4096)
        os.write(secured.fileno(), b"no record at all")
        secured.close()
    for said in (b"\x16" + b"\xff" * 300, b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            sock.sendall(said)
            sock.settimeout(10)
            while sock.recv(4096):
                pass
    with TCPStore("127.0.0.1", server.port, tls=TLS(ca=str(files.ca))) as store:
        store.set("key", b"x")
