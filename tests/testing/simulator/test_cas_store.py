import pytest
from tests.testing.simulator.test_world import a_serverless_world

from rallypoint.errors import RendezvousConnectionError
from rallypoint.testing.simulator.cas_store import Cell, Killed, NodeBackend
from rallypoint.testing.simulator.context import Violation
from rallypoint.testing.simulator.virtual_clock import Process


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
