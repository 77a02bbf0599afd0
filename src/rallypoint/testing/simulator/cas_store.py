"""A simulated compare-and-set store, and each node's backend for it."""

from collections.abc import Callable

from rallypoint.errors import RallypointError, RendezvousConnectionError
from rallypoint.rendezvous.serverless.backends.contract import RendezvousBackend, Token
from rallypoint.testing.simulator.context import Simulation, Violation
from rallypoint.testing.simulator.virtual_clock import Process

ACCESS_SECONDS = 0.004
SLICE_SECONDS = 0.02


class Killed(BaseException):
    """The waiting process has died: its call never returns."""


class Cell:
    """One state behind compare-and-set.

    Args:
        simulation: its time and network.
        process: the store itself; it is unreachable while it is paused.
        stored: called with each written state.
    """

    def __init__(
        self, simulation: Simulation, process: Process, stored: Callable[[bytes], None]
    ) -> None:
        self.simulation = simulation
        self.process = process
        self.data: bytes | None = None
        self.version = 0
        self._stored = stored

    def compare_and_set(self, data: bytes, token: Token | None) -> bool:
        """Write the data if the token is current; return whether it was."""
        if (token or 0) != self.version:
            return False
        self.data, self.version = data, self.version + 1
        self._stored(data)
        return True


class NodeBackend(RendezvousBackend):
    """One node's access to the cell.

    Args:
        cell: the shared state.
        process: the node's.
    """

    def __init__(self, cell: Cell, process: Process) -> None:
        self._cell = cell
        self._process = process

    @property
    def name(self) -> str:
        return "simulated"

    def get_state(self) -> tuple[bytes, Token] | None:
        self._reach()
        found = None if self._cell.data is None else (self._cell.data, self._cell.version)
        self._answer()
        return found

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        self._reach()
        done = self._cell.compare_and_set(state, token)
        data, version = self._cell.data, self._cell.version
        self._answer()
        return None if data is None else (data, version, done)

    def _reach(self) -> None:
        self.wait(self._cell.simulation.clock.random.random() * ACCESS_SECONDS)
        if self._is_cut("up"):
            raise RendezvousConnectionError("the store is out of reach")

    def _answer(self) -> None:
        self.wait(self._cell.simulation.clock.random.random() * ACCESS_SECONDS)
        if self._is_cut("down"):
            raise RendezvousConnectionError("the store did not answer")

    def _is_cut(self, way: str) -> bool:
        store, me = self._cell.process, self._process.name
        pair = (me, store.name) if way == "up" else (store.name, me)
        return self._cell.simulation.network.is_blocked(*pair) or store.paused

    def wait(self, seconds: float) -> None:
        """Let the rest of the world run while this node waits."""
        process = self._process
        self._others_for(seconds * process.slowness)
        while process.paused and process.alive:  # a fault stopped it during the wait
            self._others_for(SLICE_SECONDS)
        if not process.alive:
            raise Killed

    def _others_for(self, seconds: float) -> None:
        """Let others run; hold this node's callbacks, even if its own pause ends."""
        self._process.pause()
        self._others_until(self._cell.simulation.clock.now + seconds)
        self._process.resume()

    def _others_until(self, end: float) -> None:
        try:
            self._cell.simulation.clock.run_until(end)
        except RallypointError as error:  # of another node: not an answer to this one
            raise Violation(type(error).__name__, f"unhandled: {error!r}") from error
