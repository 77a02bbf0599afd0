"""A network of machines on one machine: a network namespace for each, and a switch between them.

The switch is ours. Each namespace has a tap device whose other end is a file here; the switch
forwards, delays or drops each Ethernet frame as the rules say. So delay, loss and partitions need
only taps (netem and packet filters are often missing), and TCP on both sides is the kernel's own,
with its retransmissions and timeouts.

Needs root, /dev/net/tun and `ip` (iproute2).
"""

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_FRAME_BYTES = 65536
_names = itertools.count()


def missing() -> str:
    """Return what is missing for networks, "" if nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "`ip` is not installed (iproute2)"
    if not os.path.exists("/dev/net/tun"):
        return "this kernel has no /dev/net/tun"
    done = subprocess.run(
        ["ip", "netns", "add", f"rp{os.getpid()}try"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return f"network namespaces are refused: {done.stderr.strip()}"
    _ip("netns", "del", f"rp{os.getpid()}try")
    return ""


def _ip(*argv: str, within: str = "") -> None:
    where = ["-n", within] if within else []
    subprocess.run(["ip", *where, *argv], check=True, capture_output=True)


class Machine:
    """One network namespace with an address.

    Args:
        number: from 0; gives the address.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"rp{os.getpid()}n{next(_names)}"
        self.address = f"10.77.0.{number + 1}"
        _ip("netns", "add", self.name)
        self.tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        device = f"{self.name[-13:]}t"
        request = struct.pack("16sH22x", device.encode(), _IFF_TAP | _IFF_NO_PI)
        fcntl.ioctl(self.tap, _TUNSETIFF, request)
        _ip("link", "set", device, "netns", self.name)
        _ip("link", "set", "lo", "up", within=self.name)
        _ip("address", "add", f"{self.address}/24", "dev", device, within=self.name)
        _ip("link", "set", device, "up", within=self.name)

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs on this machine; it keeps its process id."""
        return ["ip", "netns", "exec", self.name, *argv]

    def close(self) -> None:
        """Remove it; its processes must have ended."""
        os.close(self.tap)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self.name)


class Network:
    """Machines and the switch between them.

    Args:
        count: machines.
        seed: of the random loss.
    """

    def __init__(self, count: int, seed: int = 1) -> None:
        self.delay_seconds = 0.0
        self.loss = 0.0
        self.machines: list[Machine] = []
        self._blocked: set[tuple[int, int]] = set()
        self._dice = random.Random(seed)
        self._late: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self._places: dict[bytes, int] = {}  # the machine of each Ethernet address
        self._wake, self._woken = os.pipe()
        try:
            for number in range(count):
                self.machines.append(Machine(number))
        except BaseException:
            self._take_away()
            raise
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)
        self._thread.start()

    def cut(self, source: int, sink: int) -> float:
        """Drop all frames from one machine to another; return when (monotonic)."""
        self._blocked.add((source, sink))
        return time.monotonic()

    def part(self, *sides: Sequence[int]) -> float:
        """Drop all frames between machines of different sides; return when (monotonic)."""
        for one, other in itertools.permutations(sides, 2):
            self._blocked.update(itertools.product(one, other))
        return time.monotonic()

    def mend(self) -> float:
        """Forward everything again; return when (monotonic)."""
        self._blocked.clear()
        return time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        os.close(self._woken)
        self._thread.join(10.0)
        self._take_away()

    def _take_away(self) -> None:
        for machine in self.machines:
            machine.close()
        os.close(self._wake)

    # -- the switch -------------------------------------------------------------------------------

    def _run(self) -> None:
        taps = {machine.tap: machine.number for machine in self.machines}
        poll = select.poll()
        for handle in (self._wake, *taps):
            poll.register(handle, select.POLLIN)
        while True:
            ready = [handle for handle, _ in poll.poll(self._pause())]
            if self._wake in ready:
                return
            for handle in ready:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        self._take(taps[handle], os.read(handle, _FRAME_BYTES))
            self._deliver()

    def _pause(self) -> float | None:
        if not self._late:
            return None
        return max(0.0, self._late[0][0] - time.monotonic()) * 1000

    def _take(self, source: int, frame: bytes) -> None:
        self._places[frame[6:12]] = source
        known = self._places.get(frame[:6])
        for machine in self.machines:
            sink = machine.number
            if sink == source or known not in (None, sink) or (source, sink) in self._blocked:
                continue
            if self._dice.random() < self.loss:
                continue
            at = time.monotonic() + self.delay_seconds
            heapq.heappush(self._late, (at, next(self._order), sink, frame))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            _, _, sink, frame = heapq.heappop(self._late)
            with contextlib.suppress(OSError):  # its queue is full, or its device is down
                os.write(self.machines[sink].tap, frame)
