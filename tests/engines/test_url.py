"""URLs of engines: what they say, what the environment adds, and what nobody may see."""

import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.engines import url as url_module
from rallypoint.engines.url import EngineAddress, parse_engine_url, redacted, with_timeout
from rallypoint.errors import ParameterError

ALLOWED = frozenset(("timeout",))


def parse(url: str, **environ: str) -> EngineAddress:
    return parse_engine_url(url, "etcd", 2379, ALLOWED, environ)


def test_all_parts() -> None:
    found = parse("etcds://me:pa%40ss%2Fword@h1:1,[::1]:2,h3/jobs/a?ca=/ca.pem&timeout=2.5")
    assert found.tls
    assert found.hosts == (("h1", 1), ("::1", 2), ("h3", 2379))
    assert (found.user, found.password, found.prefix) == ("me", "pa@ss/word", "jobs/a")
    assert found.options == {"ca": "/ca.pem", "timeout": "2.5"}
    assert found.seconds("timeout", 9) == 2.5
    assert str(found) == "etcds://h1:1,[::1]:2,h3:2379/jobs/a"


def test_shortest_url() -> None:
    found = parse("h1")
    assert (found.tls, found.hosts, found.prefix) == (False, (("h1", 2379),), "rallypoint")
    assert found.seconds("timeout", 9) == 9
    assert found.ssl_context() is None


def test_environment_fills_in_missing_fields(tmp_path: Path) -> None:
    environ = {
        "RALLYPOINT_ETCD_USER": "me",
        "RALLYPOINT_ETCD_PASSWORD": "one",
        "RALLYPOINT_ETCD_CA": "/ca.pem",
    }
    found = parse("etcds://h", **environ)
    assert (found.user, found.password, found.options["ca"]) == ("me", "one", "/ca.pem")
    (tmp_path / "p").write_text("two\n")
    environ["RALLYPOINT_ETCD_PASSWORD_FILE"] = str(tmp_path / "p")
    assert parse("h", **environ).password == "two"
    found = parse("etcd://you:three@h?ca=other", **environ)
    assert (found.user, found.password, found.options["ca"]) == ("you", "three", "other")
    environ["RALLYPOINT_ETCD_PASSWORD_FILE"] = str(tmp_path / "missing")
    with pytest.raises(ParameterError, match=r"RALLYPOINT_ETCD_PASSWORD_FILE=.*missing"):
        parse("h", **environ)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("redis://h", "the scheme is 'redis'"),
        ("etcd://", "a host is missing"),
        ("etcd://h1,,h2", "a host is missing"),
        ("etcd://h:0", "is not 1 to 65535"),
        ("etcd://h:x", "not a number"),
        ("etcd://[::1", "brackets"),
        ("etcd://[::1]x", "brackets"),
        ("etcd://h?nonsense=1", r"unknown options \['nonsense'\]; known are ca, cert, key, time"),
    ],
)
def test_error_names_the_wrong_part(url: str, what: str) -> None:
    with pytest.raises(ParameterError, match=what) as caught:
        parse(url)
    assert "allowed is etcd[s]://" in str(caught.value)


@pytest.mark.parametrize(
    "url", ["etcd://u:hidden@h:0", "redis://u:hidden@h", "etcd://u:hid/hidden@h?x=1"]
)
def test_errors_contain_no_password(url: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse(url)
    assert "hidden" not in str(caught.value)
    assert "***@h" in str(caught.value)


def test_texts_contain_no_password() -> None:
    found = parse("etcd://u:hidden@h")
    assert "hidden" not in repr(found) + str(found)
    assert redacted("etcd://u:hid@den@h/x") == "etcd://***@h/x"
    assert redacted("h:1") == "h:1"


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match=f"timeout='{text}'"):
        parse(f"h?timeout={text}").seconds("timeout", 1)


def test_tls_files_are_named(tmp_path: Path) -> None:
    assert parse("etcds://h").ssl_context() is not None
    (tmp_path / "bad").write_text("no certificate")
    for options in (f"ca={tmp_path}/bad", f"cert={tmp_path}/bad&key=/k"):
        with pytest.raises(ParameterError, match=f"{tmp_path}/bad"):
            parse(f"etcds://u:hidden@h?{options}").ssl_context()


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("etcd://a", "etcd://a?timeout=2"),
        ("etcd://a/p?timeout=9&ca=/x%20y", "etcd://a/p?timeout=3&ca=%2Fx+y"),
        ("etcd://a?timeout=1", "etcd://a?timeout=1"),
        ("etcd://a?timeout=soon", "etcd://a?timeout=soon"),
    ],
)
def test_a_timeout_can_be_capped(url: str, wanted: str) -> None:
    assert with_timeout(url, default=2.0, most=3.0) == wanted


@pytest.mark.parametrize("scheme", ["etcd", "etcds", "redis", "rediss"])
def test_by_scheme(scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:1/x"
    assert url_module.is_engine_url(url)
    with url_module.open_engine_store(url, 5) as store:
        assert store.timeout.total_seconds() == 5
        assert repr(store) == f"{scheme.rstrip('s').capitalize()}Store({url!r})".replace(
            "RediStore", "RedisStore"
        )
    engine = url_module.open_engine(url)
    assert engine.where == url
    engine.close()


def test_endpoints() -> None:
    assert url_module.engine_url("etcd", "h1:1,h2:2") == "etcd://h1:1,h2:2"
    assert url_module.engine_url("etcd", "etcds://h") == "etcds://h"
    assert url_module.is_engine("redis")
    assert not url_module.is_engine("core")
    assert not url_module.is_engine_url("etcd")
    with pytest.raises(ParameterError, match=r"'tcp://\*\*\*@h': no engine's URL; known are etcd"):
        url_module.open_engine("tcp://u:hidden@h")


@pytest.mark.parametrize(("extra", "library"), [("etcd", "urllib3"), ("redis", "redis")])
def test_missing_extra_is_named(extra: str, library: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from rallypoint import RendezvousParameters, create_handler, ParameterError\n"
        f"try: create_handler(RendezvousParameters({extra!r}, 'h:1', 'run'))\n"
        "except ParameterError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"pip install 'rallypoint[{extra}]'" in done.stdout
