"""The handshake, both sides: what was received goes in, what to send or an error comes out. PURE.

    client    begin() -> Hello          Challenge -> Proof           Welcome -> done
    server    Hello -> Challenge        Proof -> Done

`Done` is no message: the server's connection sends the Welcome then. `protocol` has the messages
and what the proofs prove. A client without a token sends its (empty)
proof along with the hello: one round trip instead of two.
"""

import hmac
from dataclasses import dataclass
from typing import Any

import msgspec

from rallypoint.errors import AuthenticationError, ParameterError, StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.endpoints import Endpoint, parse_rendezvous_endpoint
from rallypoint.net.tokens import EVERYTHING, Key, Keyring, Rights

SOFTWARE = "rallypoint-python"
ADVICE = "give a port of a Rallypoint server, or a free one"
CLIENT_ID_BYTES = 64
_FINAL = (p.GOODBYE_VERSION, p.GOODBYE_PROTOCOL, p.GOODBYE_LIMIT)
_from_server = msgspec.msgpack.Decoder(p.Challenge | p.Welcome | p.Goodbye)


class NotOurProtocolError(StoreConnectionError):
    """The other side is not a Rallypoint server, or refuses us for good: a retry is useless."""


class StandbyError(StoreConnectionError):
    """The server is a standby.

    Args:
        text: what it said.
        leader: the server that leads, None if there is none or it is not known.
    """

    def __init__(self, text: str, leader: Endpoint | None) -> None:
        super().__init__(text)
        self.leader = leader


class UnknownTokenError(AuthenticationError):
    """The server does not know the token that was tried; it may know another of our tokens."""


class LoneTokenError(AuthenticationError):
    """One side has a token and the other has none."""


def goodbye_error(where: str, body: p.Goodbye) -> StoreConnectionError:
    """Return the error for a server that closed the connection with a reason."""
    if body.code == p.GOODBYE_STANDBY:
        return StandbyError(body.reason, _leader(body))
    kind: type[StoreConnectionError] = StoreConnectionError
    if body.code == p.GOODBYE_TOKEN:
        kind = AuthenticationError
    elif body.code in _FINAL:
        kind = NotOurProtocolError
    return kind(f"the server at {where} closed the connection: {body.reason}")


def _leader(body: p.Goodbye) -> Endpoint | None:
    try:
        return parse_rendezvous_endpoint(body.leader) if body.leader else None
    except ParameterError:
        return None  # an address format of a newer server: the reason names it for people


class ClientHandshake:
    """The client's side on one connection. Send `begin()`, then `receive` until `welcome` is set.

    Args:
        where: the server, for error messages.
        run: the run's id.
        client: random bytes of this client object, the same when it reconnects.
        nonce: `NONCE_BYTES` random bytes, new for each connection.
        key: the token to prove, None for none.
        binding: hash of the server's certificate, b"" without TLS.
    """

    def __init__(
        self,
        where: str,
        run: str,
        client: bytes,
        nonce: bytes,
        key: Key | None = None,
        binding: bytes = b"",
    ) -> None:
        self.welcome: p.Welcome | None = None
        self._where = where
        self._key = key
        self._binding = binding
        self._challenged = False
        self._hello = p.Hello(p.PROTOCOL_VERSION, run, client, nonce, SOFTWARE)
        if key is not None:
            worker = key.scope == "worker"
            self._hello = msgspec.structs.replace(self._hello, key=key.id, worker=worker)

    def begin(self) -> bytes:
        """Return the first frames to send."""
        frames = p.frame(self._hello)
        return frames if self._key is not None else frames + p.frame(p.Proof(b""))

    def receive(self, bodies: list[bytes]) -> bytes:
        """Take the bodies of one read, [] if it timed out; return the frames to send, if any.

        Raises:
            StandbyError: another server leads.
            UnknownTokenError: the server does not know the token.
            LoneTokenError: only one side has a token.
            AuthenticationError: the server refuses the token.
            NotOurProtocolError: trying again is no use.
            StoreConnectionError: the server timed out, or closed the connection for now.
        """
        if not bodies:
            raise StoreConnectionError(
                f"what listens at {self._where} accepted the connection and sent no data: it is "
                f"not a Rallypoint server, or its process is suspended; {ADVICE}"
            )
        answer = b""
        for number, data in enumerate(bodies, 1):
            body = self._decoded(data)
            if isinstance(body, p.Challenge) and not self._challenged:
                proof = self._proof_for(body)
                if number == len(bodies):  # else a goodbye follows: nobody reads the proof
                    answer = proof
            elif isinstance(body, p.Welcome) and self._challenged and self.welcome is None:
                self.welcome = body
            else:
                raise NotOurProtocolError(
                    f"the server at {self._where} broke the handshake: {body!r}"
                )
        return answer

    def _decoded(self, data: bytes) -> p.Challenge | p.Welcome:
        try:
            body: Any = _from_server.decode(data)
        except msgspec.DecodeError as error:
            raise NotOurProtocolError(
                f"what listens at {self._where} is not a Rallypoint server: {error}; {ADVICE}"
            ) from error
        if isinstance(body, p.Goodbye):
            raise goodbye_error(self._where, body)
        return body  # type: ignore[no-any-return]

    def _proof_for(self, challenge: p.Challenge) -> bytes:
        """Check the server's proof; return the frame with ours, b"" if it was sent already."""
        self._challenged = True
        if not hmac.compare_digest(self._proof(b"server", challenge), challenge.proof):
            kind = UnknownTokenError if self._key and challenge.proof else LoneTokenError
            raise kind(self._server_unproven(challenge))
        return p.frame(p.Proof(self._proof(b"client", challenge))) if self._key else b""

    def _proof(self, role: bytes, challenge: p.Challenge) -> bytes:
        if self._key is None:
            return b""
        return p.proof(self._key.secret, role, self._hello, challenge.nonce, self._binding)

    def _server_unproven(self, challenge: p.Challenge) -> str:
        where = self._where
        if self._key is None:
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
            "(RALLYPOINT_TOKEN, token_file), or check that the endpoint is the right one, and "
            "that nothing in between ends TLS"
        )


