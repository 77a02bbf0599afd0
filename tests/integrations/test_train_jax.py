import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rallypoint.net.addresses import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
RALLYPOINT = Path(sys.executable).with_name("rallypoint")
LIMIT_SECONDS = 60.0


class Nodes:
    def __init__(self, folder: Path, nnodes: str, steps: int) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        endpoint = f"127.0.0.1:{free_port('127.0.0.1')}"
        self._command = [
            *(str(RALLYPOINT), "run", "--nnodes", nnodes, "--endpoint", endpoint),
            *("--run-id", "jax", "--last-call", "1", "examples/train_jax.py"),
            *("--steps", str(steps), "--checkpoint", str(folder / "line.npz")),
        ]

    def start(self) -> int:
        number = len(self.started)
        with self.file(number, "out").open("wb") as out, self.file(number, "err").open("wb") as err:
            self.started.append(subprocess.Popen(self._command, stdout=out, stderr=err))
        return number

    def file(self, number: int, stream: str) -> Path:
        return self.folder / f"{number}.{stream}"

    def until(self, number: int, pattern: str) -> re.Match[str]:
        end = time.monotonic() + LIMIT_SECONDS
        while True:
            found = re.search(pattern, self.file(number, "out").read_text(), re.MULTILINE)
            if found is not None:
                return found
            texts = [file.read_text() for file in sorted(self.folder.glob("*.*r"))]
            assert time.monotonic() < end, "\n".join(texts)
            time.sleep(0.05)


def test_two_processes_sum_their_gradients(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "2", steps=50)
    for _ in range(2):
        nodes.start()
    assert [node.wait(LIMIT_SECONDS) for node in nodes.started] == [0, 0]
    out = nodes.file(0, "out").read_text() + nodes.file(1, "out").read_text()
    assert "rank 0 of 2, 2 devices" in out
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", out)]
    assert losses[-1] < losses[0] / 50


def test_survivors_continue_in_a_new_round(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "1:2", steps=1_000_000)
    for _ in range(2):
        nodes.start()
    try:
        for number in (0, 1):
            nodes.until(number, r"of 2, 2 devices")
        first = next(n for n in (0, 1) if "rank 0 of 2" in nodes.file(n, "out").read_text())
        nodes.until(first, r"^step \d{3,}:")
        nodes.started[first].send_signal(signal.SIGKILL)  # with it goes JAX's coordinator
        found = nodes.until(1 - first, r"rank 0 of 1, 1 devices, from step (\d+)")
        assert int(found[1]) >= 100
    finally:
        for node in nodes.started:
            node.terminate()
        for node in nodes.started:
            node.wait(LIMIT_SECONDS)
