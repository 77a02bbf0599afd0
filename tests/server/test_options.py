"""Which addresses need a token, and limits given by name."""

import pytest

from rallypoint.errors import ParameterError
from rallypoint.net.tls import TLS
from rallypoint.rendezvous import defaults
from rallypoint.server.options import (
    Options,
    exposure,
    with_limits,
)


def test_limits_are_given_by_name() -> None:
    env = {"RALLYPOINT_KEYS_LIMIT": "10", "RALLYPOINT_RUNS_LIMIT": "5", "RALLYPOINT_RUN_ID": "x"}
    options = with_limits(Options(), ["keys-limit=20", "handshake_seconds=0.5"], env)
    assert (options.keys_limit, options.runs_limit, options.handshake_seconds) == (20, 5, 0.5)
    assert options.store_limit == defaults.value("store_limit")


@pytest.mark.parametrize(
    "text", ["keys_limit", "nothing=1", "token=x", "keys_limit=0", "keys_limit=x"]
)
def test_impossible_limit_is_refused(text: str) -> None:
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
def test_exposure_in_words(options: Options, address: str, words: str) -> None:
    assert words in exposure([address], options)
