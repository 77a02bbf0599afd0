"""The thread of all sessions: sockets, times, faults, forks."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from rallypoint.rendezvous.client import reactor as module
from rallypoint.rendezvous.client.reactor import Reactor, reactor

WAIT_SECONDS = 20.0


class Fake:
    """A member that notes what it is called for."""

    def __init__(self, sock: socket.socket | None = None, again: float | None = None) -> None:
        self.sock, self.again = sock, again
        self.read: list[bytes] = []
        self.times = 0
        self.fault: BaseException | None = None
        self.error: BaseException | None = None
        self.calls = threading.Semaphore(0)

    def readable(self) -> None:
        if self.fault is not None:
            raise self.fault
        assert self.sock is not None
        self.read.append(self.sock.recv(100))
        self.calls.release()

    def due(self, now: float) -> float | None:
        self.times += 1
        self.calls.release()
        again, self.again = self.again, None
        return again

    def failed(self, error: BaseException) -> None:
        self.error = error
        self.calls.release()

    def wait(self) -> None:
        assert self.calls.acquire(timeout=WAIT_SECONDS)


@pytest.fixture(name="pair")
def _pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_socket_is_read_while_it_is_watched(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    member, clock = Fake(ours), Fake()
    of_process = reactor()
    of_process.watch(ours, member)
    theirs.send(b"one")
    member.wait()
    of_process.unwatch(ours)
    theirs.send(b"two")
    of_process.call_at(time.monotonic(), clock)  # the thread has been round once more
    clock.wait()
    assert member.read == [b"one"]
    assert ours.recv(100) == b"two"


def test_reactor_calls_a_client_when_it_is_due() -> None:
    now = time.monotonic()
    late, soon = Fake(), Fake(again=now)
    reactor().call_at(now + 3600, late)
    reactor().call_at(now + 0.01, soon)  # wakes the thread, which sleeps for longer
    soon.wait()
    assert time.monotonic() >= now + 0.01
    soon.wait()
    assert (soon.times, late.times) == (2, 0)


def test_reactor_fault_ends_all_sessions_and_the_next_has_a_new_reactor(
    pair: tuple[socket.socket, socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, theirs = pair
    broken, other = Fake(ours), Fake()
    failing = Reactor()
    failing.call_at(time.monotonic() + 3600, other)
    broken.fault = KeyError("a fault in the reactor")
    failing.watch(ours, broken)
    theirs.send(b"x")
    other.wait()
    broken.wait()
    assert other.error is broken.error is broken.fault
    assert failing.over
    assert "the thread of all sessions has failed" in caplog.text
    present = module._Present()
    present.reactor = failing
    assert present.get() is not failing


def test_one_reactor_per_process_also_after_fork() -> None:
    before = reactor()
    assert reactor() is before
    child = os.fork()
    if child == 0:  # no test framework here: only an exit code
        member = Fake()
        reactor().call_at(time.monotonic(), member)
        os._exit(
            42 if reactor() is not before and member.calls.acquire(timeout=WAIT_SECONDS) else 1
        )
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
