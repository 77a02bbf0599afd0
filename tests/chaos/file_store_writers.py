"""Writers of one FileStore, killed and stopped at any moment, mostly during a write.

    python tests/chaos/file_store_writers.py FOLDER SEED WRITERS

Each writer logs what it is about to do and what was acknowledged. At the end a new reader must find
every acknowledged write, at most the writes in progress at a kill besides, and no partial write.
Prints the result as JSON.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from rallypoint.rendezvous.serverless.backends.store import FileRendezvousBackend
from rallypoint.store.file import FileStore

RUN_SECONDS = 3.0
LIMIT_SECONDS = 60.0
PAUSES = (0.002, 0.02, 0.15)  # at most, between two kills
STOP_SECONDS = 0.2
MOST_BYTES = 300_000  # some writes take long, and the file is compacted often


def write(folder: Path, number: int, seed: int) -> NoReturn:
    """Write until killed; one process."""
    log = os.open(folder / f"{number}.log", os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def note(*words: object) -> None:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    dice, own = random.Random(seed), seed << 20  # grows with each life
    try:
        store = FileStore(folder / "job")
        backend = FileRendezvousBackend(store, "run")
        while True:
            note("try", "add")
            note("did", "add", store.add("count", 1))
            own += 1
            note("try", "set", own)
            store.set(f"own/{number}", own.to_bytes(8, "big") * dice.randrange(1, MOST_BYTES // 8))
            note("did", "set", own)
            state, token = backend.get_state() or (b"0", None)
            note("try", "cas", int(state) + 1)
            answer = backend.set_state(b"%d" % (int(state) + 1), token)
            note("did" if answer is not None and answer[2] else "lost", "cas", int(state) + 1)
    except BaseException as error:  # the reader of the log checks it
        note("error", repr(error))
    os._exit(1)


def drive(folder: Path, seed: int, count: int) -> int:
    """Start writers, kill and replace them; return how many were killed."""
    dice, kills = random.Random(seed), 0
    end = time.monotonic() + RUN_SECONDS

    def start(number: int) -> int:
        child = os.fork()
        if child == 0:
            write(folder, number, kills + 1)
        return child

    writers = {number: start(number) for number in range(count)}
    longest = dice.choice(PAUSES)
    while time.monotonic() < end:
        time.sleep(0.02 + dice.uniform(0.0, longest))
        number = dice.randrange(count)
        if dice.random() < 0.1:
            os.kill(writers[number], signal.SIGSTOP)
            time.sleep(STOP_SECONDS)
            os.kill(writers[number], signal.SIGCONT)
            continue
        os.kill(writers[number], signal.SIGKILL)
        os.waitpid(writers[number], 0)
        kills += 1
        writers[number] = start(number)
    for pid in writers.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return kills + count


def judge(folder: Path, count: int) -> Iterator[str]:
    """Yield what a new reader finds wrong."""
    lines = [path.read_text().splitlines() for path in sorted(folder.glob("*.log"))]
    words = [line.split() for log in lines for line in log]
    yield from (" ".join(each) for each in words if each[0] == "error")
    said = Counter((each[0], each[1]) for each in words)
    store = FileStore(folder / "job")
    state = FileRendezvousBackend(store, "run").get_state()
    found = {"add": store.add("count", 0), "cas": int(state[0]) if state else 0}
    for what, value in found.items():
        did, tried = said["did", what], said["try", what] - said["lost", what]
        if not did <= value <= tried:
            yield f"{what}: {did} acknowledged, {tried} tried, {value} found"
        numbers = [each[2] for each in words if each[:2] == ["did", what]]
        if len(set(numbers)) < len(numbers):
            yield f"{what}: a number was given twice"
    for number in range(count):
        data = store.get_nowait(f"own/{number}", b"") or b""
        first = int.from_bytes(data[:8], "big")
        if data != data[:8] * (len(data) // 8):
            yield f"own/{number}: {first} is half written: {len(data)} bytes"
        if first not in (allowed := values_allowed(lines[number])):
            yield f"own/{number}: {first} found, not one of {sorted(allowed)}"


def values_allowed(log: list[str]) -> set[int]:
    """Return the possible values of a key by its writer's log: the last one, or one in progress."""
    allowed = {0}
    for line in log:
        word, what, number = (*line.split(), "")[:3]
        if what == "set":
            allowed = {int(number)} if word == "did" else allowed | {int(number)}
    return allowed


def run_writers(folder: Path, seed: int, count: int) -> tuple[str, list[str]]:
    """Run it in a new process; return figures and violations."""
    argv = [sys.executable, __file__, str(folder), str(seed), str(count)]
    root = str(Path(__file__).resolve().parents[2])
    env = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        return "", [f"hang: the writers are not done in {LIMIT_SECONDS:g} s"]
    if done.returncode != 0:
        return "", [f"the driver failed: {done.stderr}"]
    answer = json.loads(done.stdout)
    return str(answer["seen"]), list(answer["wrong"])


def main() -> None:
    """Run the writers, check the result, and print it."""
    folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    kills = drive(folder, seed, count)
    wrong = list(judge(folder, count))
    writes = sum(line.startswith("did") for p in folder.glob("*.log") for line in p.open())
    print(json.dumps({"seen": f"{kills} kills, {writes} writes", "wrong": wrong}))


if __name__ == "__main__":
    main()
