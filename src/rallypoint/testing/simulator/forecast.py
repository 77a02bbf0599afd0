"""What settings will cost: days of a job with failures, simulated message by message.

Between two failures nothing happens but heartbeats, so the quiet time is skipped: the
calendar goes on, the simulated clocks do not. All else is the same world as in the tests.
"""

import random
from collections.abc import Iterator

import msgspec

from rallypoint.core.advance import Step
from rallypoint.core.events import Event, Lost
from rallypoint.core.state import NodeId, RunState, Sealed, Settings
from rallypoint.testing.simulator.checks import HostedChecker
from rallypoint.testing.simulator.hosted import HostedWorld
from rallypoint.testing.simulator.node import Agent
from rallypoint.testing.simulator.plan import Plan
from rallypoint.testing.simulator.search import quiet

LOOK_SECONDS = 0.05
FOR_EVER_SECONDS = 1e9
FAILS, COMES_BACK, STALLS = "fails", "comes back", "stalls"


class Weather(msgspec.Struct, frozen=True):
    """What happens to the nodes of a job.

    Args:
        hours: how long the job is watched.
        mtbf_seconds: mean time between two failures of nodes, in the whole job.
        silent: share of the failures that nobody tells of (power, network); the others
            close the node's connection.
        repair_seconds: until a failed node is there again.
        stalls_per_hour: how often some node stands still for a while without being dead.
        stall_seconds: mean length of that.
    """

    hours: float
    mtbf_seconds: float
    silent: float = 0.25
    repair_seconds: float = 300.0
    stalls_per_hour: float = 1.0
    stall_seconds: float = 3.0


class Forecast(msgspec.Struct):
    """What came of it; all times are in seconds.

    Args:
        failures: nodes that failed while they took part.
        silent: those of them that nobody told of.
        rounds: rounds sealed.
        detect: from a failure to the moment that the coordinator knew.
        pauses: each time without a round at work.
        lost_seconds: their sum.
        false_losses: nodes that were taken for lost, and were alive.
        stalls: how often a node stood still.
        missing: nodes missing in the round at work, on average.
    """

    failures: int = 0
    silent: int = 0
    rounds: int = 0
    detect: list[float] = []
    pauses: list[float] = []
    lost_seconds: float = 0.0
    false_losses: int = 0
    stalls: int = 0
    missing: float = 0.0


class Watching(HostedChecker):
    """Checks as ever, and measures how long failures stay unknown."""

    died: dict[NodeId, float]
    forecast: Forecast
    agents: list[Agent]

    def advance(self, state: RunState, *events: Event) -> Step:
        for event in events:
            if isinstance(event, Lost):
                died = self.died.pop(event.node, None)
                if died is not None:
                    self.forecast.detect.append(self.simulation.clock.now - died)
                elif any(a.node_id == event.node and a.process.alive for a in self.agents):
                    self.forecast.false_losses += 1
        return super().advance(state, *events)


class Job:
    """A job that is watched.

    Args:
        nodes: how many it has.
        settings: of the run.
        weather: what happens to it.
        stop_seconds: most time that workers take to end.
        seed: of what happens.
    """

    def __init__(
        self, nodes: int, settings: Settings, weather: Weather, stop_seconds: float, seed: int
    ) -> None:
        plan = Plan(seed, nodes, settings, join_seconds=FOR_EVER_SECONDS, stop_seconds=stop_seconds)
        self.world = HostedWorld(plan)
        self.forecast = Forecast(detect=[], pauses=[])
        watching = Watching(self.world, self.world.server)
        watching.died = {}
        watching.forecast = self.forecast
        watching.agents = self.world.agents
        self.world.checker = self.world.server.watcher = self._checker = watching
        self._weather = weather
        self._nodes = nodes
        self._random = random.Random(seed)
        self._calendar = 0.0
        self._pause = 0.0

    def run(self) -> Forecast:
        """Watch it to the end."""
        world = self.world
        with quiet(), world.watched():
            world.start()
            for at, what, host in self._events():
                self._run_until(at)
                self._happens(what, host)
            self._run_until(self._weather.hours * 3600)
        self._end_pause()
        self.forecast.rounds = len(world.truth.rounds)
        self.forecast.missing /= max(1e-9, self._calendar)
        return self.forecast

    def _events(self) -> Iterator[tuple[float, str, int]]:
        weather, dice, events = self._weather, self._random, []
        end, at = weather.hours * 3600, 0.0
        while (at := at + dice.expovariate(1 / weather.mtbf_seconds)) < end:
            host = dice.randrange(self._nodes)
            events.append((at, FAILS, host))
            events.append((at + weather.repair_seconds, COMES_BACK, host))
        at = 0.0
        rate = weather.stalls_per_hour / 3600
        while rate > 0 and (at := at + dice.expovariate(rate)) < end:
            events.append((at, STALLS, dice.randrange(self._nodes)))
        yield from sorted(event for event in events if event[0] < end)

    def _happens(self, what: str, host: int) -> None:
        world, forecast = self.world, self.forecast
        agent = world.agents[host]
        if what == COMES_BACK and not agent.process.alive:
            world.new_agent(host, agent.name.count("'") + 1)
        elif what == FAILS and agent.process.alive:
            power = self._random.random() < self._weather.silent
            forecast.failures += 1
            forecast.silent += power
            self._checker.died[agent.node_id] = world.clock.now
            world.faults.kill_agent(agent, power)
        elif what == STALLS and agent.process.alive:
            forecast.stalls += 1
            agent.process.pause()
            long = self._random.expovariate(1 / self._weather.stall_seconds)
            clock = world.clock
            clock.add(clock.world, long, False, agent.process.resume)

    # -- time --------------------------------------------------------------------------------------

    def _run_until(self, until: float) -> None:
        clock = self.world.clock
        while self._calendar < until:
            still = any(agent.process.paused for agent in self.world.agents)
            if not still and not self.world.unsettled(final=True):
                self._pass(until - self._calendar)  # nothing but heartbeats: skipped
                return
            step = min(LOOK_SECONDS, until - self._calendar)
            clock.run_until(clock.now + step)
            self._pass(step)

    def _pass(self, seconds: float) -> None:
        self._calendar += seconds
        size = self._size()
        if size:
            self._end_pause()
            self.forecast.missing += (self._nodes - size) * seconds
        else:
            self._pause += seconds
            self.forecast.missing += self._nodes * seconds

    def _end_pause(self) -> None:
        if self._pause:
            self.forecast.pauses.append(self._pause)
            self.forecast.lost_seconds += self._pause
            self._pause = 0.0

    def _size(self) -> int:
        """Return the size of the round that is at work, 0 if none is."""
        state = self.world.state()
        if state is None or not isinstance(state.phase, Sealed):
            return 0
        number, seats = state.phase.record.number, state.phase.record.seats
        working = sum(
            a.working is not None and a.working.round == number and a.process.alive
            for a in self.world.agents
        )
        return working if working == len(seats) else 0
