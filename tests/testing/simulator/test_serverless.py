"""Worlds without a server; more of them are in test_world and test_search."""

from contextlib import AbstractContextManager

import pytest
from tests.testing.simulator.test_world import a_serverless_world, a_world, round_of

from rallypoint.core.state import Settings
from rallypoint.deadline import Deadline
from rallypoint.errors import RendezvousConnectionError
from rallypoint.rendezvous.serverless.node_loop import NodeLoop
from rallypoint.testing.simulator import Fault, Kind, Plan
from rallypoint.testing.simulator.context import Violation
from rallypoint.testing.simulator.serverless import (
    CALL_SECONDS,
    Cell,
    Killed,
    NodeBackend,
    ServerlessNode,
    ServerlessWorld,
    settings_of,
)
from rallypoint.testing.simulator.virtual_clock import Process


def test_settings_are_those_of_the_plan() -> None:
    given = Settings(1, 3, 2, 4, 0.0, 5.0, 1.0, 6.0, 0.5)
    core = settings_of(Plan(1, 3, given)).core()
    assert core == Settings(1, 3, 2, 4, 0.001, 5.0, 1.0, 6.0, 0.5)


def test_writes_race() -> None:
    world = a_world(shared=True)
    assert isinstance(world, ServerlessWorld)
    lost = 0
    whole = world.cell.compare_and_set

    def counting(data: bytes, token: object) -> bool:
        nonlocal lost
        done = whole(data, token)
        lost += not done
        return done

    world.cell.compare_and_set = counting  # type: ignore[method-assign] # counts
    world.run()
    assert lost > 0, "nobody acted on what another one had changed meanwhile"


def test_store_is_unreachable_for_a_while() -> None:
    world = a_world(Fault(Kind.SERVER_KILL, 3.0, seconds=2.0), shared=True)
    world.run()
    assert round_of(world) == (1, 3)


def test_node_stopped_too_long_comes_back_under_a_new_id() -> None:
    world = a_world(Fault(Kind.PAUSE, 3.0, node=1, seconds=6.0), shared=True)
    world.run()
    assert {agent.node_id for agent in world.live()} == {"n0.1", "n1.2", "n2.1"}


def test_stopped_node_finishes_its_call_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Made within it, it would wait for its turn: in real time, for the only thread there is."""
    whole = NodeLoop._turn

    def turn(host: NodeLoop, deadline: Deadline) -> AbstractContextManager[None]:
        assert not host._turn_lock.locked(), "this call waits in real time"
        return whole(host, deadline)

    monkeypatch.setattr(NodeLoop, "_turn", turn)
    world = a_world(shared=True)
    with world.watched():
        world.start()
        world.clock.run_until(3.0)
        agent, clock = world.agents[1], world.clock
        assert isinstance(agent, ServerlessNode)
        clock.add(clock.world, 0.0, False, agent.process.pause)
        clock.add(clock.world, 1.005, False, agent.process.resume)  # early in a slice
        agent.process.call_soon(agent.worker_ends, agent.working, 1)
        agent.tick()
        clock.run_until(20.0)
    assert round_of(world) == (2, 3)


def test_abandoned_request_affects_nobody_else() -> None:
    away = Fault(Kind.SERVER_KILL, 3.0, seconds=CALL_SECONDS + 10.0)
    world = a_world(away, Fault(Kind.CLOSE, 4.0), shared=True)
    world.lines = []
    world.run()
    assert round_of(world) == (1, 3)
    assert any("user1 " in line and "request failed" in line for line in world.lines)


def a_cell() -> tuple[Cell, NodeBackend, list[bytes]]:
    world, stored = a_serverless_world(), list[bytes]()
    cell = Cell(world, world.server.process, stored.append)
    return cell, NodeBackend(cell, Process(world.clock, "n0", 0.0)), stored


def test_cas_compares_before_it_sets() -> None:
    _cell, backend, stored = a_cell()
    assert backend.name == "simulated"
    assert backend.get_state() is None
    assert backend.set_state(b"a") == (b"a", 1, True)
    assert backend.set_state(b"b") == (b"a", 1, False)
    assert backend.set_state(b"b", 1) == (b"b", 2, True)
    assert backend.get_state() == (b"b", 2)
    assert stored == [b"a", b"b"]


def test_missing_answer_leaves_the_write_in_doubt() -> None:
    cell, backend, _stored = a_cell()
    cell.simulation.network.block("store", "n0")
    with pytest.raises(RendezvousConnectionError, match="answer"):
        backend.set_state(b"a")
    cell.simulation.network.block("n0", "store")
    with pytest.raises(RendezvousConnectionError, match="reach"):
        backend.set_state(b"b")
    assert cell.data == b"a"


def test_others_continue_while_one_waits() -> None:
    cell, backend, _stored = a_cell()
    other, seen = Process(cell.simulation.clock, "n1", 0.0), list[float]()
    other.call_later(1.0, lambda: seen.append(other.time()))
    backend.wait(2.0)
    assert seen == [1.0]
    assert cell.simulation.clock.now == 2.0


def test_call_of_a_process_that_dies_or_stops() -> None:
    cell, backend, _stored = a_cell()
    clock, process = cell.simulation.clock, backend._process
    clock.add(clock.world, 0.5, False, process.pause)
    clock.add(clock.world, 5.0, False, process.resume)
    backend.wait(1.0)
    assert clock.now >= 5.0, "it was stopped, and returned only once it went on"
    clock.add(clock.world, 0.5, False, process.kill)
    with pytest.raises(Killed):
        backend.wait(1.0)


def test_stopped_process_finishes_its_current_call_first() -> None:
    _cell, backend, _stored = a_cell()
    process, done = backend._process, list[str]()
    clock = process.clock
    process.call_later(0.7, done.append, "its own")
    clock.add(clock.world, 0.5, False, process.pause)
    clock.add(clock.world, 5.001, False, process.resume)  # within a slice
    backend.wait(1.0)
    assert clock.now > 5.001
    assert done == []
    clock.run_until(clock.now)
    assert done == ["its own"]


def test_error_of_another_call_is_not_an_answer() -> None:
    cell, backend, _stored = a_cell()
    other = Process(cell.simulation.clock, "n1", 0.0)

    def fail() -> None:
        raise RendezvousConnectionError("n1 gave up")

    other.call_later(1.0, fail)
    with pytest.raises(Violation, match="n1 gave up") as caught:
        backend.wait(2.0)
    assert caught.value.kind == "RendezvousConnectionError"
