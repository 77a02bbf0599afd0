"""Token lines, their rights, and the tokens that are derived for workers."""

import pytest

from rallypoint.errors import ParameterError
from rallypoint.net.tokens import (
    EVERYTHING,
    Keyring,
    for_run,
    key_id,
    parse,
    run_line,
    worker_secret,
    worker_token,
)

LINES = b"""
# the operators'
admin root-secret
all   nodes-secret
run:digits digits-secret
run:my%20run spaced-secret
read  looker-secret
a-secret-alone
#
"""


def test_lines_and_their_rights() -> None:
    found = {key.secret: key.rights() for key in parse(LINES)}
    seen = {secret.decode(): (r.run, r.join, r.store, r.admin) for secret, r in found.items()}
    assert seen == {
        "root-secret": (None, True, True, True),
        "nodes-secret": (None, True, True, False),
        "digits-secret": ("digits", True, True, False),
        "spaced-secret": ("my run", True, True, False),
        "looker-secret": (None, False, False, False),
        "a-secret-alone": (None, True, True, True),
    }
    assert EVERYTHING.admin


@pytest.mark.parametrize("text", [b"", b"\n\n", b"# nothing\n"])
def test_no_token(text: bytes) -> None:
    assert parse(text) == ()
    assert not Keyring(text)


@pytest.mark.parametrize(
    "line", ["reader xyzzy", "foo bar xyzzy", "run: x xyzzy", "worker:1 xyzzy", "Admin xyzzy",
             "#xyzzy old", "admin", "all", "read", "run:", "run:digits", "worker:1"],
)  # fmt: skip
def test_invalid_token_line_is_refused_by_number(line: str) -> None:
    text = f"# tokens\nadmin root\n{line}\n".encode()
    with pytest.raises(ParameterError, match="the file, line 3: ") as refused:
        parse(text, "the file")
    assert "xyzzy" not in str(refused.value)
    with pytest.raises(ParameterError, match="line 3"):
        Keyring(text)


def test_secret_is_not_shown() -> None:
    for key in parse(LINES):
        assert b"secret" not in repr(key).encode()
        assert "secret" not in key.rights().who
        assert key.id.hex() in key.rights().who


def test_key_is_found_by_its_id() -> None:
    ring = Keyring(LINES)
    secret, rights = ring.find(key_id(b"digits-secret"), "other", False) or (b"", EVERYTHING)
    assert secret == b"digits-secret"
    assert rights.reaches("digits")
    assert not rights.reaches("other")  # refused once it has proved itself
    assert ring.find(key_id(b"nobody's"), "digits", False) is None
    assert ring.find(b"", "digits", False) is None


def test_worker_token_opens_the_store_of_one_run() -> None:
    ring = Keyring(LINES)
    line = worker_token(b"all nodes-secret", "digits")
    assert "nodes-secret" not in line
    (key,) = parse(line.encode())
    assert key.secret == worker_secret(b"nodes-secret", "digits")
    secret, rights = ring.find(key.id, "digits", True) or (b"", EVERYTHING)
    assert secret == key.secret
    assert (rights.run, rights.join, rights.store, rights.admin) == ("digits", False, True, False)
    other, _ = ring.find(key.id, "other", True) or (b"", EVERYTHING)
    assert other != key.secret  # so that nothing can be proved there
    assert worker_token(line.encode(), "digits") == line  # a worker's worker


def test_no_workers_token_without_the_right() -> None:
    assert worker_token(b"", "digits") == ""
    assert worker_token(b"read looker-secret", "digits") == ""
    assert worker_token(b"run:digits digits-secret", "other") == ""
    ring = Keyring(LINES)
    assert ring.find(key_id(b"looker-secret"), "digits", True) is None
    assert ring.find(key_id(b"digits-secret"), "other", True) is None


def test_client_uses_the_token_for_its_run() -> None:
    keys = parse(LINES)
    assert [key.scope for key in for_run(keys, "digits")] == [
        "admin",
        "all",
        "run",
        "read",
        "admin",
    ]
    assert [key.secret for key in for_run(keys, "my run") if key.run] == [b"spaced-secret"]
    assert parse(run_line("my run", "s").encode())[0].run == "my run"


def test_rights_to_view_all_runs() -> None:
    ring = Keyring(LINES)
    assert all(map(ring.may_view, (b"root-secret", b"looker-secret", b"nodes-secret")))
    assert not any(map(ring.may_view, (b"", b"digits-secret", b"else")))


def test_server_refuses_a_derived_token_as_its_own() -> None:
    assert not Keyring(worker_token(b"nodes-secret", "digits").encode())
    assert parse(b"worker:0011223344556677 zz")[0].secret == b""
