"""Hostile connections of all kinds, at a rate and for a time. Loopback only."""

import asyncio
import contextlib
import itertools
import random
import resource
import secrets
import socket
import time
from typing import Any

import commands
import uvloop

from rallypoint.net import protocol as p

HELLO = p.frame(p.Hello(1, "attacked", b"c" * 16, b"n" * p.NONCE_BYTES, "stranger"))
STEP_SECONDS = 0.02
HELD_SECONDS = 5.0  # until a connection that stays open is closed
MOST_PER_SECOND, MOST_SECONDS = 2000, 120.0  # upper limits of the arguments


def openings(rng: random.Random) -> list[bytes]:
    """Return the first bytes of attackers; empty and partial ones keep the connection open."""
    return [
        b"",
        HELLO[:7],
        HELLO,
        HELLO + p.frame(p.Proof(secrets.token_bytes(32))),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(100),
        b"\xff\xff\xff\xff" + rng.randbytes(500),
        rng.randbytes(200),
        p.frame(p.Call(1, 1, p.Set("k", b"x" * 1000))),
        HELLO * 20,
    ]


async def attack(
    port: int, rate: int, seconds: float, said: list[bytes], sources: list[str]
) -> dict[str, Any]:
    """Open `rate` connections per second and send bytes on each; return the counts."""
    held: list[tuple[float, socket.socket]] = []
    opened = failed = 0
    begun = time.monotonic()
    kinds, places = itertools.cycle(said), itertools.cycle(sources)
    while (now := time.monotonic() - begun) < seconds:
        while opened + failed < now * rate:
            sock = socket.socket()
            sock.setblocking(False)
            try:
                sock.bind((next(places), 0))
                sock.connect_ex(("127.0.0.1", port))
                with contextlib.suppress(BlockingIOError):
                    sock.send(next(kinds))
                opened += 1
                held.append((now, sock))
            except OSError:
                sock.close()
                failed += 1
        while held and held[0][0] < now - HELD_SECONDS:
            held.pop(0)[1].close()
        await asyncio.sleep(STEP_SECONDS)
    took = time.monotonic() - begun
    for _, sock in held:
        sock.close()
    return {"opened": opened, "failed": failed, "rate": opened / took, "seconds": took}


def main() -> None:
    """Answer commands."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sources = [f"127.0.1.{n}" for n in range(1, 51)]

    def run(port: int, rate: int, seconds: float, seed: int) -> dict[str, Any]:
        said = openings(random.Random(seed))
        limited = (min(rate, MOST_PER_SECOND), min(seconds, MOST_SECONDS))
        return uvloop.run(attack(port, *limited, said, sources))

    commands.serve({"attack": run})


main()
