"""The server's side of the handshake, on a connection that keeps what it is told to say."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from rallypoint.net import protocol as p
from rallypoint.net.tokens import Keyring, key_id, worker_secret
from rallypoint.server.connection import Connection
from rallypoint.server.handshake import Handshake
from rallypoint.server.options import Options

HELLO = p.Hello(p.PROTOCOL_VERSION, "run", b"c" * 16, b"n" * p.NONCE_BYTES, "test")


class FakeOwners:
    """Keeps questions until the test answers them."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def ask(self, peer: Any, own: Any, told: Any) -> None:
        self.asked.append((peer, own, told))


class Desk:
    """A handshake, and what its connection was told to do."""

    def __init__(self, tokens: bytes = b"", owners: FakeOwners | None = None) -> None:
        self.server = SimpleNamespace(options=Options(), owners=owners, keyring=Keyring(tokens))
        self.peer, self.binding, self.ends = "peer:1", b"", ("peer", "own")
        self.sent: list[Any] = []
        self.goodbyes: list[tuple[str, str]] = []
        self.entered: list[p.Hello | None] = []
        self.handshake = Handshake(cast(Connection, self))

    def send_at_once(self, data: bytes) -> None:
        self.sent.append(msgspec.msgpack.decode(data[4:], type=p.Challenge))

    def shake(self, body: p.Proof) -> None:
        self.entered.append(self.handshake.take(body))

    def goodbye(self, code: str, reason: str) -> None:
        self.goodbyes.append((code, reason))

    def enter(self, secret: bytes, worker: bool = False) -> p.Hello | None:
        """Go through the handshake as a client with that token."""
        own = worker_secret(secret, "run") if worker else secret
        hello = msgspec.structs.replace(HELLO, key=key_id(secret), worker=worker)
        assert self.handshake.take(hello) is None
        nonce = self.sent[-1].nonce
        return self.handshake.take(p.Proof(p.proof(own, b"client", hello, nonce, b"")))


def test_both_sides_prove_themselves() -> None:
    desk = Desk(b"secret")
    hello = desk.enter(b"secret")
    assert hello is not None
    assert desk.goodbyes == []
    assert desk.sent[0].proof == p.proof(b"secret", b"server", hello, desk.sent[0].nonce, b"")
    assert Desk(b"secret").enter(b"another") is None


@pytest.mark.parametrize(
    ("bodies", "code", "words"),
    [
        ([p.Proof(b"")], p.GOODBYE_PROTOCOL, "before the hello"),
        ([HELLO, HELLO], p.GOODBYE_PROTOCOL, "not the first"),
        ([msgspec.structs.replace(HELLO, nonce=b"")], p.GOODBYE_PROTOCOL, "bad nonce"),
        ([msgspec.structs.replace(HELLO, version=99)], p.GOODBYE_VERSION, "speaks 99"),
        ([msgspec.structs.replace(HELLO, run="x" * 999)], p.GOODBYE_PROTOCOL, "run"),
        ([HELLO, p.Proof(b"")], p.GOODBYE_TOKEN, "no token"),
    ],
)
def test_what_does_not_fit_is_refused(bodies: list[Any], code: str, words: str) -> None:
    desk = Desk(b"secret")
    for body in bodies:
        assert desk.handshake.take(body) is None
    assert desk.goodbyes[0][0] == code
    assert words in desk.goodbyes[0][1]


# -- whose process it is ------------------------------------------------------------------


def test_nothing_is_answered_before_the_owner_is_known() -> None:
    owners = FakeOwners()
    desk = Desk(owners=owners)
    desk.handshake.take(HELLO)
    desk.handshake.take(HELLO)
    assert [code for code, _ in desk.goodbyes] == [p.GOODBYE_PROTOCOL]
    assert desk.sent == []
    peer, own, told = owners.asked[0]
    assert (peer, own) == desk.ends
    told(0)
    assert len(desk.sent) == 1
    assert desk.handshake.take(p.Proof(b"")) == HELLO


def test_a_proof_that_comes_with_the_hello_waits_for_the_owner() -> None:
    owners = FakeOwners()
    desk = Desk(owners=owners)
    desk.handshake.take(HELLO)
    assert desk.handshake.take(p.Proof(b"")) is None
    assert (desk.sent, desk.goodbyes, desk.entered) == ([], [], [])
    assert desk.handshake.take(p.Proof(b"")) is None  # one more than there is a hello for
    assert [code for code, _ in desk.goodbyes] == [p.GOODBYE_PROTOCOL]
    owners.asked[0][2](0)
    assert (len(desk.sent), desk.entered) == (1, [HELLO])


@pytest.mark.parametrize("uid", [None, 99_999_999])
def test_a_stranger_is_refused(uid: int | None) -> None:
    owners = FakeOwners()
    desk = Desk(owners=owners)
    desk.handshake.take(HELLO)
    owners.asked[0][2](uid)
    assert desk.sent == []
    assert desk.goodbyes[0][0] == p.GOODBYE_TOKEN
    assert "--insecure" in desk.goodbyes[0][1]


# -- tokens that change -------------------------------------------------------------------


@pytest.mark.parametrize("worker", [False, True])
@pytest.mark.parametrize(
    ("after", "stays"),
    [
        (b"new\nold", True),
        (b"new", False),
        (b"read old", False),  # the same secret, which may do less now
    ],
)
def test_a_token_that_is_gone_ends_what_it_had_proved(
    after: bytes, stays: bool, worker: bool
) -> None:
    desk = Desk(b"old")
    assert desk.enter(b"old", worker) is not None
    desk.server.keyring = Keyring(after)
    desk.handshake.recheck()
    assert (desk.goodbyes == []) is stays
    if not stays:
        code, why = desk.goodbyes[0]
        assert code == p.GOODBYE_TOKEN
        assert f"token {key_id(b'old').hex()} is no longer" in why


def test_who_has_proved_nothing_is_not_asked_again() -> None:
    desk = Desk(b"old")
    desk.handshake.recheck()
    assert desk.goodbyes == []
