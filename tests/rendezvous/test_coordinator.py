"""What the Coordinator contract promises, of both places where the state machine runs."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from tests.core.builders import a_failure, a_node, a_settings

from rallypoint.core.events import Admit, Assignment, Exclude, Refusal
from rallypoint.core.state import Aspect
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.net.connection import ConnectionConfig
from rallypoint.rendezvous.client.coordinator import HostedCoordinator
from rallypoint.rendezvous.coordinator import Coordinator
from rallypoint.rendezvous.parameters import RendezvousTimeout
from rallypoint.rendezvous.serverless.backends.contract import MemoryRendezvousBackend
from rallypoint.rendezvous.serverless.coordinator import ServerlessCoordinator
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.rendezvous.view import View
from rallypoint.server.embedded import EmbeddedServer
from rallypoint.store.memory import MemoryStore
from rallypoint.testing.store_handles import after_a_moment, in_thread

LIMIT_SECONDS = 20.0
LEASE_SECONDS = 9.0
BUG = "a bug of ours"

pytestmark = pytest.mark.integration


def _fail(*_: object) -> NoReturn:
    raise ZeroDivisionError(BUG)


class Place:
    """Where the coordinators of a test's nodes meet; they are shut down with it."""

    def __init__(self, make: Callable[[], Coordinator], patch: pytest.MonkeyPatch) -> None:
        self._make = make
        self._patch = patch
        self._made: list[Coordinator] = []

    def node(self) -> Coordinator:
        """Return another node's coordinator."""
        self._made.append(self._make())
        return self._made[-1]

    def break_thread_of(self, coordinator: Coordinator) -> None:
        """Plant a bug where a coordinator's thread takes in what it is told."""
        if isinstance(coordinator, HostedCoordinator):
            self._patch.setattr(coordinator._session, "receive", _fail)
        elif isinstance(coordinator, ServerlessCoordinator):
            self._patch.setattr(coordinator._loop, "step", _fail)

    def end(self) -> None:
        for each in self._made:
            each.shutdown(Deadline(5))


def _hosted(server: EmbeddedServer) -> Coordinator:
    return HostedCoordinator(ConnectionConfig("127.0.0.1", server.port, "run", b""), LEASE_SECONDS)


def _shared(backend: MemoryRendezvousBackend, store: MemoryStore) -> Coordinator:
    timeout = RendezvousTimeout(join=LIMIT_SECONDS, last_call=0.1, close=5)
    settings = RendezvousSettings("run", 1, 4, timeout, lease=LEASE_SECONDS)
    return ServerlessCoordinator(backend, store, settings)


@pytest.fixture(name="place", params=["hosted", "shared"])
def _place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "hosted":
        server: EmbeddedServer = request.getfixturevalue("server")
        place = Place(lambda: _hosted(server), monkeypatch)
    else:
        backend, store = MemoryRendezvousBackend(), MemoryStore()
        place = Place(lambda: _shared(backend, store), monkeypatch)
    yield place
    place.end()


def join(
    coordinator: Coordinator, name: str, nodes: int = 2, most: int = 0,
    seconds: float = LIMIT_SECONDS, anew: bool = False, **settings: Any,
) -> Assignment:  # fmt: skip
    """Join as a node of that name a run with such bounds (`most`: as many as the fewest)."""
    core = a_settings(nodes, most or nodes, lease_seconds=LEASE_SECONDS, **settings)
    node = a_node(name, address="127.0.0.1")
    return coordinator.join(node, core, Deadline(seconds), "it is a test", anew)


def meet(*coordinators: Coordinator) -> list[Assignment]:
    """Join with all, as n0, n1 and so on; a round of all of them is agreed."""
    many = len(coordinators)
    asked = [in_thread(join, each, f"n{i}", many) for i, each in enumerate(coordinators)]
    return [future.result(LIMIT_SECONDS) for future in asked]


