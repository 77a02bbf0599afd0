"""The server's side of the handshake: what it asks of a client before anything else.

    Hello -> (whose process is it, where no token is asked for) -> Challenge -> Proof

A client with nothing to prove sends hello and proof at once; where it takes a moment to find
its owner, the proof waits.
What is sent is in `store.protocol`; tokens and their rights are in `store.keyring`.
"""

import hmac
import secrets
from functools import partial
from typing import TYPE_CHECKING

from rallypoint.net import protocol as p
from rallypoint.net.tokens import EVERYTHING
from rallypoint.server.peer_credentials import may_talk, refusal

if TYPE_CHECKING:
    from rallypoint.server.connection import Connection

_CLIENT_ID_BYTES = 64


class Handshake:
    """The handshake of one connection.

    Args:
        connection: says goodbye where something does not fit.
    """

    __slots__ = ("_connection", "_early", "_greeted", "_hello", "_nonce", "_secret", "rights")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._greeted = False
        self._early: p.Proof | None = None
        self._hello: p.Hello | None = None
        self._nonce = self._secret = b""
        self.rights = EVERYTHING

    def take(self, body: p.Hello | p.Proof) -> p.Hello | None:
        """Take one step; return the hello once both sides have proved themselves."""
        if isinstance(body, p.Hello):
            self._greet(body)
            return None
        hello, rights = self._hello, self.rights
        say = self._connection.goodbye
        if hello is None and self._greeted and self._early is None:
            self._early = body
            return None
        if hello is None:
            say(p.GOODBYE_PROTOCOL, "a proof came before the hello")
            return None
        wanted = self._proof(b"client") if self._secret else body.proof
        if not hmac.compare_digest(wanted, body.proof):
            shown = "a token that is not this server's" if body.proof else "no token"
            text = f"{self._connection.peer} has {shown}; give all nodes the same one"
            say(p.GOODBYE_TOKEN, text)
            return None
        if not rights.reaches(hello.run):
            say(p.GOODBYE_TOKEN, f"{rights.who} is for run {rights.run!r}, not for {hello.run!r}")
            return None
        return hello

    def _greet(self, hello: p.Hello) -> None:
        connection = self._connection
        well_formed = len(hello.nonce) == p.NONCE_BYTES and len(hello.client) <= _CLIENT_ID_BYTES
        if self._greeted or not well_formed:
            why = "a hello that is not the first, or has a bad nonce or client id"
            connection.goodbye(p.GOODBYE_PROTOCOL, why)
            return
        if hello.version != p.PROTOCOL_VERSION:
            connection.goodbye(
                p.GOODBYE_VERSION,
                f"this server speaks protocol {p.PROTOCOL_VERSION}, the client "
                f"({hello.software[:80]!r}) speaks {hello.version}; use the same version of "
                "rallypoint",
            )
            return
        if problem := p.run_problem(hello.run, connection.server.options.run_name_limit):
            connection.goodbye(p.GOODBYE_PROTOCOL, problem)
            return
        self._greeted = True
        if connection.server.owners is None:
            self._challenge(hello)
        else:
            connection.server.owners.ask(*connection.ends, partial(self._owned, hello))

    def _owned(self, hello: p.Hello, uid: int | None) -> None:
        """Go on now that it is known whose process this is."""
        if not may_talk(uid):
            self._connection.goodbye(p.GOODBYE_TOKEN, refusal(uid))
            return
        self._challenge(hello)
        if self._early is not None:
            self._connection.shake(self._early)

    def _challenge(self, hello: p.Hello) -> None:
        self._hello = hello
        self._nonce = secrets.token_bytes(p.NONCE_BYTES)
        keyring = self._connection.server.keyring
        if keyring:
            unknown = (secrets.token_bytes(32), EVERYTHING)  # which nobody can prove
            self._secret, self.rights = keyring.find(*_named(hello)) or unknown
        shown = self._proof(b"server")
        self._connection.send_at_once(p.frame(p.Challenge(p.PROTOCOL_VERSION, self._nonce, shown)))

    def _proof(self, role: bytes) -> bytes:
        if self._hello is None or not self._secret:
            return b""
        binding = self._connection.binding
        return p.proof(self._secret, role, self._hello, self._nonce, binding)

    def recheck(self) -> None:
        """The tokens have changed: end the connection if its own is not among them any more."""
        if self._hello is None or not self._secret:
            return
        found = self._connection.server.keyring.find(*_named(self._hello))
        if found != (self._secret, self.rights):
            why = f"{self.rights.who or 'its token'} is no longer among this server's tokens"
            self._connection.goodbye(p.GOODBYE_TOKEN, why)


def _named(hello: p.Hello) -> tuple[bytes, str, bool]:
    return hello.key, hello.run, hello.worker
