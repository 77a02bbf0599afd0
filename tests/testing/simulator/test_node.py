"""A simulated agent: its blocking calls, its exit, and workers that save."""

import re

import msgspec
import pytest
from tests.testing.simulator.test_world import a_world

from rallypoint.agent.policy import decisions, events
from rallypoint.core.state import Settings
from rallypoint.testing.simulator import Fault, Kind, Plan, Violation, make_world
from rallypoint.testing.simulator.node import Saves
from rallypoint.worker import ChangeKind

PLAN = Plan(
    seed=3,
    nodes=3,
    settings=Settings(1, 4, last_call_seconds=0.5),
    faults=(Fault(Kind.COME, 6.0),),
    fault_seconds=15.0,
    admit="checkpoint",
)


def test_coordinator_calls_block_the_agent_as_in_reality() -> None:
    world = a_world(Fault(Kind.SERVER_KILL, 3.0, seconds=2.0))
    agents = world.agents
    clock = world.clock

    def fails() -> None:
        assert agents[0].working is not None
        agents[0].worker_ends(agents[0].working, 1)

    clock.add(clock.world, 3.5, False, fails)
    seen: list[bool] = []
    clock.add(clock.world, 4.5, False, lambda: seen.append(agents[0]._blocked))
    world.run()
    assert seen == [True], "its report waits for the server"
    assert all(isinstance(agent.state.phase, decisions.Working) for agent in agents)
    assert (("n0.1", 1)) in world.truth.failed


def test_signal_makes_the_agent_leave_and_exit() -> None:
    world = a_world(Fault(Kind.LEAVE, 3.0, node=2))
    world.run()
    agent = world.agents[2]
    assert agent.exit == events.Exit(143, "received SIGTERM")
    assert not agent.process.alive
    assert agent.node_id in world.truth.left


def test_each_join_differs_only_in_its_port() -> None:
    world = a_world(slots=True)
    agent = world.make_agent(1, 2)
    one, two = agent.describe(), agent.describe()
    assert (one.id, one.slot, one.address) == ("n1''.1", "slot1", "10.0.0.2")
    assert one.port != two.port
    agent.new_id()
    assert agent.describe().id == "n1''.2"


def told(plan: Plan) -> str:
    world = make_world(plan, trace=True)
    world.run()
    return "\n".join(world.lines or [])


def test_round_changes_once_all_ranks_have_saved() -> None:
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


def test_save_never_completes_with_a_lost_rank() -> None:
    world = make_world(PLAN)
    world.start()
    world.clock.run_until(3.0)
    world.agents[1].working = None
    ask = events.AskToSave(1, 1, ChangeKind.JOINING, "", "", 5.0, True)
    world.saves.ask(world.agents[0], ask)
    world.clock.run_until(6.0)
    assert world.truth.saved == set()


def test_agent_that_does_not_wait_for_all_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_early(_saves: Saves, agent: object, ask: events.AskToSave) -> None:
        agent.put(events.WorkersSaved(ask.round, 1))  # type: ignore[attr-defined]

    monkeypatch.setattr(Saves, "ask", too_early)
    with pytest.raises(Violation, match="stopped its workers because of WorkersSaved"):
        told(PLAN)


def test_admit_never_keeps_newcomers_waiting() -> None:
    lines = told(msgspec.structs.replace(PLAN, admit="never"))
    assert "waits" in lines
    assert "round 2" not in lines
