"""The machine room: outages are lived through, failures are told, the thread ends."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rallypoint.core.events import Join
from rallypoint.core.state import Node
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous.serverless.backends.contract import (
    MemoryRendezvousBackend,
    RendezvousBackend,
)
from rallypoint.rendezvous.serverless.coordinator import ServerlessCoordinator
from rallypoint.rendezvous.serverless.node_loop import NodeLoop
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.rendezvous.view import View
from rallypoint.store.memory import MemoryStore
from rallypoint.testing.fakes import ManualClock


class Unreachable(MemoryRendezvousBackend):
    """A backend that is away while told so, or broken."""

    error: Exception | None = None

    def get_state(self) -> tuple[bytes, Any] | None:
        if self.error is not None:
            raise self.error
        return super().get_state()

    def wait_for_change(self, token: Any, timeout: float) -> bool:
        return super().wait_for_change(token, min(timeout, 0.05))


def wait_for(coordinator: ServerlessCoordinator, condition: Callable[[View], bool]) -> View:
    done = threading.Event()
    end = coordinator.watch(lambda view: done.set() if condition(view) else None)
    if not condition(coordinator.view()):
        assert done.wait(10)
    end()
    return coordinator.view()


def join_alone(backend: RendezvousBackend) -> ServerlessCoordinator:
    held = RendezvousSettings("run", 1, 1, lease=0.6)
    coordinator = ServerlessCoordinator(backend, MemoryStore(), held)
    node = Node(id="a", address="h", port=1)
    assert coordinator.join(node, held.core(), Deadline(5), "", False).rank == 0
    return coordinator


def test_unreachable_backend_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    backend = Unreachable()
    coordinator = join_alone(backend)
    with caplog.at_level(logging.WARNING):
        backend.error = RendezvousConnectionError("nobody answers at h:1")
        assert not wait_for(coordinator, lambda view: not view.connected).connected
        with pytest.raises(RendezvousConnectionError, match="out of reach for") as caught:
            coordinator.report(Deadline(0.2))
    assert "backend memory" in str(caught.value)
    assert "nobody answers at h:1" in str(caught.value)
    assert len([r for r in caplog.records if "out of reach" in r.message]) == 1
    backend.error = None
    view = wait_for(coordinator, lambda view: view.connected)
    assert view.assignment is not None
    assert view.fenced is None
    assert coordinator.shutdown(Deadline(5))


def test_failed_thread_is_reported_to_the_next_caller() -> None:
    backend = Unreachable()
    coordinator = join_alone(backend)
    backend.error = ZeroDivisionError("a bug")
    assert wait_for(coordinator, lambda view: view.error is not None).error is backend.error
    with pytest.raises(RendezvousStateError, match="a bug"):
        coordinator.report(Deadline(1))
    assert not coordinator.shutdown(Deadline(1))


def test_shutdown_at_an_outage_says_so() -> None:
    backend = Unreachable()
    coordinator = join_alone(backend)
    backend.error = RendezvousConnectionError("away")
    assert not coordinator.shutdown(Deadline(0.3))


def alone(clock: ManualClock | None = None) -> NodeLoop:
    return NodeLoop(MemoryRendezvousBackend(), "run", "memory", 9.0, clock or ManualClock())


def test_watchers_see_each_step_once_and_in_order() -> None:
    host = alone()
    heard: list[View] = []
    end = host.watch(heard.append)
    node = Node(id="a", address="h", port=1)
    core = RendezvousSettings("run", 1, 1).core()
    host.ask(lambda _: [Join(node, core)], Deadline(5), joining=node)
    assert heard == []  # only the thread tells
    for _ in range(3):
        host.step()
    assert heard == [host.view]
    assert host.view.assignment is not None
    host.forget()
    end()
    host.step()
    assert len(heard) == 1


def test_pause_lasts_until_the_next_heartbeat() -> None:
    host = alone()
    assert host.step() == 5.0  # a run that is not open has the default lease
    node = Node(id="a", address="h", port=1)
    core = RendezvousSettings("run", 1, 1, lease=9).core()
    host.ask(lambda _: [Join(node, core)], Deadline(5), joining=node)
    assert host.step() == 3.0


def test_one_call_at_a_time() -> None:
    host = alone()
    with host._turn(Deadline(1)), pytest.raises(RendezvousTimeoutError, match="busy"):
        host.ask(lambda _: [], Deadline(0.02))


def test_thread_ends() -> None:
    host = alone()
    host.start()
    thread = host._thread
    assert thread is not None
    host.start()
    assert host._thread is thread
    host.halt()
    host.ask(lambda _: [Join(Node(id="a", address="h"), core())], Deadline(5))  # wakes it
    host.wait_for_end(5)
    assert not thread.is_alive()


def core() -> Any:
    return RendezvousSettings("run", 1, 1).core()
