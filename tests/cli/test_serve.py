"""`rallypoint serve`: what it says when it cannot start, and when and how it ends."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.certificates import make_certificates

from rallypoint.cli import main
from rallypoint.cli import serve as module
from rallypoint.deadline import Deadline
from rallypoint.errors import StoreConnectionError
from rallypoint.net.tls import TLS
from rallypoint.net.token_sources import read_token
from rallypoint.server.journal.records import FORMAT, FORMAT_NAME
from rallypoint.server.journal.sqlite import SQLiteJournal
from rallypoint.server.options import Options
from rallypoint.server.server import Server
from rallypoint.store.tcp import TCPStore

LIMIT_SECONDS = 30


def serve(*options: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["serve", *options], env=environment)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """A server in this process changes what signals do to it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# -- it cannot start -----------------------------------------------------------------------


def assert_one_line(result: Result, *words: str, code: int = 2) -> None:
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("rallypoint serve: ")
    for word in words:
        assert word in line


def test_used_port_is_named(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        result = serve(f"--bind=127.0.0.1:{port}")
    assert_one_line(result, f"cannot listen on 127.0.0.1:{port}: Address already in use", code=1)


def test_unknown_host_is_named() -> None:
    assert_one_line(
        serve("--bind=nope.invalid:29400"), "cannot listen on nope.invalid:29400: ", code=1
    )


def test_address_of_another_machine_is_named() -> None:
    assert_one_line(serve("--bind=192.0.2.1:29400"), "cannot listen on 192.0.2.1:29400: ", code=1)


@pytest.mark.parametrize("where", ["host:http", "host:70000"])
def test_invalid_endpoint_is_named(where: str) -> None:
    assert_one_line(serve(f"--bind={where}"), where.partition(":")[0])


@pytest.mark.parametrize("where", ["127.0.0.1", "head", "127.0.0.1:x", "head:70000"])
def test_page_needs_a_port_of_its_own(where: str) -> None:
    assert_one_line(serve("--bind=127.0.0.1:0", f"--http={where}"), f"--http {where}: ", "PORT")


def test_other_addresses_than_loopback_need_a_token() -> None:
    assert_one_line(serve("--bind=0.0.0.0:0", RALLYPOINT_TOKEN=""), "0.0.0.0 without a token")


def test_missing_token_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert_one_line(
        serve("--bind=127.0.0.1:0", f"--token-file={path}"),
        f"token_file={str(path)!r} cannot be read", "No such file",
    )  # fmt: skip


@pytest.mark.parametrize("content", ["", " \n"])
def test_empty_token_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    assert_one_line(
        serve("--bind=127.0.0.1:0", f"--token-file={path}"), f"token_file={str(path)!r} is empty"
    )


def test_option_without_a_value_is_named() -> None:
    assert_one_line(serve("--bind=127.0.0.1:0", "--data-dir="), "--data-dir '': give a directory")
    assert_one_line(serve("--bind=127.0.0.1:0", "--token-file="), "token_file='' names no file")


def test_unusable_tls_files_are_named(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    result = serve("--bind=127.0.0.1:0", f"--tls-cert={made.cert}")
    assert_one_line(result, f"tls_cert={made.cert} holds no certificate with its key; give the key")
    result = serve("--bind=127.0.0.1:0", f"--tls-cert={made.cert}", f"--tls-key={made.client_key}")
    assert_one_line(
        result, f"tls_cert={made.cert}", f"tls_key={made.client_key} is another certificate's"
    )


def test_insecure_tokens_have_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "token"
    path.write_text("short")
    path.chmod(0o644)
    with socket.create_server(("0.0.0.0", 0)) as sock:
        module._warn([sock], Options(read_token(None, str(path))))
    mode, short = capsys.readouterr().err.splitlines()
    assert mode.startswith(f"rallypoint serve: warning: the token file {path} (mode 644)")
    assert "fewer than 16 characters" in short


def test_directory_of_another_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "rallypoint.db").write_bytes(b"something else")
    result = serve("--bind=127.0.0.1:0", f"--data-dir={tmp_path}")
    assert_one_line(result, f"{tmp_path}/rallypoint.db", "no file of a rallypoint server", code=1)


def test_unusable_stored_state_is_named(tmp_path: Path) -> None:
    journal = SQLiteJournal(tmp_path)
    journal.open(Deadline(10))
    journal.commit({FORMAT_NAME: FORMAT, "run/x": b"junk"}, Deadline(10))
    journal.close()
    result = serve("--bind=127.0.0.1:0", f"--data-dir={tmp_path}")
    assert_one_line(result, "the entry 'run/x' of run 'x' cannot be used", str(tmp_path), code=1)
    again = SQLiteJournal(tmp_path)
    again.open(Deadline(10))  # what was refused has been let go of
    again.close()


def test_directory_is_released_if_the_port_is_used(tmp_path: Path, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        result = serve(f"--bind=127.0.0.1:{port}", f"--data-dir={tmp_path}")
    assert_one_line(result, "cannot listen on", code=1)
    again = SQLiteJournal(tmp_path)
    again.open(Deadline(10))
    again.close()


def test_page_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _name: None)
    result = serve("--bind=127.0.0.1:0", "--http=127.0.0.1:0")
    assert_one_line(result, "--http needs the extra", "pip install 'rallypoint[web]'")


# -- it ends -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "options", "warned"),
    [
        ("0.0.0.0", Options(token=b"x"), True),
        ("0.0.0.0", Options(token=b"x", tls=TLS(cert="c")), False),
        ("0.0.0.0", Options(insecure=True), False),  # there is nothing to read
        ("127.0.0.1", Options(token=b"x"), False),
    ],
)
def test_page_without_tls_has_a_warning(host: str, options: Options, warned: bool) -> None:
    with socket.socket() as sock:
        sock.bind((host, 0))
        assert ("WITHOUT TLS" in module.page_url(sock, options)) is warned


