"""The client's side of the handshake (see `protocol`), and what may come of it instead."""

import hmac
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from rallypoint.errors import AuthenticationError, ParameterError, StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.endpoints import Place, parse_place
from rallypoint.net.tokens import Key

if TYPE_CHECKING:
    from rallypoint.net.connection import Link, Target

SOFTWARE = "rallypoint-python"
ADVICE = "give a port of a Rallypoint server, or a free one"
_FINAL = (p.GOODBYE_VERSION, p.GOODBYE_PROTOCOL, p.GOODBYE_LIMIT)
_handshake = msgspec.msgpack.Decoder(p.Challenge | p.Welcome | p.Goodbye)


class NotOurProtocolError(StoreConnectionError):
    """The other side is no server of ours, or refuses us for good: trying again is no use."""


class StandbyError(StoreConnectionError):
    """The server stands by for another one.

    Args:
        text: what it said.
        leader: who leads, None if nobody does, or it does not know.
    """

    def __init__(self, text: str, leader: Place | None) -> None:
        super().__init__(text)
        self.leader = leader


class UnknownTokenError(AuthenticationError):
    """The server does not know the token that was tried; another one of ours may do."""


class LoneTokenError(AuthenticationError):
    """One side has a token, and the other one none."""


def shake_hands(link: "Link", target: "Target", key: Key | None) -> None:
    """Prove to each other that both sides know the token; sets `link.welcome`.

    Args:
        link: a new connection.
        target: as whom, for which run.
        key: the token to prove, None for none.

    Raises StandbyError, UnknownTokenError, LoneTokenError, AuthenticationError,
    NotOurProtocolError, StoreConnectionError.
    """
    nonce = secrets.token_bytes(p.NONCE_BYTES)
    hello = p.Hello(p.PROTOCOL_VERSION, target.run, target.client, nonce, SOFTWARE)
    if key is not None:
        worker = key.scope == "worker"
        hello = msgspec.structs.replace(hello, key=key.id, worker=worker)
    come: list[bytes] = []
    if key is None:  # nothing to prove, so nothing to wait for: one turn instead of two
        link.send(p.frame(hello) + p.frame(p.Proof(b"")))
    else:
        link.send(p.frame(hello))
    challenge = _expect(link, p.Challenge, come)

    def proof(role: bytes) -> bytes:
        if key is None:
            return b""
        return p.proof(key.secret, role, hello, challenge.nonce, link.binding)

    if not hmac.compare_digest(proof(b"server"), challenge.proof):
        kind = UnknownTokenError if key and challenge.proof else LoneTokenError
        raise kind(_server_unproven(link.where, target, challenge))
    if key is not None and not come:  # what has come already is a goodbye
        link.send(p.frame(p.Proof(proof(b"client"))))
    link.welcome = _expect(link, p.Welcome, come)
    if come:  # a goodbye right after it, or nothing of ours
        _expect(link, p.Goodbye, come)


def _server_unproven(where: str, target: "Target", challenge: p.Challenge) -> str:
    if not target.token:
        return (
            f"the server at {where} asks for a token and this client has none; set "
            "RALLYPOINT_TOKEN or pass token_file with the server's secret"
        )
    if not challenge.proof:
        return (
            f"the server at {where} was started without a token, but this client has "
            "one; start the server with the same token, or unset RALLYPOINT_TOKEN here"
        )
    return (
        f"the server at {where} does not know this client's token; give both the same "
        "(RALLYPOINT_TOKEN, token_file), or check that the endpoint is the right one, and that "
        "nothing in between ends TLS"
    )


def _expect(link: "Link", kind: type[Any], come: list[bytes]) -> Any:
    """Return the next body; `come` are those that have come and were not looked at."""
    try:
        come += [] if come else link.receive()
    except (NotOurProtocolError, AuthenticationError):
        raise
    except StoreConnectionError as error:
        raise StoreConnectionError(
            f"what listens at {link.where} did not answer as a Rallypoint server: {error}; {ADVICE}"
        ) from error
    if not come:
        raise StoreConnectionError(
            f"what listens at {link.where} accepted the connection and said nothing: it is not "
            f"a Rallypoint server, or it is stopped; {ADVICE}"
        )
    try:
        body = _handshake.decode(come.pop(0))
    except msgspec.DecodeError as error:
        raise NotOurProtocolError(
            f"what listens at {link.where} is not a Rallypoint server: {error}; {ADVICE}"
        ) from error
    if isinstance(body, p.Goodbye):
        raise goodbye_error(link.where, body)
    if not isinstance(body, kind):
        raise _broken(link, body)
    return body


def _broken(link: "Link", said: object) -> NotOurProtocolError:
    return NotOurProtocolError(f"the server at {link.where} broke the handshake: {said!r}")


def goodbye_error(where: str, body: p.Goodbye) -> StoreConnectionError:
    """Return the error for a server that ended the connection with a reason."""
    if body.code == p.GOODBYE_STANDBY:
        return StandbyError(body.reason, _leader(body))
    kind: type[StoreConnectionError] = StoreConnectionError
    if body.code == p.GOODBYE_TOKEN:
        kind = AuthenticationError
    elif body.code in _FINAL:
        kind = NotOurProtocolError
    return kind(f"the server at {where} closed the connection: {body.reason}")


def _leader(body: p.Goodbye) -> Place | None:
    try:
        return parse_place(body.leader) if body.leader else None
    except ParameterError:
        return None  # a newer server's way to say where: its reason says it to people
