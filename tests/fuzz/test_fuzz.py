"""A short run of the fuzzers, and a replay of what they found before.

RALLYPOINT_FUZZ_SECONDS makes it longer (per target); `python -m tests.fuzz.run` writes a report
(docs/security.md).
"""

import os
import random
import typing

import pytest
import uvloop
from tests.fuzz.frames import CLIENT_BODIES, Maker
from tests.fuzz.run import corpus, fuzz_decoders, fuzz_server
from tests.fuzz.targets import ServerTarget, decode

from rallypoint.net import protocol as p
from rallypoint.rendezvous import wire

SECONDS = float(os.environ.get("RALLYPOINT_FUZZ_SECONDS", "3"))
SEED = int(os.environ.get("RALLYPOINT_SEED") or random.randrange(2**32))
GROWTH_BYTES = 64 << 20


@pytest.mark.timeout(SECONDS + 120)
def test_decoders_refuse_or_decode_without_growing() -> None:
    print(f"RALLYPOINT_SEED={SEED}")
    report = fuzz_decoders(SECONDS, SEED)
    print(report)
    assert report["executions"] > 1000 * SECONDS
    assert report["decoded"] > 0
    assert report["grown_bytes"] < GROWTH_BYTES


@pytest.mark.timeout(SECONDS + 120)
def test_server_survives_any_input() -> None:
    print(f"RALLYPOINT_SEED={SEED}")
    report = uvloop.run(fuzz_server(SECONDS, SEED))
    print(report)
    assert report["executions"] > 100 * SECONDS
    assert report["grown_bytes"] < GROWTH_BYTES


def test_former_crashes_do_not_return() -> None:
    bodies = corpus()
    assert len(bodies) >= len(CLIENT_BODIES)

    async def replay() -> None:
        target = ServerTarget(random.Random(1))
        try:
            for body in bodies:
                decode(body)
                connection, _transport = target._proved("run", b"replay")
                await target.say(connection, [len(body).to_bytes(4, "big") + body] * 2)
        finally:
            target.end()

    uvloop.run(replay())


def test_every_kind_of_frame_is_generated_and_decodes() -> None:
    maker = Maker(random.Random(1))
    kinds = {type(maker.body()) for _ in range(500)}
    assert kinds == set(CLIENT_BODIES)
    assert all(decode(p.frame(maker.body())[4:]) for _ in range(300))
    events = {type(maker.make(wire.Ask).event) for _ in range(300)}
    assert events == set(typing.get_args(wire.NodeEvent))
