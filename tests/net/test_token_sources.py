"""Where the token comes from, and in which order."""

from pathlib import Path

import pytest

from rallypoint.errors import ParameterError
from rallypoint.net.token_sources import current, read_token, token_environment, weaknesses


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RALLYPOINT_TOKEN", "RALLYPOINT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert read_token() == b""
    monkeypatch.setenv("RALLYPOINT_TOKEN", "from-variable")
    assert read_token() == b"from-variable"
    named = tmp_path / "named"
    named.write_text("from-named-file\n")
    monkeypatch.setenv("RALLYPOINT_TOKEN_FILE", str(named))
    assert read_token() == b"from-named-file"
    given = tmp_path / "given"
    given.write_text("  from-given-file\n")
    assert read_token(None, str(given)) == b"from-given-file"
    assert read_token("argument", str(given)) == b"argument"
    assert read_token(b"\xff") == b"\xff"
    assert read_token("") == b"from-named-file"


def test_unusable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"nowhere' cannot be read"):
        read_token(None, str(tmp_path / "nowhere"))
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ParameterError, match=r"empty' is empty"):
        read_token(None, str(tmp_path / "empty"))


def test_token_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    token = read_token(None, str(path))
    assert current(token) == b"old"
    path.write_text("new\nold")
    assert current(token) == b"new\nold"
    assert current(b"given") == b"given"


def test_revoked_token_stays_revoked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    path.write_text("old\nkept")
    token = read_token(None, str(path))
    path.write_text("kept")
    assert current(token) == b"kept"
    for content, words in (("", "is empty"), ("reader kept", "line 1"), (None, "cannot be read")):
        path.unlink() if content is None else path.write_text(content)
        caplog.clear()
        assert current(token) == current(token) == b"kept"
        (said,) = caplog.messages
        assert words in said
        assert "going on with the tokens that it held before" in said


def test_invalid_token_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text("\nadmin\n")
    with pytest.raises(ParameterError, match=r"token_file='.*token', line 2: a scope without"):
        read_token(None, str(path))
    with pytest.raises(ParameterError, match="token, line 1: the first of several words"):
        read_token("reader xyz")
    monkeypatch.setenv("RALLYPOINT_TOKEN", "reader xyz")
    with pytest.raises(
        ParameterError, match="RALLYPOINT_TOKEN, line 1: the first of several words"
    ):
        read_token()
    monkeypatch.setenv("RALLYPOINT_TOKEN", "# later")
    with pytest.raises(ParameterError, match="RALLYPOINT_TOKEN is given and holds no token"):
        read_token()


def test_a_file_without_a_name_is_refused() -> None:
    with pytest.raises(ParameterError, match="token_file='' names no file"):
        read_token(None, "")


def test_insecure_token_sources(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("admin short\nall 0123456789abcdef\n")
    path.chmod(0o640)
    token = read_token(None, str(path))
    (local,) = weaknesses(token, exposed=False)
    assert f"{path} (mode 640) is open to other users" in local
    path.chmod(0o600)
    (exposed,) = weaknesses(token, exposed=True)
    assert "1 of the tokens has fewer than 16 characters" in exposed
    assert weaknesses(b"0123456789abcdef", exposed=True) == []
    assert weaknesses(b"short", exposed=False) == []


def test_child_process_gets_the_same_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret")
    assert token_environment(b"secret") == {"RALLYPOINT_TOKEN": "secret"}
    assert token_environment(read_token(None, str(path))) == {"RALLYPOINT_TOKEN_FILE": str(path)}
    assert token_environment(b"") == {}
