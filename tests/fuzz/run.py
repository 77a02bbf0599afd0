"""Fuzzing for a given time, with a report.

    python -m tests.fuzz.run --seconds 3600 --seed 1 --report fuzz.json

A failure is written to tests/fuzz/corpus as a file; the tests replay all of these files.
"""

import argparse
import json
import random
import resource
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from tests.fuzz.frames import Maker
from tests.fuzz.targets import ServerTarget, decode, resident_bytes

CORPUS = Path(__file__).resolve().parent / "corpus"
MEMORY_BYTES = 4 << 30  # beyond this there is a MemoryError


def corpus() -> list[bytes]:
    """Return the inputs of the corpus: bodies without their length."""
    return [path.read_bytes() for path in sorted(CORPUS.glob("*.bin"))]


def fuzz_decoders(seconds: float, seed: int, most: int = 10**12) -> dict[str, Any]:
    """Decode broken and valid bodies for a time; raise unexpected errors."""
    rng = random.Random(seed)
    maker, pool = Maker(rng), corpus()
    begun, executions, decoded = time.monotonic(), 0, 0
    memory = resident_bytes()
    while time.monotonic() - begun < seconds and executions < most:
        if rng.random() < 0.1:
            pool = [*pool[-500:], maker.frame()[4:]]
        for _ in range(100):
            data = maker.broken(rng.choice(pool)) if pool else rng.randbytes(20)
            worked = _kept(data)
            executions += 1
            decoded += worked > 0
    return {
        "target": "decoders", "seed": seed, "executions": executions, "decoded": decoded,
        "seconds": round(time.monotonic() - begun, 1),
        "grown_bytes": resident_bytes() - memory,
    }  # fmt: skip


def _kept(data: bytes) -> int:
    try:
        return decode(data)
    except BaseException:
        CORPUS.joinpath(f"decoder-{random.randrange(2**32):08x}.bin").write_bytes(data)
        raise


async def fuzz_server(seconds: float, seed: int, most: int = 10**12) -> dict[str, Any]:
    """Attack a server for a time; raise unexpected errors."""
    target = ServerTarget(random.Random(seed))
    begun, conversations = time.monotonic(), 0
    memory = 0
    try:
        while time.monotonic() - begun < seconds and target.executions < most:
            await target.attack()
            conversations += 1
            if conversations == 2000:
                memory = resident_bytes()  # from here on, memory must not grow
    finally:
        target.end()
    return {
        "target": "server", "seed": seed, "executions": target.executions,
        "conversations": conversations, "seconds": round(time.monotonic() - begun, 1),
        "grown_bytes": resident_bytes() - memory if memory else 0,
    }  # fmt: skip


def main() -> None:
    """Fuzz decoders and server, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--executions", type=int, default=10**12, help="most for each target")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    limits = (options.seconds, options.seed, options.executions)
    found: list[dict[str, Any]] = []
    targets: dict[str, Callable[[], dict[str, Any]]] = {
        "decoders": lambda: fuzz_decoders(*limits),
        "server": lambda: uvloop.run(fuzz_server(*limits)),
    }
    for name, run in targets.items():
        try:
            found.append(run())
        except BaseException:
            found.append({"target": name, "seed": options.seed, "error": traceback.format_exc()})
        print(json.dumps(found[-1], indent=1), flush=True)
        if options.report:
            options.report.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
