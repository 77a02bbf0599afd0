"""Measures this machine, and the links between nodes. Each measurement has a time limit.

For the links, all nodes run the check at once and meet in the run's store: each listens on a port
of its own, publishes it, measures a round trip to every other node, and publishes the results. So
all nodes know all links and report the same worst node.
"""

import shutil
import socket
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import msgspec
import psutil

from rallypoint.deadline import Deadline
from rallypoint.doctor import fitness
from rallypoint.doctor.findings import Finding
from rallypoint.doctor.fitness import Gpu, Pair
from rallypoint.errors import ParameterError, StoreTimeoutError
from rallypoint.store.api import Store

CLOCK_SECONDS = 1.0
_QUERY = "index,name,ecc.errors.uncorrected.volatile.total"


def examine(
    paths: Sequence[str], disk_bytes: int, memory_bytes: int, limit_seconds: float
) -> Iterator[Finding]:
    """Yield the findings on disks, memory, clock and GPUs.

    Args:
        paths: one on each disk to check.
        disk_bytes: free space required on each.
        memory_bytes: free memory required.
        limit_seconds: for nvidia-smi.
    """
    for path in paths:
        try:
            yield fitness.disk(path, shutil.disk_usage(path).free, disk_bytes)
        except OSError as error:
            yield fitness.no_disk(path, error.strerror or str(error))
    yield fitness.memory(int(psutil.virtual_memory().available), memory_bytes)
    yield fitness.clock(clock_step(CLOCK_SECONDS), CLOCK_SECONDS)
    program = shutil.which("nvidia-smi")
    if program is not None:
        yield fitness.gpus(*gpus(program, limit_seconds))


def clock_step(
    seconds: float,
    wall: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] | None = None,
) -> float:
    """Return by how many seconds the wall clock stepped against the monotonic clock meanwhile."""
    before = wall() - steady()
    (wait or threading.Event().wait)(seconds)
    return wall() - steady() - before


def gpus(program: str, limit_seconds: float) -> tuple[list[Gpu], str]:
    """Return the GPUs that nvidia-smi reports, and its error, "" for none."""
    argv = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            argv, capture_output=True, text=True, timeout=limit_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"did not answer in {limit_seconds:g} s"
    except OSError as error:
        return [], f"cannot be run: {error.strerror}"
    if answer.returncode != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        return [], f"failed with exit code {answer.returncode}: {said[-1] if said else ''}".strip()
    return [gpu for line in answer.stdout.splitlines() if (gpu := _gpu(line))], ""


def _gpu(line: str) -> Gpu | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 3 or not parts[0].isdecimal():
        return None
    return Gpu(int(parts[0]), parts[1], int(parts[2]) if parts[2].isdecimal() else None)


MESSAGE = b"rallypoint check"
ROUND_TRIPS = 5
AT_ONCE = 16
MEETING = "check/nodes"


class NodeAddress(msgspec.Struct, frozen=True):
    """Address at which a node listens."""

    label: str
    address: str
    port: int


class Echo:
    """Echoes our message to each client, in a thread per client.

    Args:
        address: to listen on, with any free port.
        limit_seconds: for which a client may stay silent.
    """

    def __init__(self, address: str, limit_seconds: float) -> None:
        """Start to listen. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._limit = limit_seconds
        self._listener = socket.create_server((address, 0), family=family, backlog=1024)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="check-echo", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            client.settimeout(self._limit)
            try:
                while client.recv(len(MESSAGE), socket.MSG_WAITALL) == MESSAGE:
                    client.sendall(MESSAGE)
            except OSError:
                return  # the client reports the error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def measure(source: str, place: NodeAddress, limit_seconds: float) -> Pair:
    """Return the link to a node: the median of a few round trips."""
    times = []
    try:
        with socket.create_connection((place.address, place.port), limit_seconds) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(ROUND_TRIPS):
                begun = time.monotonic()
                sock.sendall(MESSAGE)
                if sock.recv(len(MESSAGE), socket.MSG_WAITALL) != MESSAGE:
                    return Pair(source, place.label, None, "unexpected answer")
                times.append(time.monotonic() - begun)
    except TimeoutError:
        return Pair(source, place.label, None, f"no answer in {limit_seconds:g} s")
    except OSError as error:
        return Pair(source, place.label, None, error.strerror or str(error))
    return Pair(source, place.label, statistics.median(times))


def measure_all(source: str, places: Sequence[NodeAddress], limit_seconds: float) -> list[Pair]:
    """Return the links to several nodes, measured in parallel."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(lambda place: measure(source, place, limit_seconds), places))


def distinct(places: Sequence[NodeAddress]) -> list[NodeAddress]:
    """Return the places with unique labels: host names may be equal."""
    counts = Counter(place.label for place in places)
    return [
        place
        if counts[place.label] == 1
        else msgspec.structs.replace(place, label=f"{place.label} ({place.address}:{place.port})")
        for place in places
    ]


def meet(
    store: Store, label: str, address: str, nodes: int, limit_seconds: float, deadline: Deadline
) -> tuple[list[Pair], int]:
    """Measure all pairs together with the other nodes.

    Args:
        store: of a run that only this check uses.
        label: of this node.
        address: by which the others reach this node.
        nodes: number of nodes that run the check.
        limit_seconds: for each link.
        deadline: for all nodes to come.

    Returns:
        All links, and how many nodes did not come.

    Raises ParameterError if more nodes come than expected.
    """
    rank = store.add(MEETING, 1) - 1
    if rank >= nodes:
        raise ParameterError(
            f"--nodes {nodes}: more nodes have come; give all nodes the same number, and each "
            "check a new --run-id"
        )
    with Echo(address, limit_seconds) as echo:
        own = NodeAddress(label, address, echo.port)
        try:
            told = store.all_gather(
                "check/places", msgspec.json.encode(own), rank, nodes, deadline.remaining()
            )
        except StoreTimeoutError:
            return [], nodes - int(store.add(MEETING, 0))
        places = distinct([msgspec.json.decode(text, type=NodeAddress) for text in told])
        others = [place for number, place in enumerate(places) if number != rank]
        seen = msgspec.json.encode(measure_all(places[rank].label, others, limit_seconds))
        left = max(deadline.remaining(), limit_seconds * len(others) + 1.0)
        rows = store.all_gather("check/pairs", seen, rank, nodes, left)
    return [pair for row in rows for pair in msgspec.json.decode(row, type=list[Pair])], 0
