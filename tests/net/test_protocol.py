"""The wire format: frames, tags, proofs, limits."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.net import protocol as p

HELLO = p.Hello(1, "run", b"client", b"n" * 16, "test")


def test_a_frame_is_length_and_body() -> None:
    data = p.frame(p.Reply(7, [b"x", None]))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert msgspec.msgpack.decode(data[4:], type=p.Reply) == p.Reply(7, [b"x", None])


@given(st.text(), st.binary(), st.integers(-(2**63), 2**63 - 1))
def test_requests_come_out_as_they_went_in(key: str, value: bytes, amount: int) -> None:
    requests: list[p.StoreRequest] = [
        p.Set(key, value),
        p.Add(key, amount),
        p.CompareSwap(key, None, value),
        p.Gather(key, 3, None, value, True, 1.5),
        p.Pipeline([p.Set(key, value), p.Peek(key)]),
    ]
    for request in requests:
        call = p.Call(2**40, 1, request, (5, 6))
        assert msgspec.msgpack.decode(p.frame(call)[4:], type=p.Call) == call


def test_no_two_bodies_share_a_tag() -> None:
    kinds = [kind for kind in vars(p).values() if isinstance(kind, type)]
    bodies = [kind for kind in kinds if issubclass(kind, p._Body) and kind is not p._Body]
    tags = [kind.__struct_config__.tag for kind in bodies]
    assert len(tags) == len(set(tags))


def test_repeatable_requests_are_requests_without_an_effect() -> None:
    kinds = set(get_args(p.StoreRequest))
    assert set(p.REPEATABLE) < kinds
    assert not {p.QueuePop, p.Gather, p.Add, p.Pipeline, p.Set} & set(p.REPEATABLE)


def test_a_proof_depends_on_everything() -> None:
    def change(**changes: object) -> p.Hello:
        return msgspec.structs.replace(HELLO, **changes)

    proofs = {
        p.proof(b"token", b"client", HELLO, b"s" * 16),
        p.proof(b"other", b"client", HELLO, b"s" * 16),
        p.proof(b"token", b"server", HELLO, b"s" * 16),
        p.proof(b"token", b"client", HELLO, b"t" * 16),
        p.proof(b"token", b"client", change(run="other"), b"s" * 16),
        p.proof(b"token", b"client", change(nonce=b"m" * 16), b"s" * 16),
        p.proof(b"token", b"client", change(client=b"clienT"), b"s" * 16),
        p.proof(b"token", b"client", change(run="runc", client=b"lient"), b"s" * 16),
        p.proof(b"token", b"client", change(worker=True), b"s" * 16),
    }
    assert len(proofs) == 9


@pytest.mark.parametrize("run", ["", "job-7", "j\u00e4hrlich", "a b/c.d", "x" * 256])
def test_valid_run_ids(run: str) -> None:
    assert p.run_problem(run) == ""


@pytest.mark.parametrize(
    ("run", "words"),
    [("x" * 257, "257"), ("a\n", "control"), ("\0", "control"), ("\x1b[1m", "control")],
)
def test_invalid_run_ids(run: str, words: str) -> None:
    assert words in p.run_problem(run)


def test_only_blocked_calls_have_a_deadline() -> None:
    assert p.within(p.Get("k", 9.0), 2.0) == p.Get("k", 2.0)
    assert p.within(p.Peek("k"), 2.0) == p.Peek("k")


def test_shared_result_is_encoded_once() -> None:
    data = p.frame(p.Reply(7, p.encoded([b"x", None])))
    assert data == p.frame(p.Reply(7, [b"x", None]))


def test_result_of_many_replies_is_encoded_once() -> None:
    values = [b"a", b"b"]
    shared = p.encoded(values)
    assert p.frame(p.Reply(1, shared)) == p.frame(p.Reply(1, values))


@pytest.mark.parametrize(
    ("head", "who"),
    [
        (b"HTTP/1.1 400 Bad Request", "an HTTP server"),
        (b"SSH-2.0-OpenSSH_9.2", "an SSH server"),
        (b"-ERR unknown command", "a Redis server"),
        (b"\x00\x00\x12\x04\x00", "a gRPC (HTTP/2) server, such as etcd"),
        (p.TLS_ALERT + b"\x03\x00\x02", "a server that speaks TLS"),
        (b"\x16\x03\x03\x00", "a server that speaks TLS"),
        (b"220 mail", ""),
        (b"", ""),
    ],
)
def test_other_protocols_are_recognised_by_first_bytes(head: bytes, who: str) -> None:
    assert p.who_speaks(head) == who
    assert p.speaks_tls(head) == ("TLS" in who)
