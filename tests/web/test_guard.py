import socket

import pytest

from rallypoint.net.tokens import Keyring
from rallypoint.web.guard import COOKIE, HEADERS, Guard


def guard(token: bytes, *names: str) -> Guard:
    keys = Keyring(token)
    return Guard(lambda: keys, names)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8080", True),
        ("10.1.2.3", True),
        ("[::1]:80", True),
        ("[::1]", True),
        ("::1", True),
        ("localhost:1", True),
        ("LOCALHOST.", True),
        ("page.example:443", True),
        (socket.gethostname(), True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:80", False),
        ("", False),
        ("[nope", False),
    ],
)
def test_only_names_of_this_machine_are_taken(host: str, known: bool) -> None:
    assert guard(b"", "page.example").knows_host(host) is known


@pytest.mark.parametrize(
    ("authorization", "allowed"),
    [
        ("Bearer sesame", True),
        ("bearer  sesame", True),
        ("Bearer wrong", False),
        ("Basic sesame", False),
        ("Bearer", False),
        ("", False),
        ("Bearer \xff", False),
    ],
)
def test_a_bearer_must_be_the_token(authorization: str, allowed: bool) -> None:
    assert guard(b"sesame").may_look(authorization, "") is allowed


def test_a_cookie_is_a_mac_and_not_the_token() -> None:
    made = guard(b"sesame")
    assert "sesame" not in made.cookie
    assert made.may_look("", f"other=1; {COOKIE}={made.cookie}")
    assert not made.may_look("", f"{COOKIE}=sesame")
    assert not made.may_look("", f"{COOKIE}={guard(b'other').cookie}")
    assert not made.may_look("", f"{COOKIE}=")
    assert not made.may_look("", "\x00=;;=")


def test_anyone_may_view_without_a_token() -> None:
    assert guard(b"").may_look("", "")


def test_page_runs_only_its_own_files() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