@dataclass(frozen=True, slots=True)
class NeedsPeerCredentials:
    """Find out whose process the client is, then call `peer_known`."""


@dataclass(frozen=True, slots=True)
class Done:
    """Both sides have proved themselves.

    Args:
        hello: the client's.
        rights: what it may do.
    """

    hello: p.Hello
    rights: Rights


Reply = p.Challenge | p.Goodbye | NeedsPeerCredentials | Done
"""Challenge: to be sent. Goodbye: to be sent, and the connection closed."""


@dataclass(slots=True, eq=False)
class ServerHandshake:
    """The server's side on one connection. Carry out each `Reply`, in order.

    Args:
        peer: the client's address, for the reasons it is given.
        nonce: `NONCE_BYTES` random bytes, new for each connection.
        decoy: a random secret, used when the client names an unknown token, so that the challenge
            does not tell which tokens exist.
        run_name_limit: most characters of a run id.
        asks_peer: whether only certain users' processes may talk to this server.
        binding: hash of the server's certificate, b"" without TLS.
    """

    peer: str
    nonce: bytes
    decoy: bytes
    run_name_limit: int
    asks_peer: bool = False
    binding: bytes = b""
    _greeted: p.Hello | None = None
    _early: p.Proof | None = None  # came before it was known whose process it is
    _hello: p.Hello | None = None  # once challenged
    _secret: bytes = b""
    _rights: Rights = EVERYTHING

    def take(self, body: p.Hello | p.Proof, keyring: Keyring) -> list[Reply]:
        """Take a message of the client.

        Args:
            body: as it came.
            keyring: the server's tokens as they are now, empty if it asks for none.
        """
        if isinstance(body, p.Hello):
            return self._take_hello(body, keyring)
        if self._hello is not None:
            return [self._check(self._hello, body)]
        if self._greeted is not None and self._early is None:
            self._early = body
            return []
        return [p.Goodbye(p.GOODBYE_PROTOCOL, "a proof came before the hello")]

    def peer_known(self, refusal: str, keyring: Keyring) -> list[Reply]:
        """Go on after `NeedsPeerCredentials`; `refusal`: why it may not talk, "" if it may."""
        hello, early = self._greeted, self._early
        if refusal or hello is None:
            return [p.Goodbye(p.GOODBYE_TOKEN, refusal)]
        challenge = self._challenge(hello, keyring)
        return [challenge] if early is None else [challenge, self._check(hello, early)]

    def recheck(self, keyring: Keyring) -> p.Goodbye | None:
        """Return a goodbye if the client's token is not among the changed tokens any more."""
        hello = self._hello
        if hello is None or not self._secret:
            return None
        if keyring.find(hello.key, hello.run, hello.worker) == (self._secret, self._rights):
            return None
        why = f"{self._rights.who or 'its token'} is no longer among this server's tokens"
        return p.Goodbye(p.GOODBYE_TOKEN, why)

    def _take_hello(self, hello: p.Hello, keyring: Keyring) -> list[Reply]:
        well_formed = len(hello.nonce) == p.NONCE_BYTES and len(hello.client) <= CLIENT_ID_BYTES
        if self._greeted is not None or not well_formed:
            why = "a hello that is not the first, or has a bad nonce or client id"
            return [p.Goodbye(p.GOODBYE_PROTOCOL, why)]
        if hello.version != p.PROTOCOL_VERSION:
            return [
                p.Goodbye(
                    p.GOODBYE_VERSION,
                    f"this server speaks protocol {p.PROTOCOL_VERSION}, the client "
                    f"({hello.software[:80]!r}) speaks {hello.version}; use the same version of "
                    "rallypoint",
                )
            ]
        if problem := p.run_problem(hello.run, self.run_name_limit):
            return [p.Goodbye(p.GOODBYE_PROTOCOL, problem)]
        self._greeted = hello
        return [NeedsPeerCredentials() if self.asks_peer else self._challenge(hello, keyring)]

    def _challenge(self, hello: p.Hello, keyring: Keyring) -> p.Challenge:
        self._hello = hello
        if keyring:
            known = keyring.find(hello.key, hello.run, hello.worker)
            self._secret, self._rights = known or (self.decoy, EVERYTHING)
        return p.Challenge(p.PROTOCOL_VERSION, self.nonce, self._proof(b"server", hello))

    def _proof(self, role: bytes, hello: p.Hello) -> bytes:
        if not self._secret:
            return b""
        return p.proof(self._secret, role, hello, self.nonce, self.binding)

    def _check(self, hello: p.Hello, proof: p.Proof) -> p.Goodbye | Done:
        rights = self._rights
        wanted = self._proof(b"client", hello) if self._secret else proof.proof
        if not hmac.compare_digest(wanted, proof.proof):
            shown = "a token that is not this server's" if proof.proof else "no token"
            text = f"{self.peer} has {shown}; give all nodes the same one"
            return p.Goodbye(p.GOODBYE_TOKEN, text)
        if not rights.reaches(hello.run):
            text = f"{rights.who} is for run {rights.run!r}, not for {hello.run!r}"
            return p.Goodbye(p.GOODBYE_TOKEN, text)
        return Done(hello, rights)