def until(coordinator: Coordinator, ready: Callable[[View], bool]) -> View:
    """Wait for a view, by the watchers alone."""
    changed = threading.Event()
    unwatch = coordinator.watch(lambda _: changed.set())
    try:
        deadline = Deadline(LIMIT_SECONDS)
        while not ready(view := coordinator.view()):
            assert changed.wait(deadline.remaining()), view
            changed.clear()
        return view
    finally:
        unwatch()


def soon() -> Deadline:
    return Deadline(5)


# -- joining ------------------------------------------------------------------------------


def test_join_returns_the_agreed_round(place: Place) -> None:
    one, two = place.node(), place.node()
    seats = meet(one, two)
    assert sorted(seat.rank for seat in seats) == [0, 1]
    assert len({(s.incarnation, s.round, s.size, s.master_addr, s.master_port) for s in seats}) == 1
    assert [one.view().assignment, two.view().assignment] == seats
    members = one.participants(soon())
    assert [node.id for node in members] == [node.id for node in two.participants(soon())]
    assert [node.id for node in members].index("n0") == seats[0].rank


def test_join_ends_at_its_deadline_and_withdraws(place: Place) -> None:
    one = place.node()
    with pytest.raises(
        RendezvousTimeoutError,
        match="1 of at least 2 nodes have joined round 1; waiting for 1 more",
    ):
        join(one, "n0", seconds=0.2)
    assert place.node().report(soon()).members == ()
    assert one.view().assignment is None


def test_other_bounds_are_refused(place: Place) -> None:
    meet(place.node(), place.node())
    with pytest.raises(RendezvousStateError, match="min_nodes"):
        join(place.node(), "n9", 3)


def test_unneeded_node_ends(place: Place) -> None:
    one, spare = place.node(), place.node()
    (seat,) = meet(one)
    assert seat.size == 1
    waiting = after_a_moment(in_thread(join, spare, "n1", 1))
    assert spare.view().parked is not None
    one.finish(soon())
    with pytest.raises(RendezvousGracefulExitError):
        waiting.result(LIMIT_SECONDS)


def test_closed_run_accepts_only_a_new_incarnation(place: Place) -> None:
    one, two = place.node(), place.node()
    meet(one)
    two.close("the data is wrong", soon())
    closed = until(one, lambda view: view.closed is not None).closed
    assert closed is not None
    assert closed.why == "the data is wrong"
    with pytest.raises(RendezvousClosedError, match="the data is wrong"):
        join(two, "n1", 1)
    assert join(two, "n1", 1, anew=True).incarnation == 2


def test_excluded_node_needs_admit_to_rejoin(place: Place) -> None:
    one, two = place.node(), place.node()
    meet(one, two)
    two.order(Exclude(Aspect.NODE, "n0", "bad memory", "alice"), soon())
    fenced = until(one, lambda view: view.fenced is not None).fenced
    assert fenced is not None
    assert fenced.refusal is Refusal.EXCLUDED
    with pytest.raises(RendezvousStateError, match="bad memory"):
        join(one, "n0")
    two.order(Admit(Aspect.NODE, "n0", "alice"), soon())
    asked = [in_thread(join, one, "n0"), in_thread(join, two, "n1")]
    assert {future.result(LIMIT_SECONDS).size for future in asked} == {2}


# -- what is told -------------------------------------------------------------------------


def test_each_change_of_the_view_calls_the_watchers_from_another_thread(place: Place) -> None:
    one, two = place.node(), place.node()
    meet(one, two)
    seen: queue.SimpleQueue[tuple[View, int]] = queue.SimpleQueue()
    unwatch = one.watch(lambda view: seen.put((view, threading.get_ident())))
    two.notice("its machine is taken away", 30.0, soon())
    view, thread = seen.get(timeout=LIMIT_SECONDS)
    assert [notice.why for notice in view.notices] == ["its machine is taken away"]
    assert thread != threading.get_ident()
    two.leave("its machine is taken away", soon())
    while view.opened is None:
        view, _thread = seen.get(timeout=LIMIT_SECONDS)
    assert view == one.view()
    unwatch()
    one.leave("enough", soon())
    assert seen.empty()


