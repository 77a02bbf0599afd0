"""The handshake: each side alone, then both against each other."""

from typing import Any

import msgspec
import pytest

from rallypoint.errors import AuthenticationError, StoreConnectionError
from rallypoint.net import protocol as p
from rallypoint.net.handshake import (
    CLIENT_ID_BYTES,
    ClientHandshake,
    Done,
    LoneTokenError,
    NeedsPeerCredentials,
    NotOurProtocolError,
    Reply,
    ServerHandshake,
    StandbyError,
    UnknownTokenError,
    goodbye_error,
)
from rallypoint.net.tokens import EVERYTHING, Key, Keyring, key_id, parse, worker_token

NONCE = b"n" * p.NONCE_BYTES
SERVER_NONCE = b"s" * p.NONCE_BYTES
HELLO = p.Hello(p.PROTOCOL_VERSION, "run", b"c" * 16, NONCE, "test")
NO_TOKENS = Keyring(b"")
PROOF = p.Proof(b"")
WELCOME = p.Welcome(1, False)


def body(message: msgspec.Struct) -> bytes:
    return p.frame(message)[4:]


def split(frames: bytes) -> list[Any]:
    """Return the messages of a client's frames."""
    decoder = msgspec.msgpack.Decoder(p.Hello | p.Proof)
    found = []
    while frames:
        end = 4 + int.from_bytes(frames[:4], "big")
        found.append(decoder.decode(frames[4:end]))
        frames = frames[end:]
    return found


def key_of(token: bytes) -> Key:
    return parse(token)[0]


def client(key: Key | None = None, binding: bytes = b"") -> ClientHandshake:
    return ClientHandshake("a:1", "run", b"c" * 16, NONCE, key, binding)


def server(asks_peer: bool = False, binding: bytes = b"") -> ServerHandshake:
    return ServerHandshake("peer:1", SERVER_NONCE, b"decoy", 256, asks_peer, binding)


def challenge(proof: bytes = b"") -> bytes:
    return body(p.Challenge(p.PROTOCOL_VERSION, SERVER_NONCE, proof))


# -- the client's side ----------------------------------------------------------------------


def test_client_without_a_token_sends_an_empty_proof() -> None:
    shaking = client()
    assert [type(message) for message in split(shaking.begin())] == [p.Hello, p.Proof]
    assert shaking.receive([challenge(), body(WELCOME)]) == b""
    assert shaking.welcome == WELCOME


def test_client_proves_its_token_after_the_server() -> None:
    shaking = client(key_of(b"secret"), b"binding")
    (hello,) = split(shaking.begin())
    assert (hello.key, hello.worker) == (key_id(b"secret"), False)
    shown = p.proof(b"secret", b"server", hello, SERVER_NONCE, b"binding")
    (proof,) = split(shaking.receive([challenge(shown)]))
    assert proof.proof == p.proof(b"secret", b"client", hello, SERVER_NONCE, b"binding")
    assert shaking.welcome is None
    assert shaking.receive([body(WELCOME)]) == b""
    assert shaking.welcome == WELCOME


@pytest.mark.parametrize(
    ("key", "shown", "kind", "words"),
    [
        (None, b"x" * 32, LoneTokenError, "asks for a token and this client has none"),
        (key_of(b"secret"), b"", LoneTokenError, "started without a token"),
        (key_of(b"secret"), b"x" * 32, UnknownTokenError, "does not know this client's token"),
    ],
)
def test_server_with_another_proof_is_refused(
    key: Key | None, shown: bytes, kind: type[Exception], words: str
) -> None:
    shaking = client(key)
    shaking.begin()
    with pytest.raises(kind, match=words):
        shaking.receive([challenge(shown)])


@pytest.mark.parametrize(
    ("bodies", "words"),
    [
        ([body(WELCOME)], "broke the handshake"),
        ([challenge(), challenge()], "broke the handshake"),
        ([challenge(), body(WELCOME), body(WELCOME)], "broke the handshake"),
        ([b"\xc1"], "not a Rallypoint server"),
        ([body(HELLO)], "not a Rallypoint server"),
    ],
)
def test_messages_out_of_order_are_not_our_protocol(bodies: list[bytes], words: str) -> None:
    with pytest.raises(NotOurProtocolError, match=words):
        client().receive(bodies)


