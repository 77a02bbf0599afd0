"""A join's time: it runs, but not while the node is parked and told so."""

import threading
from collections.abc import Callable
from typing import TypeVar

from rallypoint.core.events import Parked
from rallypoint.deadline import Deadline
from rallypoint.rendezvous.join_timeout import wait_for_seat
from rallypoint.rendezvous.view import View

T = TypeVar("T")
PARKED = View(parked=Parked(1, 1, spare=True, why="full"))
SHORT_SECONDS = 0.01
LONG_SECONDS = 20.0


class Scripted(threading.Condition):
    """A condition whose waits are answered by a script instead of by time."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        super().__init__()
        self.steps = list(steps)
        self.limits: list[float | None] = []

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        self.limits.append(timeout)
        if not predicate() and self.steps:
            self.steps.pop(0)()
        return predicate()


class Node:
    """What a node was told, and whether its join is decided."""

    def __init__(self, view: View) -> None:
        self.view, self.done = view, False

    def seat(self) -> None:
        self.done = True

    def seen(self) -> View:
        return self.view

    def decided(self) -> bool:
        return self.done

    def tell(self, view: View) -> Callable[[], None]:
        def step() -> None:
            self.view = view

        return step


def test_request_without_an_answer_times_out() -> None:
    node, changed = Node(View()), threading.Condition()
    limit = Deadline(SHORT_SECONDS)
    with changed:
        assert wait_for_seat(changed.wait_for, node.seen, node.decided, limit) is None


def test_answer_ends_the_wait() -> None:
    node = Node(View())
    changed = Scripted(node.seat)
    deadline = Deadline(LONG_SECONDS)
    assert wait_for_seat(changed.wait_for, node.seen, node.decided, deadline) is deadline
    assert len(changed.limits) == 1


def test_waiting_node_has_its_full_timeout_once_a_round_opens() -> None:
    node = Node(PARKED)
    changed = Scripted(lambda: None, node.tell(View()), lambda: None)
    deadline = Deadline(SHORT_SECONDS)
    assert wait_for_seat(changed.wait_for, node.seen, node.decided, deadline) is None
    first, parked, again = changed.limits
    assert first is not None
    assert first <= SHORT_SECONDS
    assert parked == threading.TIMEOUT_MAX
    assert again is not None
    assert SHORT_SECONDS / 2 < again <= SHORT_SECONDS


def test_waiting_node_gets_a_seat_eventually() -> None:
    node = Node(PARKED)
    changed = Scripted(lambda: None, node.seat)
    deadline = Deadline(SHORT_SECONDS)
    renewed = wait_for_seat(changed.wait_for, node.seen, node.decided, deadline)
    assert renewed is not None
    assert renewed is not deadline
    assert renewed.timeout == SHORT_SECONDS


def test_timeout_runs_while_the_coordinator_is_away() -> None:
    node = Node(View(parked=PARKED.parked, connected=False))
    changed = Scripted(lambda: None)
    limit = Deadline(SHORT_SECONDS)
    assert wait_for_seat(changed.wait_for, node.seen, node.decided, limit) is None
