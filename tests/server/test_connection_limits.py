"""Who is let in, who is told that the server is busy, and how often a node may join."""

import resource
from typing import Any, cast

from rallypoint.net import protocol as p
from rallypoint.net.tls import TLS
from rallypoint.server.connection import Connection
from rallypoint.server.connection_limits import (
    OWN_FILES,
    Allowance,
    Gate,
    raise_file_limit,
    stranger,
)
from rallypoint.server.options import Options


class Fake:
    def __init__(self, address: str = "10.0.0.1", opened_at: float = 0.0) -> None:
        self.address, self.opened_at = address, opened_at
        self.said: list[tuple[str, str]] = []

    def goodbye(self, code: str, reason: str) -> None:
        self.said.append((code, reason))


def gate(**limits: Any) -> Gate:
    return Gate(Options(**limits))


def enter(of: Gate, *fakes: Fake, others: int = 0) -> None:
    for fake in fakes:
        of.enter(cast(Connection, fake), others)


def test_a_full_server_is_busy_and_may_be_tried_again() -> None:
    fake = Fake()
    enter(gate(connections_limit=3), fake, others=3)
    assert fake.said[0][0] == p.GOODBYE_BUSY
    assert "3 connections" in fake.said[0][1]


def test_no_more_come_in_than_there_are_open_files_for() -> None:
    few, fakes = gate(connections_limit=100), [Fake() for _ in range(3)]
    few.fit(10_000)
    enter(few, fakes[0], others=99)
    few.fit(OWN_FILES + 8)
    enter(few, fakes[1], others=7)
    enter(few, fakes[2], others=8)
    assert [bool(fake.said) for fake in fakes] == [False, False, True]
    assert f"8 connections (ulimit -n {OWN_FILES + 8})" in fakes[2].said[0][1]


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] // 2, before[1]))
        assert raise_file_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_one_address_has_its_own_limit() -> None:
    full, mine, other = gate(address_limit=2), [Fake() for _ in range(3)], Fake("10.0.0.2")
    enter(full, *mine, other)
    assert [bool(fake.said) for fake in (*mine, other)] == [False, False, True, False]
    for fake in mine:
        full.leave(cast(Connection, fake))
    again = Fake()
    enter(full, again)
    assert not again.said


def test_the_stranger_that_waits_longest_makes_room() -> None:
    few, fakes = gate(handshakes_limit=2), [Fake() for _ in range(4)]
    enter(few, fakes[0])
    few.proved(cast(Connection, fakes[0]))  # a member is never pushed out
    enter(few, *fakes[1:])
    assert [bool(fake.said) for fake in fakes] == [False, True, False, False]
    assert few.refused == 1


def test_who_is_overdue() -> None:
    late, fakes = gate(), [Fake(opened_at=float(n)) for n in range(4)]
    enter(late, *fakes)
    late.proved(cast(Connection, fakes[0]))
    assert cast(list[Fake], late.overdue(2.5)) == fakes[1:3]


def test_an_allowance_is_a_burst_and_then_a_rate() -> None:
    joins = Allowance(rate=2.0, burst=3, now=0.0)
    assert [joins.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert not joins.take(0.4)
    assert joins.take(0.9)
    assert not joins.take(0.9)
    assert [joins.take(100.0) for _ in range(4)] == [True, True, True, False]


def test_with_tls_fewer_may_wait_since_each_takes_more() -> None:
    fakes = [Fake() for _ in range(3)]
    enter(gate(handshakes_limit=8, tls=TLS(cert="c")), *fakes)
    assert [bool(fake.said) for fake in fakes] == [True, False, False]


def test_what_speaks_another_protocol_is_recognised_by_its_first_bytes() -> None:
    web, tls = stranger(b"GET "), stranger(b"\x16\x03\x01\x02")
    assert web is not None
    assert tls is not None
    assert web[1].startswith(b"HTTP/1.0 400")
    assert "TLS" in tls[0]
    assert stranger(b"SSH-") is None
