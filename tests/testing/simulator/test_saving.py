import re

import msgspec
import pytest

from rallypoint.agent.policy import events
from rallypoint.core.state import Settings
from rallypoint.testing.simulator import Fault, Kind, Plan, Violation, make_world
from rallypoint.testing.simulator.saving import Saves
from rallypoint.worker import ChangeKind

PLAN = Plan(
    seed=3,
    nodes=3,
    settings=Settings(1, 4, last_call_seconds=0.5),
    faults=(Fault(Kind.COME, 6.0),),
    fault_seconds=15.0,
    admit="checkpoint",
)


def told(plan: Plan) -> str:
    world = make_world(plan, trace=True)
    world.run()
    return "\n".join(world.lines or [])


def test_the_round_changes_once_all_ranks_have_saved() -> None:
    lines = told(PLAN)
    asked, saved, joined = (
        re.search(pattern, lines)
        for pattern in (
            "1 node waits: the workers have 5 s to save first",
            r"SAVED +all 3 ranks of round 1",
            r"round 2 opens: .*1 node waits; all workers have saved at step 1",
        )
    )
    assert asked
    assert saved
    assert joined
    assert asked.start() < saved.start() < joined.start()


def test_if_a_rank_is_gone_all_have_never_saved() -> None:
    world = make_world(PLAN)
    world.start()
    world.clockwork.run_until(3.0)
    world.agents[1].working = None
    ask = events.AskToSave(1, 1, ChangeKind.JOINING, "", "", 5.0, True)
    world.saves.ask(world.agents[0], ask)
    world.clockwork.run_until(6.0)
    assert world.truth.saved == set()


def test_an_agent_that_does_not_wait_for_all_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_early(_saves: Saves, agent: object, ask: events.AskToSave) -> None:
        agent.put(events.WorkersSaved(ask.round, 1))  # type: ignore[attr-defined]

    monkeypatch.setattr(Saves, "ask", too_early)
    with pytest.raises(Violation, match="stopped its workers because of WorkersSaved"):
        told(PLAN)


def test_never_lets_newcomers_wait() -> None:
    lines = told(msgspec.structs.replace(PLAN, admit="never"))
    assert "waits" in lines
    assert "round 2" not in lines
