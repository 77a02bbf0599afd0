"""Which connections are admitted, how often a node may join, and room for long messages."""

from typing import Any

import pytest

from rallypoint.net import protocol as p
from rallypoint.net.tls import TLS
from rallypoint.rendezvous import defaults
from rallypoint.server.limits import (
    OWN_FILES,
    STALLED_SECONDS,
    ConnectionLimits,
    RateLimit,
    ReceiveBudget,
    early_frame_refusal,
    too_long,
)
from rallypoint.server.options import Options


def limits(open_files: int = 1 << 20, **options: Any) -> ConnectionLimits[str]:
    return ConnectionLimits(Options(**options), open_files)


def enter(of: ConnectionLimits[str], *names: str, address: str = "10.0.0.1") -> list[str]:
    """Let connections in, one after the other; return which were closed."""
    refusals = [of.enter(name, address, 0, 0.0) for name in names]
    return [refusal.connection for refusal in refusals if refusal is not None]


# -- connections ----------------------------------------------------------------------------


def test_full_server_is_busy() -> None:
    full = limits(connections_limit=3)
    assert full.enter("a", "10.0.0.1", 2, 0.0) is None
    refusal = full.enter("b", "10.0.0.1", 3, 0.0)
    assert refusal is not None
    assert (refusal.connection, refusal.goodbye.code) == ("b", p.GOODBYE_BUSY)
    assert "3 connections (connections_limit)" in refusal.goodbye.reason


def test_open_files_limit_connections() -> None:
    few = limits(OWN_FILES + 8, connections_limit=100)
    assert few.enter("a", "10.0.0.1", 7, 0.0) is None
    refusal = few.enter("b", "10.0.0.1", 8, 0.0)
    assert refusal is not None
    assert f"8 connections (ulimit -n {OWN_FILES + 8})" in refusal.goodbye.reason


def test_each_address_has_its_own_limit() -> None:
    full = limits(address_limit=2)
    assert enter(full, "a", "b", "c") == ["c"]
    assert enter(full, "d", address="10.0.0.2") == []
    for name in "abc":
        full.leave(name, "10.0.0.1")
    assert enter(full, "e") == []


def test_oldest_unproved_connection_makes_room() -> None:
    few = limits(handshakes_limit=2)
    enter(few, "member")
    few.proved("member")  # is never displaced
    assert enter(few, "a", "b", "c") == ["a"]


def test_fewer_tls_handshakes_may_be_pending() -> None:
    assert enter(limits(handshakes_limit=8, tls=TLS(cert="c")), "a", "b", "c") == ["a"]


def test_slow_handshakes_are_overdue() -> None:
    late = limits(handshake_seconds=10.0)
    for at, name in enumerate("abcd"):
        late.enter(name, "10.0.0.1", 0, float(at))
    late.proved("a")
    assert [refusal.connection for refusal in late.overdue(12.5, gap=0.0)] == ["b", "c"]
    assert [refusal.connection for refusal in late.overdue(12.5, gap=1.0)] == ["b"]
    assert [refusal.connection for refusal in late.overdue(99.0, gap=0.0)] == ["b", "c", "d"]
    assert "no handshake within 10 s" in late.overdue(12.5, gap=0.0)[0].goodbye.reason


# -- frames and joins -----------------------------------------------------------------------


def test_first_bytes_of_other_protocols_are_recognised() -> None:
    reason, last = early_frame_refusal(b"GET ", 4096)
    assert "HTTP" in reason
    assert last.startswith(b"HTTP/1.0 400")
    reason, last = early_frame_refusal(b"\x16\x03\x01\x02", 4096)
    assert "TLS" in reason
    assert last == p.frame(p.Goodbye(p.GOODBYE_PROTOCOL, reason))


@pytest.mark.parametrize("head", [b"SSH-", b"\x00\x00\x10\x01"])
def test_other_frames_are_too_long(head: bytes) -> None:
    goodbye = too_long(int.from_bytes(head, "big"), 4096)
    assert early_frame_refusal(head, 4096) == (goodbye.reason, p.frame(goodbye))
    assert "above the limit of 4096" in goodbye.reason


def test_rate_limit_is_a_burst_and_then_a_rate() -> None:
    joins = RateLimit(rate=2.0, burst=3, now=0.0)
    assert [joins.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert not joins.take(0.4)
    assert joins.take(0.9)
    assert not joins.take(0.9)
    assert [joins.take(100.0) for _ in range(4)] == [True, True, True, False]


# -- long messages --------------------------------------------------------------------------


def test_messages_without_room_wait_in_order_of_arrival() -> None:
    budget = ReceiveBudget[str](100)
    assert budget.begin("a", 60, 0.0)
    assert not budget.begin("b", 60, 0.0)
    assert not budget.begin("c", 10, 0.0)  # it would fit, but is not first
    assert not budget.begin("d", 95, 0.0)
    assert budget.end("a", 0.0) == ["b", "c"]
    assert budget.end("b", 0.0) == []
    assert budget.end("c", 0.0) == ["d"]
    assert budget.end("d", 0.0) == []
    assert budget.begin("a", 100, 0.0)


def test_message_above_the_budget_is_received_alone() -> None:
    budget = ReceiveBudget[str](100)
    assert budget.begin("a", 500, 0.0)
    assert not budget.begin("b", 1, 0.0)
    assert budget.end("a", 0.0) == ["b"]


def test_closed_connection_waits_no_more() -> None:
    budget = ReceiveBudget[str](100)
    for name in "abc":
        budget.begin(name, 90, 0.0)
    assert budget.end("b", 0.0) == []
    assert budget.end("a", 0.0) == ["c"]


def test_slow_sender_is_stalled_once_others_wait() -> None:
    budget = ReceiveBudget[str](100)
    budget.begin("slow", 50, 0.0)
    budget.begin("quick", 50, 0.0)
    received = dict.fromkeys(budget.receiving(), 0)
    assert set(received) == {"slow", "quick"}
    assert budget.stalled(received, STALLED_SECONDS) == []  # nobody waits
    budget.begin("other", 50, 0.0)
    assert budget.stalled(received, STALLED_SECONDS * 1.5) == []  # too soon after the last look
    received = {"slow": 10, "quick": 10 << 20}
    assert budget.stalled(received, STALLED_SECONDS * 2.5) == ["slow"]
    assert budget.end("slow", 0.0) == ["other"]


def test_any_frame_fits_into_the_default_budget() -> None:
    assert defaults.value("arriving_limit") >= defaults.value("frame_limit")


def test_address_without_connections_uses_no_memory() -> None:
    of = limits(address_limit=2)
    enter(of, "a", "b")
    for name in "ab":
        of.leave(name, "10.0.0.1")
    assert of._of_address == {}
