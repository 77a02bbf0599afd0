"""How many frames a join, and frames and files a store call passes: what a newcomer has to read.

Client and server run in one process, each in its own thread. A tracer records the functions of
this package that both enter during one call. A limit is the count when it was last set: a call
must not become harder to follow.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rallypoint
from rallypoint.core.state import Node, Settings
from rallypoint.deadline import Deadline
from rallypoint.net.connection import ConnectionConfig
from rallypoint.rendezvous.client.coordinator import HostedCoordinator
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.store.tcp import TCPStore

OURS = rallypoint.__path__[0]
LIMIT_SECONDS = 20.0


class Recorder:
    """The deepest stack of our functions in each thread, and the files that they are in."""

    def __init__(self) -> None:
        self.deepest: dict[int, list[str]] = {}
        self.files: dict[int, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, _arg: object) -> None:
        if event != "call" or not is_ours(frame):
            return
        stack = ours(frame)
        me = threading.get_ident()
        self.deepest[me] = max(self.deepest.get(me, []), stack, key=len)
        self.files.setdefault(me, set()).add(frame.f_code.co_filename)


def is_ours(frame: FrameType) -> bool:
    """Return whether a function is of this package; the thread of the server does not count."""
    name = frame.f_code.co_filename
    return name.startswith(OURS) and not name.endswith("embedded.py")


def ours(frame: FrameType | None) -> list[str]:
    """Return the functions of this package on a stack, innermost first."""
    found = []
    while frame is not None:
        if is_ours(frame):
            found.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return found


def recorded(
    server: EmbeddedServer, call: Callable[[], object]
) -> list[tuple[list[str], set[str]]]:
    """Return the deepest stack and the files of one call, on the client and on the server."""
    recorder, before = Recorder(), sys.gettrace()

    def trace(tracer: Any) -> int:
        server.call(lambda _: sys.settrace(tracer), Deadline(LIMIT_SECONDS))
        return server.call(lambda _: threading.get_ident(), Deadline(LIMIT_SECONDS))

    threads = (threading.get_ident(), trace(recorder))
    recorder.deepest.clear()
    recorder.files.clear()
    sys.settrace(recorder)
    try:
        call()
    finally:
        sys.settrace(before)
        trace(None)
    return [(recorder.deepest[me], recorder.files[me]) for me in threads]


# call -> (frames, files) of the client, and of the server from the event loop on
LIMITS = {
    "set": ((5, 5), (10, 6)),
    "get": ((5, 5), (9, 6)),
    "add": ((5, 5), (10, 6)),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", LIMITS)
def test_store_call_passes_few_frames_and_files(server: EmbeddedServer, name: str) -> None:
    with TCPStore("127.0.0.1", server.port) as store:
        calls: dict[str, Callable[[], object]] = {
            "set": lambda: store.set("key", b"value"),
            "get": lambda: store.get("key"),
            "add": lambda: store.add("count", 1),
        }
        store.set("key", b"value")
        calls[name]()
        counted = recorded(server, calls[name])
    for (stack, files), (most_frames, most_files) in zip(counted, LIMITS[name], strict=True):
        assert len(stack) <= most_frames, " <- ".join(stack)
        assert len(files) <= most_files, files


JOIN_FRAMES_OUT = 6  # from the caller's `join` to the socket
JOIN_FRAMES_BACK = 6  # from the socket to the view


@pytest.mark.integration
def test_join_passes_few_frames_on_its_way_out_and_back(server: EmbeddedServer) -> None:
    settings = Settings(1, 1)
    coordinator = HostedCoordinator(ConnectionConfig("127.0.0.1", server.port, "run"), 15.0)
    deadline = Deadline(LIMIT_SECONDS)

    def join() -> None:
        coordinator.join(Node("node", "127.0.0.1", port=1), settings, deadline, "", False)

    out: list[str] = []
    calls: list[str] = []  # since the last read from the socket

    def trace(frame: FrameType, event: str, _arg: object) -> None:
        if event != "call" or not is_ours(frame):
            return
        name = frame.f_code.co_qualname
        if name.endswith(".receive") and frame.f_code.co_filename.endswith("net/connection.py"):
            calls.clear()
        calls.append(name)
        if name.endswith(".send") and frame.f_code.co_filename.endswith("net/connection.py"):
            out[:] = ours(frame)
        if name == "fold":
            back[:] = calls

    back: list[str] = []
    join()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        join()
    finally:
        sys.settrace(before)
        coordinator.shutdown(deadline)
    assert 0 < len(out) <= JOIN_FRAMES_OUT, " <- ".join(out)
    assert 0 < len(back) <= JOIN_FRAMES_BACK, " -> ".join(back)
    print(f"out: {' <- '.join(out)}; back: {' -> '.join(back)}")
