"""The client's side of the handshake: what a goodbye means (the rest: test_link)."""

import socket

import pytest

from rallypoint.errors import AuthenticationError, StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.connection import Link, Target
from rallypoint.net.handshake import (
    NotOurProtocolError,
    StandbyError,
    goodbye_error,
    shake_hands,
)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (p.GOODBYE_TOKEN, AuthenticationError),
        (p.GOODBYE_VERSION, NotOurProtocolError),
        (p.GOODBYE_PROTOCOL, NotOurProtocolError),
        (p.GOODBYE_LIMIT, NotOurProtocolError),
        (p.GOODBYE_BUSY, StoreConnectionError),
        (p.GOODBYE_SHUTDOWN, StoreConnectionError),
    ],
)
def test_a_goodbye_is_an_error_of_its_kind(code: str, kind: type[Exception]) -> None:
    error = goodbye_error("a:1", p.Goodbye(code, "so it is"))
    assert type(error) is kind
    assert "a:1" in str(error)
    assert "so it is" in str(error)


@pytest.mark.parametrize(
    ("leader", "place"),
    [("b:2", ("b", 2)), ("[::1]:2", ("::1", 2)), ("", None), ("tcp://b", None)],
)
def test_who_stands_by_says_who_leads(leader: str, place: tuple[str, int] | None) -> None:
    error = goodbye_error("a:1", p.Goodbye(p.GOODBYE_STANDBY, "stands by", leader))
    assert isinstance(error, StandbyError)
    assert (str(error), error.leader) == ("stands by", place)


def test_a_goodbye_right_after_a_step_of_the_handshake_is_heard() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        challenge = p.Challenge(p.PROTOCOL_VERSION, bytes(p.NONCE_BYTES), b"")
        goodbye = p.Goodbye(p.GOODBYE_SHUTDOWN, "the server is shutting down")
        theirs.sendall(p.frame(challenge) + p.frame(goodbye))
        with pytest.raises(StoreConnectionError, match="is shutting down") as caught:
            shake_hands(Link(ours, "a:1"), Target("a", 1, "run"), None)
        assert not isinstance(caught.value, NotOurProtocolError)
