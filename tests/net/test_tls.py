"""Which TLS files a process has, and what is wrong with some."""

from pathlib import Path

import pytest

from rallypoint.errors import ParameterError
from rallypoint.net.tls import NO_TLS, TLS, read_tls, stamp, unusable

VARIABLES = ("", "_CA", "_CERT", "_KEY", "_VERIFY_CLIENT")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"RALLYPOINT_TLS{name}", raising=False)


def test_parameters_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_tls() == NO_TLS
    monkeypatch.setenv("RALLYPOINT_TLS_CA", "/env/ca")
    assert read_tls() == TLS(ca="/env/ca")
    assert read_tls({"tls_ca": "/given/ca", "else": 1}).ca == "/given/ca"
    assert read_tls({"tls_ca": ""}) == NO_TLS
    given = {"tls_cert": "c", "tls_key": "k", "tls_verify_client": "true"}
    assert read_tls(given) == TLS("/env/ca", "c", "k", verify_client=True)


def test_settings_that_enable_tls() -> None:
    assert not NO_TLS.for_clients
    assert TLS(ca="ca").for_clients
    assert TLS(system=True).for_clients
    assert not TLS(ca="ca").for_servers
    assert TLS(cert="c").for_servers


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tls_key": "k"}, "needs tls_cert"),
        ({"tls_verify_client": True, "tls_cert": "c"}, "needs tls_ca"),
        ({"tls": "maybe"}, "'maybe'"),
    ],
)
def test_invalid_addresses(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        read_tls(wrong)


def test_hosting_needs_a_certificate() -> None:
    NO_TLS.check_hosting()
    TLS("ca", "c", "k").check_hosting()
    with pytest.raises(ParameterError, match="tls_cert"):
        TLS(ca="ca").check_hosting()


def test_child_process_gets_the_same_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    files = TLS("ca", "c", "k", verify_client=True, system=True)
    for name, value in files.environment().items():
        monkeypatch.setenv(name, value)
    where = {name: str(tmp_path / name) for name in ("ca", "c", "k")}
    assert read_tls() == TLS(where["ca"], where["c"], where["k"], True, True)
    assert NO_TLS.environment() == {}


def test_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert stamp(str(path), "") == (None,)
    path.write_text("one")
    before = stamp(str(path))
    path.write_text("other")
    assert stamp(str(path)) != before


def test_errors_name_the_files() -> None:
    error = unusable(TLS("a", "b", "c"), OSError(2, "gone"))
    assert str(error) == "TLS with tls_ca=a, tls_cert=b, tls_key=c: gone"
