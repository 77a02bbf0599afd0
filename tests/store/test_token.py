"""Where the token comes from, and in which order."""

from pathlib import Path

import pytest

from rallypoint.errors import ParameterError
from rallypoint.store.token import current, read_token, token_environment


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


def test_a_file_that_is_no_use_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"nowhere' cannot be read"):
        read_token(None, str(tmp_path / "nowhere"))
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ParameterError, match=r"empty' is empty"):
        read_token(None, str(tmp_path / "empty"))


def test_a_files_token_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    token = read_token(None, str(path))
    assert current(token) == b"old"
    path.write_text("new\nold")
    assert current(token) == b"new\nold"
    path.unlink()
    assert current(token) == b"old"  # being replaced: what was read is still the best guess
    assert current(b"given") == b"given"


def test_a_child_process_gets_the_same(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret")
    assert token_environment(b"secret") == {"RALLYPOINT_TOKEN": "secret"}
    assert token_environment(read_token(None, str(path))) == {"RALLYPOINT_TOKEN_FILE": str(path)}
    assert token_environment(b"") == {}
