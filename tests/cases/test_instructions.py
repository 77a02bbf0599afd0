"""The cost of a call, counted in Python instructions, which do not depend on the machine's load.

Client and server run in one process, each in its own thread. A tracer counts the bytecode
instructions that both execute in this package for a fixed script of calls. With one version of
Python the counts are the same in each run; a limit is the count when it was last set, plus
`MARGIN`.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

import rallypoint
from rallypoint.deadline import Deadline
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.store.tcp import TCPStore

MARGIN = 1.1
OTHER_PYTHON = 1.5  # the counts are those of 3.11; other versions have other instructions
ROUNDS, TIMES = 3, 20
OURS = rallypoint.__path__[0]
LIMIT_SECONDS = 20.0


class Counter:
    """Instructions by thread."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(OURS):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            me = threading.get_ident()
            self.counts[me] = self.counts.get(me, 0) + 1
        return self

    def taken(self) -> int:
        total = sum(self.counts.values())
        self.counts.clear()
        return total


@contextmanager
def counting(server: EmbeddedServer) -> Iterator[Counter]:
    """Count the instructions of this thread and the server's."""
    counter, before = Counter(), sys.gettrace()

    def trace(tracer: Any) -> None:
        server.call(lambda _: sys.settrace(tracer), Deadline(LIMIT_SECONDS))

    trace(counter)
    sys.settrace(counter)
    try:
        yield counter
    finally:
        sys.settrace(before)
        trace(None)


def each(counter: Counter, call: Callable[[], object]) -> int:
    """Return the instructions of one call, both sides together.

    The least of several runs: sometimes the server does other work in between.
    """
    call()
    counted = []
    for _ in range(ROUNDS):
        counter.taken()
        for _ in range(TIMES):
            call()
        counted.append(counter.taken() // TIMES)
    return min(counted)


def check(counted: dict[str, int], limits: dict[str, int]) -> None:
    margin = MARGIN if sys.version_info[:2] == (3, 11) else OTHER_PYTHON
    over = {
        name: f"{count} instructions, {limits[name]} were counted when the limit was set"
        for name, count in counted.items()
        if count > limits[name] * margin
    }
    assert not over


@pytest.mark.integration
def test_store_call_needs_no_more_instructions_than_before(server: EmbeddedServer) -> None:
    store = TCPStore("127.0.0.1", server.port)
    store.set("key", b"value")
    calls: dict[str, Callable[[], object]] = {
        "set": lambda: store.set("key", b"value"),
        "get": lambda: store.get("key"),
        "add": lambda: store.add("count", 1),
        "compare_set": lambda: store.compare_set("key", b"value", b"value"),
        "check": lambda: store.check(["key"]),
        "wait": lambda: store.wait(["key"]),
        "barrier": lambda: store.barrier("all", 1),
    }
    with counting(server) as counter:
        counted = {name: each(counter, call) for name, call in calls.items()}
    store.close()
    check(counted, LIMITS_OF_CALLS)


@pytest.mark.integration
def test_join_needs_no_more_instructions_than_before(server: EmbeddedServer) -> None:
    handler = make_handler(server.port)
    with counting(server) as counter:
        counted = {"join again": each(counter, handler.next_rendezvous)}
        counted["connect, join and leave"] = each(counter, lambda: come_and_go(server.port))
    handler.shutdown()
    check(counted, LIMITS_OF_JOINS)


def come_and_go(port: int) -> None:
    handler = make_handler(port, "another")
    handler.next_rendezvous()
    handler.shutdown()


def make_handler(port: int, run: str = "run") -> DynamicRendezvousHandler:
    config = {"join": LIMIT_SECONDS, "close": LIMIT_SECONDS, "is_host": False}
    params = RendezvousParameters("core", f"127.0.0.1:{port}", run, 1, 1, config=config)
    return create_handler(params)


# Counted with Python 3.11, client and server together.
LIMITS_OF_CALLS = {
    "set": 888,
    "get": 772,
    "add": 920,
    "compare_set": 916,
    "check": 726,
    "wait": 857,
    "barrier": 1148,
}
LIMITS_OF_JOINS = {"join again": 4908, "connect, join and leave": 14872}
