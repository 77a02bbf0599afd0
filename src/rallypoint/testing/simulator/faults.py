"""Injects the faults of a plan."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from rallypoint.core.events import Admit, Close, Exclude, Notify
from rallypoint.core.state import Aspect
from rallypoint.rendezvous.coordinator import Order
from rallypoint.testing.simulator.context import ServerLives, Simulation
from rallypoint.testing.simulator.node import Agent
from rallypoint.testing.simulator.plan import STEP_KINDS, Fault, Kind
from rallypoint.testing.simulator.stores import StoreClient
from rallypoint.testing.simulator.virtual_clock import Process

SLOWNESS = 40.0
CRASH_CHANCE, CRASH_SECONDS = 0.5, 3.0  # workers of a dead node's peers may crash


class Targets(Protocol):
    """What faults act on, besides time and network."""

    agents: list[Agent]
    stores: list[StoreClient]
    server: ServerLives

    def new_agent(self, host: int, number: int = 0) -> Agent:
        """Start an agent on a machine that has had `number` others."""

    def order(self, event: Order) -> None:
        """Send an operator's order to the run."""


class Faults:
    """Injects faults into a world until `stop`.

    Args:
        simulation: its time, network and plan.
        targets: what the faults act on.
    """

    def __init__(self, simulation: Simulation, targets: Targets) -> None:
        self._simulation = simulation
        self._targets = targets
        self._clock = simulation.clock
        self._steps: dict[int, Fault] = {}
        self._blocks: list[tuple[str, str]] = []  # node, "up" or "down"
        self._server_slowness = 1.0
        self.end = 0.0
        self.stopped = False
        self._do: dict[Kind, Callable[[Fault], None]] = {
            Kind.KILL: self._kill, Kind.VANISH: self._kill, Kind.PAUSE: self._pause,
            Kind.SLOW: self._slow, Kind.JUMP: self._jump, Kind.WORKER: self._worker,
            Kind.LEAVE: self._leave, Kind.COME: self._come, Kind.CUT: self._cut,
            Kind.CUT_NEAR: self._cut, Kind.CUT_FAR: self._cut, Kind.PART: self._part,
            Kind.PART_UP: self._part, Kind.PART_DOWN: self._part,
            Kind.SERVER_PAUSE: self._server_pause, Kind.SERVER_SLOW: self._server_slow,
            Kind.SERVER_JUMP: self._server_jump, Kind.SERVER_KILL: self._server_kill,
            Kind.SERVER_TWIN: lambda fault: self._targets.server.replace(fault.seconds),
            Kind.SERVER_FULL: lambda fault: self._targets.server.fill_disk(fault.seconds),
            Kind.SERVER_POWER: self._server_kill, Kind.SERVER_LOST: self._server_kill,
            Kind.CLOSE: self._close, Kind.NOTICE: self._notice, Kind.EXCLUDE: self._exclude,
        }  # fmt: skip

    def plan(self, faults: tuple[Fault, ...]) -> None:
        """Schedule the faults."""
        self.end = self._simulation.plan.fault_seconds
        for fault in faults:
            if fault.kind in STEP_KINDS:
                self._steps[int(fault.at)] = fault
            else:
                self._later(fault.at, partial(self._happens, fault))
                self.end = max(self.end, fault.at + fault.seconds + 0.1)
        if self._steps:
            self._clock.on_step = self._step

    def stop(self) -> None:
        """Inject no more faults."""
        self.stopped = True
        self._clock.on_step = None

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        self._clock.add(self._clock.world, seconds, False, call)

    def _happens(self, fault: Fault) -> None:
        self._simulation.note("FAULT", fault.line())
        self._do[fault.kind](fault)

    def agent(self, fault: Fault) -> Agent:
        """Return the current agent of the fault's machine."""
        agents = self._targets.agents
        return agents[fault.node % len(agents)]

    def process(self, fault: Fault) -> Process:
        """Return the process that the fault acts on: an agent's, or a store client's."""
        targets = self._targets
        everyone = [a.process for a in targets.agents] + [c.process for c in targets.stores]
        return everyone[fault.node % len(everyone)]

    # -- nodes -----------------------------------------------------------------------------------

    def _kill(self, fault: Fault) -> None:
        agent = self.agent(fault)
        if agent.process.alive:
            self.kill_agent(agent, power=fault.kind is Kind.VANISH)
        if fault.back:
            self._later(fault.seconds, partial(self._come_back, agent.host))

    def kill_agent(self, agent: Agent, power: bool) -> None:
        """Kill an agent; its peers' workers may crash as a consequence."""
        seat = agent.working
        agent.working = None
        if power:
            self._simulation.network.vanish(agent.process)
        else:
            agent.process.kill()
        for other in self._targets.agents if seat is not None else ():
            crashes = self._clock.random.random() < CRASH_CHANCE
            if other.working is not None and other.process.alive and crashes:
                delay = self._clock.random.random() * CRASH_SECONDS
                other.process.call_later(delay, other.worker_ends, other.working, 1)

    def _come_back(self, host: int) -> None:
        agent = self._targets.agents[host]
        if not agent.process.alive:
            self._targets.new_agent(host, agent.name.count("'") + 1)

    def _come(self, fault: Fault) -> None:
        self._targets.new_agent(len(self._targets.agents))

    def _pause(self, fault: Fault) -> None:
        process = self.process(fault)
        process.pause()
        self._later(fault.seconds, process.resume)

    def _slow(self, fault: Fault) -> None:
        process = self.process(fault)
        process.slowness = SLOWNESS
        self._later(fault.seconds, lambda: setattr(process, "slowness", 1.0))

    def _jump(self, fault: Fault) -> None:
        self.process(fault).jump(fault.seconds)

    def _worker(self, fault: Fault) -> None:
        agent = self.agent(fault)
        if agent.process.alive and agent.working is not None:
            agent.process.call_soon(agent.worker_ends, agent.working, 1)

    def _leave(self, fault: Fault) -> None:
        agent = self.agent(fault)
        if agent.process.alive:
            agent.process.call_soon(agent.signal)
        if fault.back:
            self._later(fault.seconds, partial(self._come_back, agent.host))

    def _step(self, process: Process) -> None:
        fault = self._steps.pop(self._clock.steps, None)
        if fault is None or self.stopped:
            return
        self._simulation.note("FAULT", f"{fault.line()}: {process.name}")
        agent = next((a for a in self._targets.agents if a.process is process), None)
        if agent is not None and fault.kind is Kind.KILL_STEP:
            self.kill_agent(agent, power=False)
            if fault.back:
                self._later(fault.seconds, partial(self._come_back, agent.host))
        elif process is self._targets.server.process and fault.kind is Kind.KILL_STEP:
            self._targets.server.kill(fault.seconds, power=True, lost=False)
        else:
            if process is self._targets.server.process:
                self._targets.server.held_up += 1
            process.pause()
            self._later(fault.seconds, process.resume)
        self.end = max(self.end, self._clock.now + fault.seconds + 0.1)

    # -- the network -------------------------------------------------------------------------------

    def _cut(self, fault: Fault) -> None:
        sides = {Kind.CUT: "both", Kind.CUT_NEAR: "near", Kind.CUT_FAR: "far"}
        self._simulation.network.cut(self.process(fault), sides[fault.kind])

    def _part(self, fault: Fault) -> None:
        name = self.process(fault).name
        ways = {Kind.PART: ("up", "down"), Kind.PART_UP: ("up",), Kind.PART_DOWN: ("down",)}
        for way in ways[fault.kind]:
            self._blocks.append((name, way))
            self._set(name, way, True)
            self._later(fault.seconds, partial(self._heal, name, way))

    def _heal(self, name: str, way: str) -> None:
        self._blocks.remove((name, way))
        self._set(name, way, False)

    def _set(self, name: str, way: str, blocked: bool) -> None:
        server = self._targets.server.process
        if server is not None:
            self._set_with(server.name, name, way, blocked)

    def _set_with(self, server: str, name: str, way: str, blocked: bool) -> None:
        network = self._simulation.network
        pair = (name, server) if way == "up" else (server, name)
        if blocked:
            network.block(*pair)
        else:
            network.unblock(*pair)

    def server_started(self, server: str) -> None:
        """Apply the current network blocks to a new server process."""
        for name, way in self._blocks:
            self._set_with(server, name, way, True)

    # -- the server --------------------------------------------------------------------------------

    def _server_pause(self, fault: Fault) -> None:
        process = self._targets.server.process
        if process is not None:
            self._targets.server.held_up += 1
            process.pause()
            self._later(fault.seconds, process.resume)

    def _server_slow(self, fault: Fault) -> None:
        process = self._targets.server.process
        if process is not None:
            process.slowness = SLOWNESS
            self._later(fault.seconds, lambda: setattr(process, "slowness", 1.0))

    def _server_jump(self, fault: Fault) -> None:
        process = self._targets.server.process
        if process is not None and process.alive:
            self._targets.server.held_up += 1
            self._targets.server.jumped_seconds += fault.seconds
            process.jump(fault.seconds)

    def _server_kill(self, fault: Fault) -> None:
        power, lost = fault.kind is Kind.SERVER_POWER, fault.kind is Kind.SERVER_LOST
        self._targets.server.kill(fault.seconds, power, lost)

    def _close(self, fault: Fault) -> None:
        self._targets.order(Close("a user", "enough"))

    # -- operators ---------------------------------------------------------------------------------

    def _notice(self, fault: Fault) -> None:
        self._targets.order(Notify(self.agent(fault).node_id, "a notice", "a user", fault.seconds))

    def _exclude(self, fault: Fault) -> None:
        """Exclude a machine for some time, or until it is admitted and its agent comes back."""
        agent = self.agent(fault)
        address = agent.describe().address
        seconds = None if fault.back else fault.seconds
        self._targets.order(Exclude(Aspect.ADDRESS, address, "bad", "a user", seconds))
        if fault.back:
            admit = Admit(Aspect.ADDRESS, address, "a user")
            self._later(fault.seconds, partial(self._targets.order, admit))
            self._later(fault.seconds, partial(self._come_back, agent.host))