def test_failed_server_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def start(server: Server) -> None:
        await begin(server)
        server.loop.call_soon(nothing.__getitem__, "a fault in the core")

    nothing: dict[str, str] = {}
    begin = Server.start
    monkeypatch.setattr(Server, "start", start)
    result = serve("--bind=127.0.0.1:0")
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert result.stdout.startswith("serving on 127.0.0.1:")
    last = result.stderr.splitlines()[-1]
    assert last == "rallypoint serve: the server has failed: KeyError('a fault in the core')"
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.exc_info is not None  # where it failed is in the log


def test_empty_log_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def at_once(server: Server) -> None:
        server.stop()
        await until_stopped(server)

    until_stopped = Server.serve
    monkeypatch.setattr(Server, "serve", at_once)
    for text in ("", "held up"):
        log = tmp_path / f"log{len(text)}"
        log.write_text(text)
        assert serve("--bind=127.0.0.1:0", f"--log-file={log}").exit_code == 0
        assert log.exists() is bool(text)


def started(*options: str, **environment: str) -> "tuple[subprocess.Popen[str], int]":
    process = subprocess.Popen(
        [sys.executable, "-m", "rallypoint", "serve", "--bind=127.0.0.1:0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline().rpartition(":")[2])


def assert_ends_quietly(process: "subprocess.Popen[str]") -> None:
    with process:
        _out, err = process.communicate(timeout=LIMIT_SECONDS)
        assert (process.returncode, err) == (0, "")


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_ends_quietly_and_refuses_a_wrong_token(number: signal.Signals) -> None:
    process, port = started(RALLYPOINT_TOKEN="right")
    with pytest.raises(StoreConnectionError, match=r"does not know this client's token"):
        TCPStore("127.0.0.1", port, token="wrong")
    with TCPStore("127.0.0.1", port, token="right") as store:
        store.set("key", b"x")
    process.send_signal(number)
    assert_ends_quietly(process)


@pytest.mark.integration
def test_until_empty_server_ends_after_its_last_client() -> None:
    process, port = started("--until-empty")
    with TCPStore("127.0.0.1", port) as first, TCPStore("127.0.0.1", port) as last:
        first.close()
        process.send_signal(signal.SIGTERM)  # a scheduler signals all: the members go first
        last.set("key", b"x")
        assert last.get("key") == b"x"
        assert process.poll() is None
        began = time.monotonic()
    assert_ends_quietly(process)
    assert time.monotonic() - began < LIMIT_SECONDS