def test_silent_server_is_a_transient_error() -> None:
    with pytest.raises(StoreConnectionError, match="sent no data") as caught:
        client().receive([])
    assert not isinstance(caught.value, NotOurProtocolError)


@pytest.mark.parametrize("key", [None, key_of(b"secret")])
def test_goodbye_after_the_challenge_is_received(key: Key | None) -> None:
    shaking = client(key)
    (hello, *_) = split(shaking.begin())
    shown = p.proof(key.secret, b"server", hello, SERVER_NONCE) if key else b""
    goodbye = p.Goodbye(p.GOODBYE_SHUTDOWN, "the server is shutting down")
    with pytest.raises(StoreConnectionError, match="is shutting down") as caught:
        shaking.receive([challenge(shown), body(goodbye)])
    assert not isinstance(caught.value, NotOurProtocolError)


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
def test_goodbye_code_selects_the_error(code: str, kind: type[Exception]) -> None:
    error = goodbye_error("a:1", p.Goodbye(code, "so it is"))
    assert type(error) is kind
    assert "a:1" in str(error)
    assert "so it is" in str(error)


@pytest.mark.parametrize(
    ("leader", "place"),
    [("b:2", ("b", 2)), ("[::1]:2", ("::1", 2)), ("", None), ("tcp://b", None)],
)
def test_a_standby_names_the_leader(leader: str, place: tuple[str, int] | None) -> None:
    error = goodbye_error("a:1", p.Goodbye(p.GOODBYE_STANDBY, "stands by", leader))
    assert isinstance(error, StandbyError)
    assert (str(error), error.leader) == ("stands by", place)


# -- the server's side ----------------------------------------------------------------------


def prove(shaking: ServerHandshake, keyring: Keyring, key: Key) -> Reply:
    """Go through the handshake as a client with that token; return the last reply."""
    hello = msgspec.structs.replace(HELLO, key=key.id, worker=key.scope == "worker")
    (reply,) = shaking.take(hello, keyring)
    assert isinstance(reply, p.Challenge)
    proof = p.Proof(p.proof(key.secret, b"client", hello, reply.nonce))
    (reply,) = shaking.take(proof, keyring)
    return reply


def test_client_gets_the_rights_of_its_token() -> None:
    done = prove(server(), Keyring(b"read secret"), key_of(b"read secret"))
    assert isinstance(done, Done)
    assert (done.hello.run, done.rights.join, done.rights.admin) == ("run", False, False)


def test_token_of_another_run_is_refused_after_the_proof() -> None:
    refused = prove(server(), Keyring(b"run:other secret"), key_of(b"run:other secret"))
    assert isinstance(refused, p.Goodbye)
    assert refused.code == p.GOODBYE_TOKEN
    assert "is for run 'other', not for 'run'" in refused.reason


def test_unknown_token_is_challenged_like_a_known_one() -> None:
    shaking = server()
    (reply,) = shaking.take(HELLO, Keyring(b"secret"))
    assert isinstance(reply, p.Challenge)
    assert len(reply.proof) == 32
    (refused,) = shaking.take(p.Proof(b"x" * 32), Keyring(b"secret"))
    assert isinstance(refused, p.Goodbye)
    assert "peer:1 has a token that is not this server's" in refused.reason


def test_any_proof_is_accepted_without_tokens() -> None:
    shaking = server()
    assert shaking.take(HELLO, NO_TOKENS) == [p.Challenge(p.PROTOCOL_VERSION, SERVER_NONCE, b"")]
    assert shaking.take(PROOF, NO_TOKENS) == [Done(HELLO, EVERYTHING)]


@pytest.mark.parametrize(
    ("messages", "code", "words"),
    [
        ([PROOF], p.GOODBYE_PROTOCOL, "before the hello"),
        ([HELLO, HELLO], p.GOODBYE_PROTOCOL, "not the first"),
        ([msgspec.structs.replace(HELLO, nonce=b"")], p.GOODBYE_PROTOCOL, "bad nonce"),
        ([msgspec.structs.replace(HELLO, client=b"c" * 65)], p.GOODBYE_PROTOCOL, "client id"),
        ([msgspec.structs.replace(HELLO, version=99)], p.GOODBYE_VERSION, "speaks 99"),
        ([msgspec.structs.replace(HELLO, run="x" * 999)], p.GOODBYE_PROTOCOL, "limit of 256"),
        ([HELLO, PROOF], p.GOODBYE_TOKEN, "no token"),
    ],
)
def test_client_that_violates_the_protocol_is_refused(
    messages: list[Any], code: str, words: str
) -> None:
    shaking = server()
    for message in messages:
        (reply,) = shaking.take(message, Keyring(b"secret"))
    assert isinstance(reply, p.Goodbye)
    assert reply.code == code
    assert words in reply.reason


