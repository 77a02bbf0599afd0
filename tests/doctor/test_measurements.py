import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rallypoint.deadline import Deadline
from rallypoint.doctor import measurements
from rallypoint.doctor.findings import Verdict
from rallypoint.doctor.fitness import GIB, Gpu, Pair
from rallypoint.doctor.measurements import Echo, NodeAddress
from rallypoint.errors import ParameterError
from rallypoint.store.memory import MemoryStore
from rallypoint.testing.fakes import ManualClock

SMI = """#!/bin/sh
echo "0, Some GPU, 0"
echo "1, Some GPU, [N/A]"
echo "2, Some GPU, 4"
"""


def program(folder: Path, text: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_each_part_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "CLOCK_SECONDS", 0.01)
    monkeypatch.setenv("PATH", str(tmp_path))
    paths = [str(tmp_path), str(tmp_path / "none")]
    found = list(measurements.examine(paths, 1, 1, 5.0))
    steps = [(finding.step, finding.verdict) for finding in found]
    assert steps[:3] == [("disk", Verdict.OK), ("disk", Verdict.FAIL), ("memory", Verdict.OK)]
    assert [step for step, _ in steps] == ["disk", "disk", "memory", "clock"], "no GPUs here"
    program(tmp_path, SMI)
    found = list(measurements.examine(paths[:1], 2**60 * GIB, 2**60 * GIB, 5.0))
    assert [finding.verdict for finding in found if finding.step != "clock"] == [Verdict.FAIL] * 3
    assert found[-1].text == "uncorrected memory errors: GPU 2 (4)"


def test_clock_step_is_noticed() -> None:
    wall, steady = ManualClock(1000.0), ManualClock(5.0)

    def wait(seconds: float) -> None:
        steady.advance(seconds)
        wall.advance(seconds + 3600.0)

    assert measurements.clock_step(1.0, wall, steady, wait) == pytest.approx(3600.0)


@pytest.mark.parametrize(
    ("text", "found", "trouble"),
    [
        (SMI, [Gpu(0, "Some GPU", 0), Gpu(1, "Some GPU"), Gpu(2, "Some GPU", 4)], ""),
        ("#!/bin/sh\necho no driver >&2; exit 9", [], "failed with exit code 9: no driver"),
        ("#!/bin/sh\nexec sleep 60", [], "did not answer in 0.2 s"),
        ("nonsense", [], "cannot be run: Exec format error"),
    ],
)
def test_gpus(tmp_path: Path, text: str, found: list[Gpu], trouble: str) -> None:
    limit = 0.2 if "sleep" in text else 20.0
    assert measurements.gpus(program(tmp_path, text), limit) == (found, trouble)


LOOPBACK = "127.0.0.1"


def test_link_is_measured() -> None:
    with Echo(LOOPBACK, 5.0) as echo:
        pair = measurements.measure("a", NodeAddress("b", LOOPBACK, echo.port), 5.0)
    assert pair.name == "a -> b"
    assert pair.seconds is not None
    assert 0 < pair.seconds < 5.0


def test_dead_link_has_its_reason() -> None:
    with Echo(LOOPBACK, 5.0) as echo:
        port = echo.port
    assert measurements.measure("a", NodeAddress("b", LOOPBACK, port), 5.0) == Pair(
        "a", "b", None, "Connection refused"
    )
    with socket.create_server((LOOPBACK, 0)) as silent:
        place = NodeAddress("b", LOOPBACK, silent.getsockname()[1])
        assert measurements.measure("a", place, 0.1) == Pair("a", "b", None, "no answer in 0.1 s")


def test_foreign_data_is_not_echoed() -> None:
    with Echo(LOOPBACK, 5.0) as echo, socket.create_connection((LOOPBACK, echo.port), 5.0) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        sock.settimeout(5.0)
        with contextlib.suppress(ConnectionResetError):  # closed while some of it was unread
            assert sock.recv(100) == b""
    stranger = socket.create_server((LOOPBACK, 0))

    def answer() -> None:
        client, _ = stranger.accept()
        client.sendall(b"220 some mail server")
        client.close()

    threading.Thread(target=answer, daemon=True).start()
    place = NodeAddress("b", LOOPBACK, stranger.getsockname()[1])
    assert measurements.measure("a", place, 5.0).trouble == "unexpected answer"
    stranger.close()


def test_every_node_learns_all_pairs() -> None:
    store = MemoryStore()

    def node(_number: int) -> tuple[list[Pair], int]:
        return measurements.meet(store.clone(), "same", LOOPBACK, 3, 5.0, Deadline(20.0))

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(node, range(3)))
    assert found[0] == found[1] == found[2]
    measured, absent = found[0]
    assert absent == 0
    assert len({pair.name for pair in measured}) == 6, "equal host names are told apart"
    with pytest.raises(ParameterError, match="--nodes 3: more nodes have come"):
        node(3)


def test_absent_nodes_are_counted() -> None:
    assert measurements.meet(MemoryStore(), "a", LOOPBACK, 3, 5.0, Deadline(0.1)) == ([], 2)


def test_distinct_labels_are_kept() -> None:
    places = [NodeAddress("a", LOOPBACK, 1), NodeAddress("b", LOOPBACK, 2)]
    assert measurements.distinct(places) == places
