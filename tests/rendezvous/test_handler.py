"""The handler over a coordinator that does as the test says."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from rallypoint.core.events import (
    Assignment,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
)
from rallypoint.core.state import Failure, Node, Settings, Verdict
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    ParameterError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous.coordinator import Coordinator, NodeStatus, Order, Report, Watcher
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.parameters import RendezvousParameters, RendezvousTimeout
from rallypoint.rendezvous.serverless.backends.contract import MemoryRendezvousBackend
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.rendezvous.view import View
from rallypoint.store.api import Store
from rallypoint.store.memory import MemoryStore

FENCED = Refused(Refusal.FENCED, "its lease lapsed")
REPLACED = Refused(Refusal.REPLACED, "replaced by node2")
OPENED = RoundOpened(1, 2, "host9 was lost", ("host9",))
CLOSED = RunClosed(1, 1, "someone", "", "enough", Verdict.CLOSED)


class FakeCoordinator(Coordinator):
    """Answers joins with the next of `answers`; remembers what was asked."""

    def __init__(self, *answers: BaseException | None) -> None:
        self.answers = list(answers)
        self.joins: list[tuple[Node, Settings, str, bool]] = []
        self.calls: list[tuple[str, Any, float]] = []
        self.told = View()
        self.watchers: list[Watcher] = []
        self.shared = MemoryStore()
        self.round = 0
        self.rank = 1

    def tell(self, **changes: Any) -> None:
        self.told = msgspec.structs.replace(self.told, **changes)
        for watcher in self.watchers:
            watcher(self.told)

    def join(
        self, node: Node, settings: Settings, deadline: Deadline, why: str, new_incarnation: bool
    ) -> Assignment:
        self.joins.append((node, settings, why, new_incarnation))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.round += 1
        seat = Assignment(1, self.round, self.rank, 3, 4, 12, 4, 12, "10.0.0.1", 77, 0, "all came")
        self.tell(assignment=seat, opened=None, waiting=0)
        return seat

    def _call(self, name: str, value: Any, deadline: Deadline) -> None:
        self.calls.append((name, value, deadline.timeout))

    def leave(self, why: str, deadline: Deadline) -> None:
        self._call("leave", why, deadline)

    def finish(self, deadline: Deadline) -> None:
        self._call("finish", None, deadline)

    def fail(self, failure: Failure, deadline: Deadline) -> None:
        self._call("fail", failure, deadline)

    def close(self, why: str, deadline: Deadline) -> None:
        self._call("close", why, deadline)

    def notice(self, why: str, seconds: float | None, deadline: Deadline) -> None:
        self._call("notice", (why, seconds), deadline)

    def order(self, event: Order, deadline: Deadline) -> None:
        raise AssertionError("the handler gives no orders")

    def heartbeat(self) -> None:
        raise AssertionError("the handler does not beat")

    def view(self) -> View:
        return self.told

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        self.watchers.append(watcher)
        return lambda: self.watchers.remove(watcher)

    def report(self, deadline: Deadline) -> Report:
        self._call("report", None, deadline)
        nodes = [NodeStatus(Node(id=place, address="h"), place) for place in ("waiting", "spare")]
        return Report("run", "sealed", 1, self.round, "at work", members=tuple(nodes))

    def participants(self, deadline: Deadline) -> tuple[Node, ...]:
        self._call("participants", None, deadline)
        return (Node(id="x", address="h"),)

    def local_address(self, deadline: Deadline) -> str:
        return "127.0.0.1"

    def store(self) -> Store:
        return self.shared

    def shutdown(self, deadline: Deadline) -> bool:
        self._call("shutdown", None, deadline)
        return True


def make(
    *answers: BaseException | None, **more: Any
) -> tuple[DynamicRendezvousHandler, FakeCoordinator]:
    coordinator = FakeCoordinator(*answers)
    settings = RendezvousSettings("run", 2, 4, RendezvousTimeout(join=9, close=3))
    return DynamicRendezvousHandler(coordinator, settings, **more), coordinator


def test_proposed_port_is_held_until_workers_start() -> None:
    handler, coordinator = make()
    ports = []
    for rank in (1, 2, 0, 0, 1):
        coordinator.rank = rank
        handler.next_rendezvous()
        ports.append(coordinator.joins[-1][0].port)
        outcome: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if rank != 0:
            outcome = pytest.raises(OSError, match="in use")
        with outcome:
            bind(ports[-1])
    assert ports[0] == ports[1] == ports[2]
    handler.shutdown()
    bind(ports[-1])


def test_port_is_not_held_outside_the_run() -> None:
    handler, coordinator = make(None, RendezvousTimeoutError("nobody came"), None)
    handler.next_rendezvous()
    with pytest.raises(RendezvousTimeoutError):
        handler.next_rendezvous()
    bind(coordinator.joins[-1][0].port)
    handler.next_rendezvous()
    handler.leave("enough")
    bind(coordinator.joins[-1][0].port)


def bind(port: int) -> None:
    with socket.socket() as workers:
        workers.bind(("127.0.0.1", port))


def test_info_matches_the_assignment() -> None:
    handler, coordinator = make()
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (1, 3)
    where = info.bootstrap_store_info
    assert where is not None
    assert (where.master_addr, where.master_port) == ("10.0.0.1", 77)
    assert info.assignment is coordinator.told.assignment
    assert (handler.round, handler.incarnation) == (1, 1)
    info.store.set("k", b"v")
    assert coordinator.shared.list() == ["round/1.1/k"]


def test_each_round_has_its_own_store() -> None:
    handler, _ = make()
    handler.next_rendezvous().store.set("k", b"v")
    assert handler.next_rendezvous().store.get_nowait("k") is None


def test_participants_are_fetched_on_demand() -> None:
    handler, coordinator = make()
    info = handler.next_rendezvous()
    assert coordinator.calls == []
    assert [node.id for node in info.participants] == ["x"]
    assert [node.id for node in info.wait_list] == ["waiting"]


def test_node_description() -> None:
    handler, coordinator = make(
        local_addr="10.9.9.9",
        node_rank=2,
        local_world_size=8,
        slot="pod-1",
        topology="rack-1",
        role="trainer",
    )
    handler.next_rendezvous()
    node, settings, why, new_incarnation = coordinator.joins[0]
    assert (node.address, node.node_rank, node.local_world_size) == ("10.9.9.9", 2, 8)
    assert (node.slot, node.topology, node.role) == ("pod-1", "rack-1", "trainer")
    assert node.id == handler.node_id
    assert node.port > 0
    assert settings == handler.settings.core()
    assert (why, new_incarnation) == ("", False)


@pytest.mark.cases("case-C6")
def test_new_port_is_proposed_under_the_same_id() -> None:
    handler, coordinator = make()
    coordinator.rank = 0
    for _ in range(5):
        handler.next_rendezvous()
    assert {join[0].id for join in coordinator.joins} == {handler.node_id}
    assert {join[0].address for join in coordinator.joins} == {"127.0.0.1"}
    assert len({join[0].port for join in coordinator.joins}) > 1


@pytest.mark.cases("case-A8")
def test_two_handlers_in_a_process_are_two_nodes() -> None:
    assert make()[0].node_id != make()[0].node_id


def test_reasons_to_join_again() -> None:
    handler, coordinator = make()
    handler.next_rendezvous()
    coordinator.tell(waiting=2)
    handler.next_rendezvous()
    coordinator.tell(opened=OPENED)
    handler.next_rendezvous()
    handler.next_rendezvous("a worker failed")
    whys = [join[2] for join in coordinator.joins]
    assert whys == ["", "2 nodes wait", "host9 was lost", "a worker failed"]


def test_new_incarnation_is_requested_once() -> None:
    handler, coordinator = make(new_incarnation=True)
    handler.next_rendezvous()
    handler.next_rendezvous()
    assert [join[3] for join in coordinator.joins] == [True, False]


def test_fenced_node_joins_under_a_new_id() -> None:
    handler, coordinator = make()
    handler.next_rendezvous()
    coordinator.tell(fenced=FENCED)
    handler.next_rendezvous()
    assert len({join[0].id for join in coordinator.joins}) == 2


class FencedAtTheDoor(FakeCoordinator):
    """Tells of the fencing with the answer to a join."""

    how = FENCED

    def join(self, *arguments: Any) -> Assignment:
        if self.answers and self.answers[0] is not None:
            self.told = View(fenced=self.how)
        return super().join(*arguments)


def test_member_learns_late_that_it_is_fenced() -> None:
    refused = RendezvousStateError("fenced")
    coordinator = FencedAtTheDoor(None, refused)
    handler = DynamicRendezvousHandler(coordinator, RendezvousSettings("run", 1, 2))
    handler.next_rendezvous()
    handler.next_rendezvous()
    first, second, third = (join[0].id for join in coordinator.joins)
    assert first == second != third
    coordinator.answers = [refused, refused]
    coordinator.told = View()
    with pytest.raises(RendezvousStateError):  # once: two nodes may want the same slot
        handler.next_rendezvous()


def test_i1_newcomer_replaced_before_its_first_round_gives_up() -> None:
    coordinator = FencedAtTheDoor(RendezvousStateError("replaced"))
    coordinator.how = REPLACED
    handler = DynamicRendezvousHandler(coordinator, RendezvousSettings("run", 1, 2), slot="pod-1")
    with pytest.raises(RendezvousStateError, match="replaced"):
        handler.next_rendezvous()
    assert len(coordinator.joins) == 1


def test_i1_replaced_member_does_not_join_again() -> None:
    handler, coordinator = make()
    handler.next_rendezvous()
    coordinator.tell(fenced=REPLACED)
    with pytest.raises(RendezvousStateError, match=r"replaced by node2; a replaced node"):
        handler.next_rendezvous()
    assert len(coordinator.joins) == 1


def test_newcomer_silent_for_too_long_joins_under_a_new_id() -> None:
    coordinator = FencedAtTheDoor(RendezvousStateError("its lease lapsed"))
    handler = DynamicRendezvousHandler(coordinator, RendezvousSettings("run", 1, 2))
    handler.next_rendezvous()
    assert len({join[0].id for join in coordinator.joins}) == 2


def test_excluded_node_keeps_its_id_and_does_not_retry() -> None:
    handler, coordinator = make(None, RendezvousStateError("excluded by alice"))
    handler.next_rendezvous()
    coordinator.tell(fenced=Refused(Refusal.EXCLUDED, "by alice"))
    with pytest.raises(RendezvousStateError, match="excluded by alice"):
        handler.next_rendezvous()
    assert len(coordinator.joins) == 2
    handler.next_rendezvous()  # it was admitted
    assert len({join[0].id for join in coordinator.joins}) == 1


@pytest.mark.parametrize("left", [25.0, timedelta(seconds=25), None])
def test_notice_is_given_in_seconds(left: float | timedelta | None) -> None:
    handler, coordinator = make()
    handler.notice("spot machine", left)
    (call,) = coordinator.calls
    assert call[:2] == ("notice", ("spot machine", None if left is None else 25.0))


def test_other_refusals_are_not_retried() -> None:
    handler, coordinator = make(None, RendezvousStateError("other bounds"))
    handler.next_rendezvous()
    with pytest.raises(RendezvousStateError, match="other bounds"):
        handler.next_rendezvous()
    assert len(coordinator.joins) == 2


def test_joins_of_two_threads_do_not_mix() -> None:
    handler, coordinator = make()
    inside, go = threading.Event(), threading.Event()
    join = coordinator.join

    def slow(*arguments: Any) -> Assignment:
        inside.set()
        assert go.wait(10)
        return join(*arguments)

    coordinator.join = slow  # type: ignore[method-assign, assignment]
    threads = [threading.Thread(target=handler.next_rendezvous) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert inside.wait(10)
    assert coordinator.joins == []
    go.set()
    for thread in threads:
        thread.join(10)
    assert len(coordinator.joins) == 2


def test_join_blocked_by_another_thread_times_out() -> None:
    handler, _ = make()
    handler._settings = RendezvousSettings("run", 1, 2, RendezvousTimeout(join=0.05))
    with handler._joining, pytest.raises(RendezvousTimeoutError, match="another thread"):
        handler.next_rendezvous()


def test_is_closed_and_waiting_without_a_request() -> None:
    handler, coordinator = make()
    assert not handler.is_closed()
    coordinator.tell(waiting=3)
    assert handler.num_nodes_waiting() == 0  # in no round (N1)
    handler.next_rendezvous()
    coordinator.tell(waiting=3)
    assert handler.num_nodes_waiting() == 3
    coordinator.tell(opened=OPENED, waiting=0)
    assert handler.num_nodes_waiting() == 1  # the round waits for this node
    coordinator.tell(opened=None, closed=CLOSED)
    assert handler.is_closed()
    assert coordinator.calls == []


def test_coordinator_failure_is_raised() -> None:
    handler, coordinator = make()
    coordinator.tell(error=ZeroDivisionError("a bug"))
    for call in (handler.is_closed, handler.num_nodes_waiting, handler.view):
        with pytest.raises(RendezvousStateError, match="a bug"):
            call()
    coordinator.tell(error=RendezvousConnectionError("away"))
    with pytest.raises(RendezvousConnectionError, match="away"):
        handler.is_closed()


def test_requests_are_bounded_by_the_close_timeout() -> None:
    handler, coordinator = make()
    failure = Failure("h", 0, 0, 1)
    handler.set_closed()
    handler.finish()
    handler.fail(failure)
    handler.leave("bye")
    assert handler.shutdown()
    assert handler.shutdown()
    names = [(name, value) for name, value, _ in coordinator.calls]
    assert names == [
        ("close", "set_closed() was called"),
        ("finish", None),
        ("fail", failure),
        ("leave", "bye"),
        ("shutdown", None),
    ]
    assert {limit for _, _, limit in coordinator.calls} == {3.0}
    assert coordinator.watchers == []


def test_on_change() -> None:
    handler, coordinator = make()
    woken = threading.Event()
    end = handler.on_change(woken.set)
    coordinator.tell(waiting=1)
    assert woken.is_set()
    woken.clear()
    end()
    coordinator.tell(waiting=2)
    assert not woken.is_set()


def test_wait_for_change() -> None:
    handler, coordinator = make()
    view = handler.view()
    assert handler.wait_for_change(0.01) == view
    assert handler.wait_for_change(timedelta(seconds=0)) == view
    coordinator.tell(waiting=1)
    assert handler.wait_for_change(10, view).waiting == 1  # nothing between is missed
    later = threading.Timer(0.05, lambda: coordinator.tell(waiting=2))
    later.start()
    began = time.monotonic()
    assert handler.wait_for_change(10).waiting == 2
    assert time.monotonic() - began < 5
    later.join()


def test_names() -> None:
    handler, _ = make(backend_name="x", run_id="other")
    assert (handler.get_backend(), handler.get_run_id()) == ("x", "other")
    assert handler.use_agent_store is False
    assert (handler.round, handler.incarnation) == (0, 0)
    with pytest.raises(ParameterError, match="node_rank=-1"):
        make(node_rank=-1)


def test_from_coordinator_takes_the_hints() -> None:
    params = RendezvousParameters(
        "x", "", "run", 1, 2, "10.0.0.5", 1, 4, slot="s", topology="t", role="r"
    )
    coordinator = FakeCoordinator()
    settings = RendezvousSettings.from_params(params)
    handler = DynamicRendezvousHandler.from_coordinator(coordinator, settings, params, "x")
    handler.next_rendezvous()
    node = coordinator.joins[0][0]
    assert (node.address, node.node_rank, node.local_world_size) == ("10.0.0.5", 1, 4)
    assert (node.slot, node.topology, node.role) == ("s", "t", "r")


def test_from_backend_in_the_form_of_torch() -> None:
    handler = DynamicRendezvousHandler.from_backend(
        "run",
        MemoryStore(),
        MemoryRendezvousBackend(),
        1,
        1,
        "127.0.0.1",
        RendezvousTimeout(5),
        1,
        3,
    )
    assert handler.settings.lease == timedelta(seconds=3)
    assert handler.get_backend() == "memory"
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size, len(info.participants)) == (0, 1, 1)
    handler.set_closed()
    assert handler.is_closed()
    assert handler.shutdown()
