"""What every part of a simulated world shares: its plan, time, network and the truth about it.

The parts (server, nodes, checks, faults) take a `Simulation`; `World` puts them together. What
a part needs beyond this it takes as an argument, or names in a Protocol of its own, so that no
part knows the world that it belongs to.
"""

from typing import Protocol

from rallypoint.core.events import Timer
from rallypoint.core.state import NodeId, Round
from rallypoint.testing.simulator.network import Network
from rallypoint.testing.simulator.plan import Plan
from rallypoint.testing.simulator.virtual_clock import Process, VirtualClock

LINES_KEPT = 4000


class Violation(Exception):
    """Something that must hold does not. `kind` names it, for shrinking."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Truth:
    """What really happened."""

    def __init__(self) -> None:
        self.joined: set[NodeId] = set()
        self.left: set[NodeId] = set()
        self.done: set[tuple[NodeId, int]] = set()
        self.failed: set[tuple[NodeId, int]] = set()
        self.orders: set[tuple[str, str]] = set()
        self.fenced: set[NodeId] = set()
        self.saved: set[tuple[int, int]] = set()  # incarnation and number of rounds
        self.openings: set[tuple[int, int, str]] = set()
        self.closings: set[tuple[int, str]] = set()
        self._heard: dict[NodeId, list[tuple[float, float]]] = {}  # when, server's pauses by then
        self.rounds: dict[tuple[int, int, int], Round] = {}
        self.seats: dict[tuple[int, int, int], dict[int, NodeId]] = {}
        self.common: dict[tuple[int, int, int], tuple[object, ...]] = {}
        self.timers: dict[tuple[int, Timer], tuple[float, float]] = {}

    def hear(self, node: NodeId, now: float, paused: float) -> None:
        """A node's bytes were taken in by the server."""
        times = self._heard.setdefault(node, [])
        if times and times[-1][0] == now:
            return
        times.append((now, paused))
        del times[:-2]

    def heard(self, node: NodeId, now: float) -> tuple[float, float] | None:
        """Return when a node was last heard before now: what comes now was not judged yet."""
        earlier = [each for each in self._heard.get(node, ()) if each[0] < now]
        return earlier[-1] if earlier else None


class ServerLives(Protocol):
    """What checks and faults see of the server, or of the store that stands in its place.

    Attributes:
        process: its process, None before the first start.
        life: how often it has lost everything.
        starts: how often it was started.
        held_up: how often it was paused, or its clock jumped.
        jumped_seconds: by how much its clock jumped in all.
    """

    life: int
    starts: int
    held_up: int
    jumped_seconds: float

    @property
    def process(self) -> Process | None:
        """Its process."""

    def start(self) -> None:
        """Start it."""

    def kill(self, back_seconds: float, power: bool, lost: bool) -> None:
        """Kill it; it starts again after `back_seconds`."""

    def replace(self, seconds: float) -> None:
        """Stop it until another one has taken over; it continues `seconds` later."""

    def fill_disk(self, seconds: float) -> None:
        """Leave its disk without room for a while."""


class Simulation:
    """The shared ground of one simulation.

    Args:
        plan: what happens.
        trace: keep a transcript in `lines`.
    """

    def __init__(self, plan: Plan, trace: bool = False) -> None:
        self.plan = plan
        self.run_id = "simulated"
        self.lines: list[str] | None = [] if trace else None
        self.clock = VirtualClock(plan.seed)
        self.network = Network(self.clock, plan.latency)
        self.truth = Truth()
        self._ports = 20_000

    def note(self, who: str, text: str) -> None:
        """Write a line of the transcript."""
        if self.lines is not None and len(self.lines) < LINES_KEPT:
            self.lines.append(f"{self.clock.now:9.3f}  {who:<9}  {text}")

    def next_port(self) -> int:
        """Return a port that no node has proposed yet."""
        self._ports += 1
        return self._ports
