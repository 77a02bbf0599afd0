"""`rallypoint certs`: a certificate that works on both sides, files that others cannot read."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from rallypoint.cli.certs import command
from rallypoint.net.tls import TLS
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.options import Options
from rallypoint.store.tcp import TCPStore


def run(*arguments: str) -> str:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_server_and_client_can_use_the_certificates(tmp_path: Path) -> None:
    output = run(str(tmp_path), "--name", "head", "--name", "127.0.0.1", "--name", "::1")
    assert "RALLYPOINT_TLS_CA on every node" in output
    run(str(tmp_path), "--name", "node", "--days", "2")
    own = {name: str(tmp_path / name) for name in ("ca.pem", "head.pem", "head.key")}
    tls = TLS(own["ca.pem"], own["head.pem"], own["head.key"], verify_client=True)
    server = EmbeddedServer("127.0.0.1", 0, Options(tls=tls))
    node = TLS(own["ca.pem"], str(tmp_path / "node.pem"), str(tmp_path / "node.key"))
    with TCPStore("127.0.0.1", server.port, tls=node) as store:
        store.set("key", b"x")
    server.stop()


def test_key_files_are_readable_by_the_owner_only(tmp_path: Path) -> None:
    run(str(tmp_path / "made"), "--name", "head")
    for path in (tmp_path / "made").glob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert not list((tmp_path / "made").glob(".*"))


def test_ca_is_created_once(tmp_path: Path) -> None:
    assert "replaced" not in run(str(tmp_path), "--name", "head")
    before = (tmp_path / "ca.pem").read_bytes()
    first = (tmp_path / "head.pem").read_bytes()
    said = run(str(tmp_path), "--name", "head")
    assert f"replaced     {tmp_path / 'head.pem'}, {tmp_path / 'head.key'}" in said
    assert (tmp_path / "ca.pem").read_bytes() == before
    assert (tmp_path / "head.pem").read_bytes() != first  # renewed


@pytest.mark.parametrize("name", ["h\u00f6st", ""])
def test_invalid_name(tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(command, [str(tmp_path), "--name", name])
    assert done.exit_code == 1
    assert "--name" in done.output


def test_missing_state_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rallypoint.cli.certs.find_spec", lambda _name: None)
    done = CliRunner().invoke(command, [str(tmp_path), "--name", "x"])
    assert done.exit_code == 1
    assert "rallypoint[tls]" in done.output
