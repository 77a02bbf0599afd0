"""A run of real nodes, and a client that measures how long a heartbeat takes."""

import os
import threading
import time
from typing import Any

import commands

from rallypoint.deadline import Deadline
from rallypoint.net import protocol as p
from rallypoint.net.connection import ConnectionConfig, open_connection
from rallypoint.net.tls import TLS
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.client.coordinator import create_handler
from rallypoint.rendezvous.parameters import RendezvousParameters
from rallypoint.store.tcp import TCPStore

BEAT_EVERY = 0.2
_nodes: list[Any] = []
_answers: list[float] = []
_over = threading.Event()


def form(port: int, token: str, n: int) -> dict[str, Any]:
    """Make n nodes join a run, and wait for its round."""
    config = {"is_host": False, "token": token, "join": 60, "lease": 5}
    params = RendezvousParameters("core", f"127.0.0.1:{port}", "members", n, n, config=config)
    _nodes.extend(create_handler(params) for _ in range(n))
    threads = [threading.Thread(target=node.next_rendezvous) for node in _nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    os.environ["RALLYPOINT_TOKEN"] = token
    threading.Thread(target=_beat, args=[port, token], daemon=True).start()
    return {"sealed": sum(node.view().assignment is not None for node in _nodes)}


def _beat(port: int, token: str) -> None:
    link = open_connection(
        ConnectionConfig("127.0.0.1", port, "members", token.encode()), Deadline(20)
    )
    while not _over.wait(BEAT_EVERY):
        begun = time.monotonic()
        link.send(p.frame(wire.Beat()))
        if link.receive():
            _answers.append(time.monotonic() - begun)
    link.close()


def rest(seconds: float) -> dict[str, Any]:
    """Send heartbeats for a time; return the response times and how many nodes were disturbed."""
    _answers.clear()
    time.sleep(seconds)
    found = sorted(_answers)
    views = [node.view() for node in _nodes]
    disturbed = sum(v.opened is not None or v.fenced is not None for v in views)
    off = sum(not v.connected for v in views)
    return {
        "beats": len(found), "median": found[len(found) // 2], "worst": found[-1],
        "disturbed": disturbed, "disconnected": off,
    }  # fmt: skip


def calls(port: int, token: str, ca: str, n: int, connections: int) -> dict[str, Any]:
    """Return the seconds of a handshake, a store call and a large value, one client at a time."""
    tls = TLS(ca=ca)
    begun = time.perf_counter()
    for _ in range(connections):
        TCPStore("127.0.0.1", port, run="calls", token=token, tls=tls).close()
    handshake = (time.perf_counter() - begun) / connections
    with TCPStore("127.0.0.1", port, run="calls", token=token, tls=tls) as store:
        value = b"x" * 100
        begun = time.perf_counter()
        for _ in range(n):
            store.set("key", value)
        call = (time.perf_counter() - begun) / n
        big = b"x" * (8 << 20)
        begun = time.perf_counter()
        store.set("big", big)
        return {"handshake": handshake, "call": call, "8 MiB": time.perf_counter() - begun}


def end() -> None:
    """Shut all nodes down."""
    _over.set()
    for node in _nodes:
        node.shutdown()


commands.serve({"form": form, "rest": rest, "calls": calls, "end": end})