def test_failing_watcher_affects_no_other(place: Place) -> None:
    one, two = place.node(), place.node()
    meet(one, two)

    one.watch(_fail)
    seen: queue.SimpleQueue[View] = queue.SimpleQueue()
    one.watch(seen.put)
    two.leave("enough", soon())
    assert seen.get(timeout=LIMIT_SECONDS).opened is not None
    assert one.view().error is None
    assert one.report(soon()).round == 2


def test_failed_worker_ends_the_round_for_all(place: Place) -> None:
    one, two = place.node(), place.node()
    first = meet(one, two)
    one.fail(a_failure("n0", 7), soon())
    opened = until(two, lambda view: view.opened is not None).opened
    assert opened is not None
    assert "exit code 7" in opened.why
    again = meet(one, two)
    assert [seat.round for seat in again] == [first[0].round + 1] * 2


def test_waiting_nodes_are_counted_until_admitted(place: Place) -> None:
    one, two = place.node(), place.node()
    bounds: dict[str, Any] = {"nodes": 1, "most": 2, "last_call_seconds": 0.05}
    join(one, "n0", **bounds)
    waiting = in_thread(join, two, "n1", **bounds)
    until(one, lambda view: view.waiting == 1)
    parked = until(two, lambda view: view.parked is not None).parked
    assert parked is not None
    assert not parked.spare
    assert join(one, "n0", **bounds).size == 2
    assert waiting.result(LIMIT_SECONDS).round == 2


def test_thread_failure_is_in_the_view_and_raised_by_the_next_call(place: Place) -> None:
    one, two = place.node(), place.node()
    meet(one, two)
    place.break_thread_of(one)
    two.leave("enough", soon())  # which wakes it
    error = until(one, lambda view: view.error is not None).error
    assert str(error) == BUG
    with pytest.raises(RendezvousError, match=BUG):
        join(one, "n0", seconds=1)


# -- requests -----------------------------------------------------------------------------


def test_call_without_a_seat_error_says_so(place: Place) -> None:
    one = place.node()
    one.leave("never mind", soon())  # nothing happens
    one.heartbeat()
    with pytest.raises(RendezvousStateError, match="finish: this node is in no round"):
        one.finish(soon())
    with pytest.raises(RendezvousStateError, match="fail: this node is in no round"):
        one.fail(a_failure(), soon())
    with pytest.raises(RendezvousStateError, match="has not joined"):
        one.notice("why", None, soon())


def test_report_describes_the_run(place: Place) -> None:
    looker = place.node()
    assert looker.report(soon()).settings is None
    meet(place.node(), place.node())
    report = looker.report(soon())
    assert (report.run_id, report.phase, report.round) == ("run", "sealed", 1)
    assert sorted(member.node.id for member in report.members) == ["n0", "n1"]
    brief = looker.brief_report(soon())
    assert (brief.phase, brief.reason) == (report.phase, report.reason)


def test_all_calls_may_come_from_any_thread(place: Place) -> None:
    one, two = place.node(), place.node()
    meet(one, two)
    calls = [in_thread(one.report, soon()) for _ in range(8)]
    calls += [in_thread(one.heartbeat) for _ in range(8)]
    for call in calls:
        call.result(LIMIT_SECONDS)
    assert one.view().error is None


def test_members_share_one_store(place: Place) -> None:
    one, two = place.node(), place.node()
    one.store().set("key", b"value")
    assert two.store().get("key", 5) == b"value"
    assert one.local_address(soon())


def test_shutdown_leaves_and_ends_a_join(place: Place) -> None:
    one, two, alone = place.node(), place.node(), place.node()
    meet(one, two)
    two.shutdown(soon())
    opened = until(one, lambda view: view.opened is not None).opened
    assert opened is not None
    assert opened.lost == ("127.0.0.1 pid 1",)
    waiting = after_a_moment(in_thread(join, alone, "n2"))
    alone.shutdown(soon())
    with pytest.raises(RendezvousStateError):
        waiting.result(LIMIT_SECONDS)
