"""A server at its limits while agents work: no file descriptors left, too many large values.

The agents must not be disturbed, clients that exceed a limit must be told which one, and once the
flood is over, newcomers must be able to join.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import psutil
from tests.integration.harness import LOOPBACK

from rallypoint.errors import StoreConnectionError, StoreError, StoreLimitError
from rallypoint.store.tcp import TCPStore

# -- file descriptors --------------------------------------------------------------------------

DESCRIPTORS = 96
FULL_SECONDS = 6.0  # longer than the lease: heartbeats must arrive all the time
TOLD_SECONDS = 5.0
_STRANGERS = 20


def use_up_descriptors(port: int) -> Iterator[str]:
    """Open connections until a server accepts no more; yield violations."""
    with contextlib.ExitStack() as stack:
        for _ in range(_STRANGERS):  # they say nothing
            strange = socket.create_connection((LOOPBACK, port), TOLD_SECONDS)
            stack.callback(strange.close)
        refusal = ""
        for _ in range(DESCRIPTORS + 1):
            try:
                store = TCPStore(LOOPBACK, port, timeout=TOLD_SECONDS, run="flood")
            except StoreError as error:
                refusal = str(error)
                break
            stack.callback(store.close)
            store.set("a", b"b")
        if not refusal:
            yield f"descriptors: a server with {DESCRIPTORS} took {DESCRIPTORS + 1} clients"
        elif "busy" not in refusal:
            yield f"descriptors: a newcomer was not told that the server is busy: {refusal}"
        time.sleep(FULL_SECONDS)
        if store.get("a", TOLD_SECONDS) != b"b":
            yield "descriptors: a client that was in got no answer"


# -- memory ------------------------------------------------------------------------------------

ADDRESS_SPACE_KIB = 1_500_000
STORE_LIMIT = 64 << 20
BUFFER_LIMIT = 32 << 20
RESIDENT_LIMIT = 1 << 30  # both stores, incoming data, its copy, and unread replies of six clients
ARRIVING_LIMIT = 128 << 20
MEMORY_OPTIONS = (
    f"--limit=store_limit={STORE_LIMIT}", f"--limit=buffer_limit={BUFFER_LIMIT}",
    f"--limit=arriving_limit={ARRIVING_LIMIT}",
)  # fmt: skip
_VALUE = b"x" * (8 << 20)
_ATTACKERS = 6
_BLOWS = 12
_HALVES = 16  # partial messages: without a limit, all of the address space
_WHOLE_BYTES, _PART_BYTES = 120 << 20, 100 << 20
_TAKES_SECONDS = 2.0  # to send the part


def give_big_values(port: int, server: psutil.Process) -> Iterator[str]:
    """Make clients write and read more than a server keeps; yield violations."""
    wrong: list[str] = []
    threads = [
        threading.Thread(target=_attack, args=(port, number, wrong)) for number in range(_ATTACKERS)
    ]
    threads += [threading.Thread(target=_send_half, args=(port,)) for _ in range(_HALVES)]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        most = max(most, server.memory_info().rss)
        time.sleep(0.05)
    yield from wrong
    if most > RESIDENT_LIMIT:
        yield f"memory: the server took {most >> 20} MiB, more than {RESIDENT_LIMIT >> 20}"


def _send_half(port: int) -> None:
    """Send the beginning of a long message only."""
    with (
        contextlib.suppress(OSError, StoreError),  # delayed or disconnected
        TCPStore(LOOPBACK, port, timeout=30.0, run="halves") as store,
    ):
        sock = store._connection.sock
        sock.settimeout(_TAKES_SECONDS)
        sock.sendall(_WHOLE_BYTES.to_bytes(4, "big") + bytes(_PART_BYTES))
        time.sleep(_TAKES_SECONDS)


def _attack(port: int, number: int, wrong: list[str]) -> None:
    refused = 0
    try:
        store = TCPStore(LOOPBACK, port, timeout=30.0, run=f"attack-{number % 2}")
        for blow in range(_BLOWS):
            try:
                store.set(f"{number}/{blow}", _VALUE)
            except StoreLimitError as error:
                refused += 1
                if "store_limit" not in str(error):
                    wrong.append(f"memory: a refusal does not name its limit: {error}")
        keys = [f"{number}/{blow}" for blow in range(_BLOWS) if store.check([f"{number}/{blow}"])]
        with contextlib.suppress(StoreLimitError, StoreConnectionError):
            store.multi_get(keys * 8, timeout=10.0)  # perhaps more than may stay unread
        if not refused:
            wrong.append(f"memory: attacker {number} was never refused")
        for key in keys:
            store.delete_key(key)
        store.set("again", b"small")
        store.close()
    except Exception as error:  # told to the run
        wrong.append(f"memory: attacker {number}: {error!r}")
