"""Simulated workers that save when they are asked to.

Some time after the first agent of a round has asked, all ranks have saved if all of them still
work, else none has. Agents that watch are notified.
"""

from functools import partial

from rallypoint.agent.policy import events
from rallypoint.testing.simulator.context import Simulation
from rallypoint.testing.simulator.node import Agent

LONGEST_SAVE_SECONDS = 2.0
Key = tuple[int, int]  # incarnation and number of a round


class Saves:
    """The saves of a world's workers.

    Args:
        simulation: where they work.
        agents: the newest agent of each machine.
    """

    def __init__(self, simulation: Simulation, agents: list[Agent]) -> None:
        self._simulation = simulation
        self._agents = agents
        self._under_way: set[Key] = set()
        self._watchers: dict[Key, list[Agent]] = {}

    def ask(self, agent: Agent, ask: events.AskToSave) -> None:
        """An agent asks its workers to save."""
        key = (ask.incarnation, ask.round)
        if ask.watch:
            self._watchers.setdefault(key, []).append(agent)
        if key not in self._under_way:
            self._under_way.add(key)
            clockwork = self._simulation.clockwork
            delay = clockwork.random.random() * LONGEST_SAVE_SECONDS
            clockwork.add(clockwork.world, delay, False, partial(self._save, key))

    def _save(self, key: Key) -> None:
        self._under_way.discard(key)
        seats = [
            agent.working
            for agent in self._agents
            if agent.process.alive and agent.working is not None
        ]
        at_work = [seat for seat in seats if (seat.incarnation, seat.round) == key]
        if not at_work or len(at_work) < at_work[0].size:
            return
        self._simulation.truth.saved.add(key)
        self._simulation.note("SAVED", f"all {len(at_work)} ranks of round {key[1]}")
        for agent in self._watchers.pop(key, []):
            if agent.process.alive:
                agent.process.soon(agent.put, events.WorkersSaved(key[1], 1))
