"""A call under way: for how long it waits, and what becomes of it."""

import pytest

from rallypoint.errors import StoreConnectionError, StoreLimitError, StoreTimeoutError
from rallypoint.net import protocol as p
from rallypoint.store.pending_call import ANSWER_MARGIN_SECONDS, PendingCall


def test_call_waits_for_its_timeout_and_a_margin() -> None:
    slot = PendingCall(p.Get("key", 1.0), 60.0)
    assert not slot.expired()
    assert 50.0 < slot.remaining() <= 60.0 + ANSWER_MARGIN_SECONDS
    late = PendingCall(p.Peek("key"), -ANSWER_MARGIN_SECONDS)
    assert late.expired()
    assert late.remaining() == 0.0


def test_failure_reply_raises_its_error() -> None:
    slot = PendingCall(p.Peek("key"), 1.0)
    slot.answer = p.Failure(1, p.FAIL_LIMIT, "too much")
    assert isinstance(slot.error("host:1"), StoreLimitError)
    slot.answer = gone = StoreConnectionError("gone")
    assert slot.error("host:1") is gone


def test_timeout_error_says_request_server_and_time() -> None:
    error = PendingCall(p.Peek("key"), 2.5).error("host:1")
    assert isinstance(error, StoreTimeoutError)
    assert str(error) == (
        "the server at host:1 did not answer Peek within timeout=2.5 s and 10 s more"
    )


def test_call_in_doubt_error_says_what_is_unknown() -> None:
    error = PendingCall(p.Add("key", 1), 1.0).in_doubt("host:1", StoreConnectionError("it broke"))
    for part in ("it broke", "host:1", "whether Add took effect"):
        assert part in str(error)
    with pytest.raises(StoreConnectionError):
        raise error
