"""`rallypoint serve --state`: what does not go together, and what is said at the start."""

import socket

import pytest
from click.testing import CliRunner

from rallypoint.cli import main
from rallypoint.cli.serve_state import StateOptions
from rallypoint.server.ha import failover
from rallypoint.server.ha.failover import FailoverConfig


def serve(*options: str, code: int = 2) -> str:
    """Run a server that cannot start; return its one line on stderr."""
    result = CliRunner().invoke(main, ["serve", "--bind=127.0.0.1:0", *options])
    assert result.exit_code == code
    (line,) = [text for text in result.stderr.splitlines() if text.startswith("rallypoint serve:")]
    return line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--state=/var/lib/x"], "for a local directory, give --data-dir DIR"),
        (["--state=mysql://u:secret@h"], "--state mysql://***@h: give etcd"),
        (["--state=etcd://h", "--data-dir=/x"], "--state and --data-dir: give only one of them"),
        (["--state=etcd://h", "--until-empty"], "--state and --until-empty"),
        (["--state=etcd://h", "--leader-lease=0"], "--leader-lease 0: give more than 0 seconds"),
        (["--state=etcd://h", "--advertise=a:b:c"], "endpoint='a:b:c'"),
        (["--state=etcd://h", "--advertise=nope.invalid"], "'nope.invalid' does not resolve"),
        (["--state=etcd://h", "--leader-lease=1"], "etcd supports no lease below 2 s"),
        (["--advertise=h:1"], "--advertise: only valid with --state"),
        (["--leader-lease=3"], "--leader-lease: only valid with --state"),
        (["--state=etcd://h?what=1"], "unknown options ['what']"),
        (["--state=redis://h1,h2"], "2 hosts; allowed is one"),
    ],
)
def test_invalid_options_are_refused_by_name(options: list[str], words: str) -> None:
    line = serve(*options)
    assert words in line
    assert "secret" not in line


def test_no_checks_without_a_state() -> None:
    StateOptions(None, "a:b:c", 0.0).check("/x", True)
    StateOptions("etcds://h/p", None, 2.0).check(None, False)


def test_advertised_address() -> None:
    def state(advertise: str | None) -> FailoverConfig:
        found = StateOptions("etcd://h", advertise, 2.0).at([sock])
        assert found is not None
        return found

    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        first = state(None)
        assert (first.advertise, first.lease) == (f"127.0.0.1:{port}", 2.0)
        assert state("front").advertise == f"front:{port}"
        assert state("[::1]:7").advertise == "[::1]:7"
        assert first.name != state(None).name
        assert StateOptions(None, None, 2.0).at([sock]) is None


@pytest.mark.parametrize(
    ("bound", "advertise", "warned"),
    [("0.0.0.0", None, True), ("0.0.0.0", "front", False), ("127.0.0.1", None, False)],
)
def test_address_reachable_only_from_this_host_has_a_warning(
    caplog: pytest.LogCaptureFixture, bound: str, advertise: str | None, warned: bool
) -> None:
    with socket.create_server((bound, 0)) as sock:
        StateOptions("redis://127.0.0.1", advertise, 2.0).at([sock])
    assert ("give --advertise ADDRESS:PORT" in caplog.text) is warned


def test_missing_database_is_named(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(failover, "START_SECONDS", 3.0)
    line = serve(f"--state=etcd://user:secret@127.0.0.1:{port}/p", code=1)
    assert f"etcd://127.0.0.1:{port}/p cannot be reached" in line
    assert "secret" not in line


def test_state_is_an_option_of_serve() -> None:
    text = CliRunner().invoke(main, ["serve", "--help"]).stdout
    for option in ("--state", "--advertise", "--leader-lease"):
        assert option in text
