"""Room for long messages: given in order, and taken from who does not use it."""

import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from rallypoint.rendezvous import defaults
from rallypoint.server.connection import Connection
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.server.receive_budget import LONG_BYTES, STALLED_SECONDS, Arrivals
from rallypoint.store.tcp import TCPStore


class Fake:
    def __init__(self, name: str) -> None:
        self.name, self.buffered = name, 0


def begin(arrivals: Arrivals, fake: Fake, length: int, now: float = 0.0) -> bool:
    return arrivals.begin(cast(Connection, fake), length, now)


def end(arrivals: Arrivals, fake: Fake, now: float = 0.0) -> list[str]:
    return [cast(Any, each).name for each in arrivals.end(cast(Connection, fake), now)]


def test_what_does_not_fit_waits_in_order_of_arrival() -> None:
    arrivals, (a, b, c, d) = Arrivals(100), map(Fake, "abcd")
    assert begin(arrivals, a, 60)
    assert not begin(arrivals, b, 60)
    assert not begin(arrivals, c, 10)  # it would fit, but is not first
    assert not begin(arrivals, d, 95)
    assert end(arrivals, a) == ["b", "c"]
    assert end(arrivals, b) == []
    assert end(arrivals, c) == ["d"]
    assert end(arrivals, d) == []
    assert begin(arrivals, a, 100)


def test_one_that_is_longer_than_all_comes_alone() -> None:
    arrivals, (a, b) = Arrivals(100), map(Fake, "ab")
    assert begin(arrivals, a, 500)
    assert not begin(arrivals, b, 1)
    assert end(arrivals, a) == ["b"]


def test_who_goes_while_it_waits_is_forgotten() -> None:
    arrivals, (a, b, c) = Arrivals(100), map(Fake, "abc")
    begin(arrivals, a, 90)
    begin(arrivals, b, 90)
    begin(arrivals, c, 90)
    assert end(arrivals, b) == []
    assert end(arrivals, a) == ["c"]


def test_who_hardly_sends_is_stalled_once_others_wait() -> None:
    arrivals, (slow, quick, other) = Arrivals(100), map(Fake, "sqo")
    begin(arrivals, slow, 50)
    begin(arrivals, quick, 50)

    def stalled(now: float) -> list[str]:
        return [cast(Any, each).name for each in arrivals.stalled(now)]

    assert stalled(STALLED_SECONDS) == []  # nobody waits
    begin(arrivals, other, 50)
    assert stalled(STALLED_SECONDS * 1.5) == []  # not long enough since the last look
    quick.buffered += 10 << 20
    slow.buffered += 10
    assert stalled(STALLED_SECONDS * 2.5) == ["s"]
    assert end(arrivals, slow) == ["o"]


def test_a_server_outlives_messages_that_never_end(
    serve: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rallypoint.server.receive_budget.STALLED_SECONDS", 0.2)
    server = serve(arriving_limit=4 << 20, frame_limit=4 << 20)
    with TCPStore("127.0.0.1", server.port, timeout=30) as store:
        stuck = [TCPStore("127.0.0.1", server.port, timeout=30) for _ in range(3)]
        for each in stuck:
            each.set("a", b"b")
            sock = each._link.sock
            sock.sendall(struct.pack(">I", 3 << 20) + bytes(LONG_BYTES))
        store.set("long", bytes(2 << 20))  # after those that are cut off for it
        assert store.add("short", 1) == 1
        for each in stuck:
            assert each.get("a") == b"b"  # it comes again
            each.close()


def test_the_limit_is_a_setting() -> None:
    assert defaults.value("arriving_limit") >= defaults.value("frame_limit")
