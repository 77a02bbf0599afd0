"""Who may listen where."""

import pytest

from rallypoint.errors import ParameterError
from rallypoint.net.tls import TLS
from rallypoint.net.tokens import worker_token
from rallypoint.rendezvous import defaults
from rallypoint.server.options import (
    Options,
    check_exposure,
    exposure,
    is_loopback,
    with_limits,
)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_is_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_off_loopback_a_token_is_needed() -> None:
    with pytest.raises(ParameterError, match=r"10\.0\.0\.1 without a token.*RALLYPOINT_TOKEN"):
        check_exposure(["127.0.0.1", "10.0.0.1"], Options())
    check_exposure(["10.0.0.1"], Options(token=b"secret"))
    check_exposure(["10.0.0.1"], Options(insecure=True))
    check_exposure(["127.0.0.1", "::1"], Options())


def test_a_workers_token_guards_no_server() -> None:
    derived = worker_token(b"nodes", "digits").encode()
    with pytest.raises(ParameterError, match="is a worker's"):
        check_exposure(["10.0.0.1"], Options(token=derived))


def test_limits_are_given_by_name() -> None:
    env = {"RALLYPOINT_KEYS_LIMIT": "10", "RALLYPOINT_RUNS_LIMIT": "5", "RALLYPOINT_RUN_ID": "x"}
    options = with_limits(Options(), ["keys-limit=20", "handshake_seconds=0.5"], env)
    assert (options.keys_limit, options.runs_limit, options.handshake_seconds) == (20, 5, 0.5)
    assert options.store_limit == defaults.value("store_limit")


@pytest.mark.parametrize(
    "text", ["keys_limit", "nothing=1", "token=x", "keys_limit=0", "keys_limit=x"]
)
def test_a_limit_that_cannot_be(text: str) -> None:
    with pytest.raises(ParameterError, match="--limit"):
        with_limits(Options(), [text], {})


def test_options_show_no_token() -> None:
    assert "secret" not in repr(Options(token=b"secret"))


@pytest.mark.parametrize(
    ("options", "address", "words"),
    [
        (Options(), "127.0.0.1", "open to every process of this machine"),
        (Options(insecure=True), "10.0.0.1", "INSECURE"),
        (Options(insecure=True), "127.0.0.1", "INSECURE: no token: open to every process"),
        (Options(token=b"x"), "10.0.0.1", "token"),
        (Options(token=b"x", tls=TLS(cert="c")), "10.0.0.1", "TLS and token"),
        (Options(tls=TLS("ca", "c", verify_client=True)), "10.0.0.1", "client certificates"),
    ],
)
def test_who_can_reach_it(options: Options, address: str, words: str) -> None:
    assert words in exposure([address], options)
