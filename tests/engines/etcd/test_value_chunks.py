"""Large values in parts, with a gateway that only remembers."""

from typing import Any, cast

import pytest

from rallypoint.deadline import Deadline
from rallypoint.engines.etcd import messages as m
from rallypoint.engines.etcd.gateway import Gateway
from rallypoint.engines.etcd.value_chunks import CHUNK_BYTES, INLINE_BYTES, ValueChunks
from rallypoint.errors import StoreValueError

LIMIT_SECONDS = 5


class Remembering:
    """A gateway that writes down what it is asked."""

    address = "etcd://here"

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.answer = m.Txn(m.Header(1))

    def call(self, path: str, body: Any, kind: type[Any], deadline: Deadline) -> Any:
        self.calls.append((path, body))
        return m.Lease(77, 300) if kind is m.Lease else self.answer


@pytest.fixture
def gateway() -> Remembering:
    return Remembering()


@pytest.fixture
def parts(gateway: Remembering) -> ValueChunks:
    return ValueChunks(cast(Gateway, gateway), b"x/parts/")


def test_small_values_are_not_split(gateway: Remembering, parts: ValueChunks) -> None:
    upload = parts.upload({"a": b"1", "b": None, "c": b""}, Deadline(LIMIT_SECONDS))
    assert upload.values == {"a": b"\x001", "c": b"\0"}
    assert (upload.ops, upload.lease, gateway.calls) == ([], 0, [])
    parts.abandon(upload, Deadline(LIMIT_SECONDS))
    assert gateway.calls == []
    assert parts.name_in(b"\x001", b"b") == ""


def test_largest_values_are_split_first(gateway: Remembering, parts: ValueChunks) -> None:
    half = INLINE_BYTES // 2 + 1
    upload = parts.upload(
        {"a": b"a" * half, "b": b"b" * (2 * CHUNK_BYTES + 1), "c": b"c"}, Deadline(LIMIT_SECONDS)
    )
    assert set(upload.names) == {"b"}
    assert parts.name_in(upload.values["b"], b"b") == upload.names["b"]
    paths = [path for path, _ in gateway.calls]
    assert paths == ["/lease/grant", "/kv/put", "/kv/put", "/kv/put"]
    assert [len(body["value"]) for _, body in gateway.calls[1:]] == [CHUNK_BYTES, CHUNK_BYTES, 1]
    assert {body["lease"] for _, body in gateway.calls[1:]} == {"77"}
    assert [op["request_put"]["key"] for op in upload.ops] == [
        body["key"] for _, body in gateway.calls[1:]
    ]
    parts.abandon(upload, Deadline(LIMIT_SECONDS))
    assert gateway.calls[-1] == ("/lease/revoke", {"ID": "77"})


def test_many_values_may_be_too_large_together(parts: ValueChunks) -> None:
    upload = parts.upload({f"{n}": b"x" * 100_000 for n in range(20)}, Deadline(LIMIT_SECONDS))
    assert sum(map(len, upload.values.values())) <= INLINE_BYTES + 20 * 40
    assert len(upload.names) >= 12


def test_fetching(gateway: Remembering, parts: ValueChunks) -> None:
    pointer = m.KeyValue(b"k", b"\x01name", 5)
    assert parts.fetch(b"k", pointer, Deadline(LIMIT_SECONDS)) is None  # replaced meanwhile
    found = m.OpAnswer(m.Range([m.KeyValue(b"1", b"ab"), m.KeyValue(b"2", b"c")]))
    gateway.answer = m.Txn(m.Header(1), True, [found])
    assert parts.fetch(b"k", pointer, Deadline(LIMIT_SECONDS)) == b"abc"
    assert gateway.calls[-1][1]["compare"] == [m.unchanged(b"k", 5)]
    assert parts.drop("name") == m.delete(b"x/parts/name/", b"x/parts/name0")


def test_foreign_value_is_refused(parts: ValueChunks) -> None:
    for raw in (b"", b"{}"):
        with pytest.raises(StoreValueError, match=r"p/data/x holds .* not Rallypoint's"):
            parts.name_in(raw, b"p/data/x")
