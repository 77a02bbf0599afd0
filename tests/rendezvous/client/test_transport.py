"""A line: who reads it, what ends a read, and what comes after a cut."""

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from rallypoint.deadline import Deadline
from rallypoint.net import protocol as p
from rallypoint.net.connection import Target
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client.transport import Line
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.testing.proxy import Proxy
from rallypoint.testing.store_handles import after_a_moment, in_thread

ASK = p.frame(wire.Inquire(1, brief=True))
WAIT_SECONDS = 20.0


class Owner:
    """Notes what it is told, and by which thread."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.readers: set[int] = set()
        self.connected = False
        self.fault: Exception | None = None
        self.error: BaseException | None = None
        self.changed = threading.Condition()

    def take(self, data: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        with self.changed:
            self.bodies.append(data)
            self.readers.add(threading.get_ident())
            self.changed.notify_all()

    def greetings(self) -> list[bytes]:
        return [ASK]

    def tell_connected(self, connected: bool) -> None:
        with self.changed:
            self.connected = connected
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        self.error = error


@pytest.fixture(name="owner")
def _owner() -> Owner:
    return Owner()


@pytest.fixture(name="line")
def _line(server: EmbeddedServer, owner: Owner) -> Iterator[Line]:
    line = Line(Target("127.0.0.1", server.port, "run"), 15.0, owner)
    assert line.open(Deadline(WAIT_SECONDS))
    yield line
    line.stop()


def ask(line: Line, owner: Owner, answers: int) -> bool:
    return line.read_until(lambda: len(owner.bodies) >= answers, Deadline(WAIT_SECONDS), ASK)


def test_whoever_waits_reads_its_answer_itself(line: Line, owner: Owner) -> None:
    for count in range(1, 20):
        assert ask(line, owner, count)
    assert owner.readers == {threading.get_ident()}


def test_between_such_waits_the_reactor_reads(line: Line, owner: Owner) -> None:
    line.rest()
    line.send(ASK)
    with owner.changed:
        assert owner.changed.wait_for(lambda: owner.bodies, WAIT_SECONDS)
    (reader,) = owner.readers
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    assert names[reader] == "rallypoint-reactor"


def test_only_one_reads_and_hands_out_what_is_for_others(line: Line, owner: Owner) -> None:
    reading = after_a_moment(in_thread(ask, line, owner, 2))
    assert not ask(line, owner, 2)  # sent, but another thread reads
    assert reading.result(WAIT_SECONDS)


def test_a_read_ends_at_its_deadline(line: Line) -> None:
    assert not line.read_until(lambda: False, Deadline(0.01))


def test_stop_ends_a_read(line: Line) -> None:
    reading = after_a_moment(in_thread(line.read_until, lambda: False, Deadline(600)))
    line.stop()
    assert not reading.result(WAIT_SECONDS)
    line.send(ASK)  # to nobody
    assert not line.read_until(lambda: False, Deadline(600))


def test_after_a_cut_the_greetings_go_first(server: EmbeddedServer, owner: Owner) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        line = Line(Target("127.0.0.1", proxy.port, "run"), 15.0, owner)
        assert line.open(Deadline(WAIT_SECONDS))
        reading = after_a_moment(in_thread(line.read_until, lambda: False, Deadline(600)))
        assert proxy.cut() == 1
        assert not reading.result(WAIT_SECONDS)
        with owner.changed:
            assert owner.changed.wait_for(lambda: owner.bodies and owner.connected, WAIT_SECONDS)
        assert ask(line, owner, 2)
        line.stop()


def test_a_read_that_a_signal_breaks_off_costs_the_connection_and_no_more(
    line: Line, owner: Owner
) -> None:
    class Break(BaseException):
        pass

    def handle(_signal: int, _frame: FrameType | None) -> Any:
        raise Break

    before = signal.signal(signal.SIGUSR1, handle)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Break):
            line.read_until(lambda: False, Deadline(600))
    finally:
        timer.join(WAIT_SECONDS)
        signal.signal(signal.SIGUSR1, before)
    with owner.changed:
        assert owner.changed.wait_for(lambda: owner.bodies and owner.connected, WAIT_SECONDS)
    assert ask(line, owner, 2)


def test_a_fault_in_the_owner_ends_the_line(line: Line, owner: Owner) -> None:
    owner.fault = KeyError("a fault")
    assert not ask(line, owner, 1)
    assert owner.error is owner.fault
    assert not line.read_until(lambda: False, Deadline(600))
