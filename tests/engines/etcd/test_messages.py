"""What etcd is sent and answers."""

import msgspec

from rallypoint.engines.etcd import messages as m


def decode(text: str) -> m.Txn:
    return msgspec.json.decode(text, type=m.Txn, strict=False)


def test_answers_of_the_gateway_are_read() -> None:
    """As etcd 3.4 writes them: numbers as text, bytes as base64, zeros left out."""
    answer = decode(
        '{"header":{"cluster_id":"1","revision":"9007199254740993"},"responses":['
        '{"response_range":{"header":{},"kvs":[{"key":"YQ==","create_revision":"2",'
        '"mod_revision":"3","version":"1","value":"eA==","lease":"4"}],"count":"1"}},'
        '{"response_put":{"header":{}}},{"response_range":{"kvs":[{"key":"Yg=="}]}}]}'
    )
    assert answer.header.revision == 9007199254740993
    assert not answer.succeeded
    assert answer.found() == [m.KeyValue(b"a", b"x", 3, 4), m.KeyValue(b"b")]


def test_end_of_a_prefix_range() -> None:
    assert m.end_of(b"a/") == b"a0"


def test_operations_are_grouped() -> None:
    ops = [m.put(b"%d" % n, b"") for n in range(10)]
    assert m.grouped(ops, 10) == ops
    groups = m.grouped(ops, 4)
    assert len(groups) == 4
    assert [op for group in groups for op in group["request_txn"]["success"]] == ops


def test_conditions() -> None:
    assert m.unchanged(b"k", 0)["mod_revision"] == "0"
    assert m.all_older(b"a", b"b", 5)["mod_revision"] == "6"
    assert m.all_older(b"a", b"b", 5)["result"] == "LESS"
    assert m.keep(b"k") == {"request_put": {"key": b"k", "ignore_value": True}}
    assert m.delete(b"k") == {"request_delete_range": {"key": b"k", "range_end": b""}}


def test_reading() -> None:
    assert m.get(b"a", b"b", 7, keys_only=True) == {
        "request_range": {"key": b"a", "range_end": b"b", "revision": "7", "keys_only": True}
    }
