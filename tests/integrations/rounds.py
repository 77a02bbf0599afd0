"""A round without a server for the tests: a store in memory and a view that tests set."""

from typing import cast

from rallypoint.core.events import Assignment, RoundOpened, RunClosed
from rallypoint.core.state import Verdict
from rallypoint.integrations.agent_round import AgentKeys, AgentRound
from rallypoint.rendezvous import DynamicRendezvousHandler, RendezvousInfo
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.view import View
from rallypoint.store.memory import MemoryStore

KEYS = AgentKeys("role/", "ranks/", "exit/", "/count")


class FakeHandler:
    """What an `AgentRound` asks of a handler."""

    def __init__(self) -> None:
        self.told = View()
        self.finished = 0
        self.error: Exception | None = None
        self.round = 1
        self.asked = 0

    def view(self) -> View:
        return self.told

    def finish(self) -> None:
        if self.error is not None:
            raise self.error
        self.finished += 1

    def waiting_for(self) -> Report:
        self.asked += 1
        if self.error is not None:
            raise self.error
        phase = "sealed" if self.round == 1 else "gathering"
        return Report("run", phase, 1, self.round, "1 of at least 2 nodes has come")

    def lose(self, who: str) -> None:
        self.told = View(opened=RoundOpened(1, 2, f"{who} was lost"))

    def close(self) -> None:
        closed = RunClosed(1, 1, "node7", "now", "its workers failed", Verdict.BUDGET)
        self.told = View(closed=closed)


def make_round(keys: AgentKeys = KEYS, rank: int = 1) -> tuple[AgentRound, FakeHandler]:
    handler = FakeHandler()
    seat = Assignment(1, 1, rank, 3, rank, 3, rank, 3, "127.0.0.1", 29500, 0, "all have come")
    info = RendezvousInfo(MemoryStore(), rank, 3, assignment=seat)
    return AgentRound(cast(DynamicRendezvousHandler, handler), info, keys), handler