def test_no_reply_before_the_peer_is_known() -> None:
    shaking = server(asks_peer=True)
    assert shaking.take(HELLO, NO_TOKENS) == [NeedsPeerCredentials()]
    (again,) = shaking.take(HELLO, NO_TOKENS)
    assert isinstance(again, p.Goodbye)
    assert [type(reply) for reply in shaking.peer_known("", NO_TOKENS)] == [p.Challenge]
    assert shaking.take(PROOF, NO_TOKENS) == [Done(HELLO, EVERYTHING)]


def test_early_proof_waits_until_the_peer_is_known() -> None:
    shaking = server(asks_peer=True)
    shaking.take(HELLO, NO_TOKENS)
    assert shaking.take(PROOF, NO_TOKENS) == []
    (second,) = shaking.take(PROOF, NO_TOKENS)
    assert isinstance(second, p.Goodbye)
    challenged, done = shaking.peer_known("", NO_TOKENS)
    assert isinstance(challenged, p.Challenge)
    assert done == Done(HELLO, EVERYTHING)


def test_process_of_another_user_is_refused() -> None:
    shaking = server(asks_peer=True)
    shaking.take(HELLO, NO_TOKENS)
    assert shaking.peer_known("not yours", NO_TOKENS) == [p.Goodbye(p.GOODBYE_TOKEN, "not yours")]


@pytest.mark.parametrize("worker", [False, True])
@pytest.mark.parametrize(
    ("after", "stays"),
    [
        (b"new\nold", True),
        (b"new", False),
        (b"read old", False),  # the same secret with fewer rights
    ],
)
def test_a_removed_token_ends_the_connection(after: bytes, stays: bool, worker: bool) -> None:
    shaking = server()
    key = key_of(worker_token(b"old", "run").encode() if worker else b"old")
    assert isinstance(prove(shaking, Keyring(b"old"), key), Done)
    goodbye = shaking.recheck(Keyring(after))
    assert (goodbye is None) is stays
    if goodbye is not None:
        assert goodbye.code == p.GOODBYE_TOKEN
        assert f"token {key_id(b'old').hex()} is no longer" in goodbye.reason


def test_unproved_client_is_not_checked_again() -> None:
    shaking = server()
    assert shaking.recheck(Keyring(b"new")) is None
    shaking.take(HELLO, NO_TOKENS)
    shaking.take(PROOF, NO_TOKENS)
    assert shaking.recheck(Keyring(b"new")) is None


# -- both sides ---------------------------------------------------------------------------


@pytest.mark.parametrize("token", [b"", b"secret", b"run:run secret"])
@pytest.mark.parametrize("binding", [b"", b"certificate"])
@pytest.mark.parametrize("worker", [False, True])
def test_both_sides_agree(token: bytes, binding: bytes, worker: bool) -> None:
    keyring = Keyring(token)
    shown = worker_token(token, "run").encode() if worker else token
    ours = client(key_of(shown) if shown else None, binding)
    theirs = server(binding=binding)
    messages, done = split(ours.begin()), None
    while done is None:
        for message in messages:
            for reply in theirs.take(message, keyring):
                if isinstance(reply, p.Challenge):
                    messages = split(ours.receive([body(reply)]))
                else:
                    done = reply
    assert isinstance(done, Done)
    ours.receive([body(WELCOME)])
    assert ours.welcome == WELCOME


def test_proof_fails_with_another_certificate() -> None:
    ours, theirs = client(key_of(b"secret"), b"one"), server(binding=b"another")
    (hello,) = split(ours.begin())
    (reply,) = theirs.take(hello, Keyring(b"secret"))
    assert isinstance(reply, p.Challenge)
    with pytest.raises(UnknownTokenError):
        ours.receive([body(reply)])


def test_longest_client_id_is_accepted() -> None:
    hello = msgspec.structs.replace(HELLO, client=b"c" * CLIENT_ID_BYTES)
    assert [type(reply) for reply in server().take(hello, NO_TOKENS)] == [p.Challenge]
