"""The shared coordinator: step by step under a manual clock, and with real threads."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from rallypoint.core.events import Admit, Assignment, Exclude, Refusal
from rallypoint.core.state import Aspect, Failure, Node
from rallypoint.deadline import Deadline
from rallypoint.errors import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.parameters import RendezvousParameters, RendezvousTimeout
from rallypoint.rendezvous.registry import create_handler
from rallypoint.rendezvous.serverless.backends.contract import MemoryRendezvousBackend
from rallypoint.rendezvous.serverless.backends.store import (
    FileRendezvousBackend,
    StoreRendezvousBackend,
)
from rallypoint.rendezvous.serverless.coordinator import ServerlessCoordinator
from rallypoint.rendezvous.settings import RendezvousSettings
from rallypoint.rendezvous.view import View
from rallypoint.store.memory import MemoryStore
from rallypoint.testing.fakes import ManualClock


def settings(least: int = 2, most: int = 4, **more: Any) -> RendezvousSettings:
    timeout = RendezvousTimeout(join=20, last_call=more.pop("last_call", 2), close=5)
    return RendezvousSettings("run", least, most, timeout, **{"lease": 9, **more})


class Cluster:
    """Nodes in one thread, over one backend, each with a clock of its own."""

    def __init__(self, least: int = 2, most: int = 4, **more: Any) -> None:
        self.store = MemoryStore()
        self.settings = settings(least, most, **more)
        self.clocks: dict[str, ManualClock] = {}
        self.nodes: dict[str, ServerlessCoordinator] = {}

    def add(self, *names: str, why: str = "") -> None:
        for name in names:
            if name not in self.nodes:
                # No two clocks agree, and nothing depends on it (case-B2).
                self.clocks[name] = ManualClock(1e6 * len(self.clocks))
                backend = StoreRendezvousBackend(self.store, "run")
                self.nodes[name] = ServerlessCoordinator(
                    backend, self.store, self.settings, clock=self.clocks[name], threaded=False
                )
            node = Node(id=name, address=f"host{name}", port=1, pid=1)
            core = self.settings.core()
            self.nodes[name].ask_to_join(node, core, Deadline(5), why, False)

    def run(self, seconds: float, *stopped: str, step: float = 0.5) -> None:
        """Let time pass for all; all but the stopped ones do their steps."""
        for _ in range(round(seconds / step)):
            for name, node in self.nodes.items():
                self.clocks[name].advance(step)
                if name not in stopped:
                    node.step()

    def seats(self, *names: str) -> list[tuple[int, int, int] | None]:
        """Return (round, rank, size) of each."""
        found = [self.nodes[name].outcome() for name in names]
        return [None if a is None else (a.round, a.rank, a.size) for a in found]

    def view(self, name: str) -> View:
        return self.nodes[name].view()


def test_round_forms_after_the_last_call() -> None:
    cluster = Cluster(last_call=2)
    cluster.add("a", "b")
    cluster.run(1.5)
    assert cluster.seats("a", "b") == [None, None]
    cluster.run(1)
    assert cluster.seats("a", "b") == [(1, 0, 2), (1, 1, 2)]
    members = cluster.nodes["b"].participants(Deadline(1))
    assert [node.id for node in members] == ["a", "b"]


def test_round_with_max_nodes_forms_at_once() -> None:
    cluster = Cluster(2, 2)
    cluster.add("a", "b")
    cluster.nodes["a"].step()
    assert cluster.seats("a", "b") == [(1, 0, 2), (1, 1, 2)]


@pytest.mark.cases("case-B1", "case-B2")
def test_silent_node_is_lost_and_the_others_continue() -> None:
    cluster = Cluster(2, 3)
    cluster.add("a", "b", "c")
    cluster.run(30)
    assert cluster.view("a").opened is None  # nobody is lost wrongly
    cluster.run(8, "b")
    assert cluster.view("a").opened is None
    cluster.run(4.5, "b")
    for name in ("a", "c"):
        opened = cluster.view(name).opened
        assert opened is not None
        assert opened.lost == ("hostb pid 1",)
        assert "lease lapsed" in opened.why
    cluster.add("a", "c")
    cluster.run(0.5, "b")
    assert cluster.seats("a", "c") == [(2, 0, 2), (2, 1, 2)]
    fenced = cluster.nodes["b"]
    fenced.step()  # L2: the first thing it hears
    assert fenced.view().fenced is not None
    with pytest.raises(RendezvousStateError, match="lease lapsed"):
        cluster.add("b")


def test_rounds_in_quick_succession_lose_nobody() -> None:
    cluster = Cluster(2, 2, max_restarts=None)
    cluster.add("a", "b")
    for number in range(1, 31):  # one a second; a sign of life is due every three
        for node in cluster.nodes.values():
            node.step()
        assert cluster.seats("a", "b") == [(number, 0, 2), (number, 1, 2)]
        cluster.run(1)
        failure = Failure(node="hosta", rank=0, local_rank=0, exit_code=1)
        cluster.nodes["a"].fail(failure, Deadline(5))
        cluster.add("a", "b")
    assert [cluster.view(name).fenced for name in "ab"] == [None, None]


def test_node_lost_before_it_knew_its_seat_is_notified() -> None:
    cluster = Cluster(2, 3)
    cluster.add("a", "b")
    del cluster.nodes["b"]  # its join was stored, and the answer never came
    cluster.run(12)
    with pytest.raises(RendezvousStateError, match="lease lapsed"):
        cluster.add("b")
    assert cluster.view("b").fenced is not None


@pytest.mark.cases("case-B5")
def test_outage_of_the_failure_detector_loses_nobody() -> None:
    cluster = Cluster(2, 3)
    cluster.add("a", "b", "c")
    cluster.run(5)
    cluster.run(40, "a", "b", "c")
    cluster.run(5)
    assert [cluster.view(name).opened for name in "abc"] == [None] * 3
    assert [cluster.view(name).fenced for name in "abc"] == [None] * 3


def test_newcomer_waits_and_is_admitted() -> None:
    cluster = Cluster(2, 4)
    cluster.add("a", "b")
    cluster.run(3)
    cluster.add("c")
    cluster.run(0.5)
    assert cluster.view("c").parked is not None
    assert [cluster.view(name).waiting for name in "ab"] == [1, 1]
    cluster.add("a", why="nodes wait")
    cluster.run(0.5)
    opened = cluster.view("b").opened
    assert opened is not None
    assert "nodes wait" in opened.why
    cluster.add("b")
    cluster.run(0.5)
    assert cluster.seats("a", "b", "c") == [(2, 0, 3), (2, 1, 3), (2, 2, 3)]


def test_node_that_was_parked_rejoins_with_its_full_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, clock = Cluster(2, 2, max_restarts=None), ManualClock()
    parked, waits, limits = threading.Event(), threading.Event(), list[float]()
    cluster.add("a", "c", "b")
    spare, changed = cluster.nodes["b"], cluster.nodes["b"]._loop.changed
    wait = changed.wait_for

    def wait_for(predicate: Callable[[], bool], timeout: float) -> bool:
        if timeout == threading.TIMEOUT_MAX:
            parked.set()
            return wait(predicate, 10)
        if not parked.is_set():
            clock.advance(timeout)  # its time runs out while it is a spare
            return False
        if not predicate():
            limits.append(timeout)
            waits.set()
        return wait(predicate, timeout)

    monkeypatch.setattr(changed, "wait_for", wait_for)
    node, core, seats = Node(id="b", address="hostb", port=1, pid=1), cluster.settings.core(), []
    joining = threading.Thread(
        target=lambda: seats.append(spare.join(node, core, Deadline(10, clock), "", False))
    )
    joining.start()
    assert parked.wait(10)
    cluster.nodes["a"].leave("", Deadline(5))
    cluster.add("c")
    cluster.nodes["c"].fail(Failure(node="hostc", rank=0, local_rank=0, exit_code=1), Deadline(5))
    for _ in range(2):  # it is a candidate; its round was sealed, and is over already
        waits.clear()
        spare.step()
        assert waits.wait(10)
    cluster.add("c")
    for _ in range(100):
        spare.step()
        joining.join(0.05)
        if not joining.is_alive():
            break
    assert len(limits) == 2
    assert min(limits) > 5
    assert [(seat.round, seat.size) for seat in seats] == [(3, 2)]


def test_leaving_opens_a_round_without_the_leaver() -> None:
    cluster = Cluster(1, 3)
    cluster.add("a", "b", "c")
    cluster.run(0.5)
    cluster.nodes["b"].leave("work elsewhere", Deadline(5))
    cluster.run(0.5)
    opened = cluster.view("a").opened
    assert opened is not None
    assert "left: work elsewhere" in opened.why
    assert cluster.view("b") == View()
    assert cluster.view("c").closed is None  # L3


@pytest.mark.cases("case-C2")
@pytest.mark.parametrize("away", [0, 0.5, 1, 5, 20])
def test_leaving_and_rejoining_always_has_the_same_outcome(away: float) -> None:
    cluster = Cluster(1, 3)
    cluster.add("a", "b", "c")
    cluster.run(0.5)
    for number in (2, 4):
        cluster.nodes["b"].leave("", Deadline(5))
        cluster.run(0.5)
        cluster.add("a", "c")
        cluster.run(0.5 + away)
        assert cluster.seats("a", "c") == [(number, 0, 2), (number, 1, 2)]
        cluster.add("b")
        cluster.run(0.5)
        assert cluster.view("b").parked is not None
        cluster.add("a")
        cluster.run(0.5)
        cluster.add("c")
        cluster.run(0.5)
        sizes = {seat[::2] for seat in cluster.seats("a", "b", "c") if seat}
        assert sizes == {(number + 1, 3)}


def test_failure_opens_a_round() -> None:
    cluster = Cluster(2, 2)
    cluster.add("a", "b")
    cluster.run(0.5)
    cluster.nodes["a"].fail(Failure("hosta", 0, 0, 3), Deadline(5))
    cluster.run(0.5)
    for name in "ab":
        opened = cluster.view(name).opened
        assert opened is not None
        assert "exit code 3" in opened.why


@pytest.mark.cases("case-C7")
def test_finishing() -> None:
    cluster = Cluster(2, 2)
    cluster.add("a", "b")
    cluster.run(0.5)
    cluster.add("spare")
    cluster.nodes["a"].finish(Deadline(5))
    cluster.run(0.5)
    assert cluster.view("b").closed is None
    cluster.nodes["b"].finish(Deadline(5))
    cluster.run(0.5)
    closed = cluster.view("a").closed
    assert closed is not None
    assert closed.finished
    with pytest.raises(RendezvousGracefulExitError):
        cluster.nodes["spare"].outcome()
    with pytest.raises(RendezvousClosedError, match="finished"):
        cluster.add("late")


def test_closing() -> None:
    cluster = Cluster(2, 2)
    cluster.add("a", "b")
    cluster.run(0.5)
    cluster.nodes["a"].close("no money left", Deadline(5))
    cluster.run(0.5)
    for name in "ab":
        with pytest.raises(RendezvousClosedError, match="no money left"):
            cluster.nodes[name].outcome()
    with pytest.raises(RendezvousClosedError, match="hosta"):
        cluster.add("late")
    late = cluster.nodes["late"]
    node = Node(id="late", address="h", port=1)
    late.ask_to_join(node, cluster.settings.core(), Deadline(5), "", True)
    assert late.report(Deadline(5)).incarnation == 2
    assert late.view().closed is None


def test_user_text_is_one_clean_line() -> None:
    cluster = Cluster(2, 2)
    cluster.add("a", "b")
    cluster.run(0.5)
    cluster.nodes["a"].close("no\x1b[2J money\nleft", Deadline(5))
    cluster.run(0.5)
    with pytest.raises(RendezvousClosedError, match=r"no\ufffd\[2J money left"):
        cluster.nodes["b"].outcome()


def test_node_that_reopens_a_run_is_in_it() -> None:
    cluster = Cluster(least=1, most=1)
    cluster.add("a")
    a, host = cluster.nodes["a"], cluster.nodes["a"]._loop
    a.close("enough", Deadline(5))
    cluster.run(1)
    forget = host.forget

    def forget_and_look_again() -> None:
        forget()
        host.step()  # as its own thread may, before the join has its turn

    host.forget = forget_and_look_again  # type: ignore[method-assign]
    node = Node(id="a", address="hosta", port=1, pid=1)
    a.ask_to_join(node, cluster.settings.core(), Deadline(5), "", True)
    seat = a.outcome()
    assert seat is not None
    assert (seat.incarnation, seat.rank) == (2, 0)


def test_caller_that_never_joined_sees_its_close() -> None:
    coordinator = ServerlessCoordinator(MemoryRendezvousBackend(), MemoryStore(), settings())
    coordinator.close("not today", Deadline(5))
    closed = coordinator.view().closed
    assert closed is not None
    assert closed.why == "not today"


def test_other_bounds_are_refused() -> None:
    cluster = Cluster(2, 4)
    cluster.add("a")
    cluster.settings = settings(2, 5)
    with pytest.raises(RendezvousStateError, match="max_nodes=5"):
        cluster.add("b")


def test_different_shared_settings_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(2, 4)
    cluster.add("a")
    assert caplog.messages == []
    cluster.settings = settings(2, 4, lease=6)
    cluster.add("b")
    (line,) = caplog.messages
    assert "was opened by hosta pid 1 with lease=9 (not 6)" in line


def test_idle_node_writes_only_heartbeats() -> None:
    cluster = Cluster(1, 1)
    cluster.add("a")
    cluster.run(0.5)
    before = StoreRendezvousBackend(cluster.store, "run").get_state()
    cluster.run(2)
    assert StoreRendezvousBackend(cluster.store, "run").get_state() == before
    cluster.run(30)
    after = StoreRendezvousBackend(cluster.store, "run").get_state()
    assert before is not None
    assert after is not None
    writes = int(str(after[1]).split()[1][:-1]) - int(str(before[1]).split()[1][:-1])
    assert 9 <= writes <= 11


def test_missed_round_is_caught_up() -> None:
    cluster = Cluster(2, 2)
    cluster.add("a", "b")  # sealed; "a" has not looked since it asked
    cluster.nodes["b"].leave("", Deadline(5))
    cluster.nodes["a"].step()
    assert cluster.view("a").opened is not None
    assert cluster.seats("a") == [None]
    cluster.add("a", "b")
    cluster.nodes["a"].step()
    assert cluster.seats("a", "b") == [(2, 0, 2), (2, 1, 2)]


def test_p1_all_members_of_the_round_see_a_notice() -> None:
    cluster = Cluster(2, 2)
    cluster.add("a", "b")
    cluster.run(1)
    cluster.nodes["b"].notice("spot machine", 25.0, Deadline(1))
    cluster.run(1)
    for name in ("a", "b"):
        (notice,) = cluster.view(name).notices
        assert (notice.node, notice.why, notice.seconds) == ("b", "spot machine", 25.0)
    cluster.nodes["b"].leave("spot machine", Deadline(1))
    cluster.run(1)
    assert cluster.view("a").notices == ()
    with pytest.raises(RendezvousStateError, match="notice: this node has not joined"):
        cluster.nodes["b"].notice("again", None, Deadline(1))


def test_h1_node_is_excluded_for_a_time() -> None:
    cluster = Cluster(1, 3, last_call=1)
    cluster.add("a", "b", "c")
    cluster.run(1)
    out = Exclude(Aspect.ADDRESS, "hostb", "bad memory", "alice", 30.0)
    cluster.nodes["a"].order(out, Deadline(1))
    cluster.run(0.5)
    fenced = cluster.view("b").fenced
    assert fenced is not None
    assert fenced.refusal is Refusal.EXCLUDED
    assert cluster.view("b").assignment is None
    cluster.add("a", "c")
    cluster.run(1)
    assert cluster.seats("a", "c") == [(2, 0, 2), (2, 1, 2)]
    with pytest.raises(RendezvousStateError, match="hostb was excluded by alice for 30 s: bad"):
        cluster.add("b")
    (line,) = cluster.nodes["c"].report(Deadline(1)).exclusions
    assert (line.aspect, line.name, line.remaining_seconds) == ("address", "hostb", None)
    cluster.run(31)
    cluster.add("b")  # the same process, as a newcomer
    cluster.run(1)
    assert cluster.view("a").waiting == 1


def test_h1_admitted_node_may_come_back_at_once() -> None:
    cluster = Cluster(1, 2)
    cluster.add("a", "b")
    cluster.run(1)
    cluster.nodes["a"].order(Exclude(Aspect.NODE, "b", "bad", "alice"), Deadline(1))
    cluster.nodes["a"].order(Admit(Aspect.NODE, "b", "alice"), Deadline(1))
    cluster.run(1)
    fenced = cluster.view("b").fenced
    assert fenced is not None  # it saw only that it is in no place any more
    cluster.add("a")
    cluster.run(1)
    cluster.add("b")
    cluster.run(1)
    assert cluster.view("a").waiting == 1


def test_report() -> None:
    cluster = Cluster(2, 4)
    cluster.add("a")
    report = cluster.nodes["a"].report(Deadline(5))
    assert (report.run_id, report.phase, report.round) == ("run", "gathering", 1)
    assert "1 of at least 2 nodes" in report.reason
    assert [(m.node.id, m.place) for m in report.members] == [("a", "candidate")]
    assert "backend core" in report.server


def test_requests_need_a_seat() -> None:
    coordinator = ServerlessCoordinator(MemoryRendezvousBackend(), MemoryStore(), settings())
    with pytest.raises(RendezvousStateError, match="in no round"):
        coordinator.finish(Deadline(1))
    coordinator.leave("", Deadline(1))
    coordinator.heartbeat()
    assert coordinator.shutdown(Deadline(1))


# -- with threads ---------------------------------------------------------------------------


class Handlers:
    """Handlers over one store, each used from a thread of its own."""

    def __init__(self, store: MemoryStore, **more: Any) -> None:
        self.store, self.more = store, more
        self.all: list[DynamicRendezvousHandler] = []

    def make(self, least: int = 2, most: int = 5) -> DynamicRendezvousHandler:
        held = settings(least, most, **{"lease": 0.9, "last_call": 0.3, **self.more})
        backend = StoreRendezvousBackend(self.store, "run")
        coordinator = ServerlessCoordinator(backend, self.store, held)
        handler = DynamicRendezvousHandler(coordinator, held, local_addr="127.0.0.1")
        self.all.append(handler)
        return handler


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    made = Handlers(MemoryStore())
    yield made
    for handler in made.all:
        handler.shutdown()


@contextmanager
def joining(*handlers: DynamicRendezvousHandler) -> Iterator[Callable[[], list[Assignment]]]:
    """Let all join at once; the function given waits for them and returns their seats."""
    seats: dict[int, Assignment] = {}

    def join(index: int, handler: DynamicRendezvousHandler) -> None:
        seat = handler.next_rendezvous().assignment
        assert seat is not None
        seats[index] = seat

    threads = [threading.Thread(target=join, args=pair) for pair in enumerate(handlers)]
    for thread in threads:
        thread.start()

    def wait() -> list[Assignment]:
        for thread in threads:
            thread.join(20)
        return [seats[index] for index in range(len(handlers))]

    yield wait
    for thread in threads:
        thread.join(20)


def stop_silently(handler: DynamicRendezvousHandler) -> None:
    coordinator = handler._coordinator
    assert isinstance(coordinator, ServerlessCoordinator)
    coordinator._loop.halt()


def test_main_job(handlers: Handlers) -> None:
    nodes = [handlers.make() for _ in range(4)]
    with joining(*nodes) as wait:
        seats = wait()
    assert sorted(seat.rank for seat in seats) == [0, 1, 2, 3]
    assert {seat.round for seat in seats} == {1}
    assert len({(seat.master_addr, seat.master_port) for seat in seats}) == 1
    dead, *rest = nodes
    woken = threading.Event()
    rest[0].on_change(woken.set)
    stop_silently(dead)
    assert woken.wait(5)
    for node in rest:
        view = node.view()
        while view.opened is None:
            before = view
            view = node.wait_for_change(5, view)
            assert view != before
        assert len(view.opened.lost) == 1
        assert node.num_nodes_waiting() >= 1
    with joining(*rest) as wait:
        seats = wait()
    assert [(seat.round, seat.size) for seat in seats] == [(2, 3)] * 3
    newcomer = handlers.make()
    with joining(newcomer) as wait_for_newcomer:
        view = rest[0].view()
        while not view.waiting:
            view = rest[0].wait_for_change(5, view)
        with joining(*rest) as wait:
            seats = wait()
        seats += wait_for_newcomer()
    assert sorted(seat.rank for seat in seats) == [0, 1, 2, 3]
    assert {(seat.round, seat.size) for seat in seats} == {(3, 4)}
    for node in [*rest, newcomer]:
        node.finish()
    view = newcomer.view()
    while view.closed is None:
        view = newcomer.wait_for_change(5, view)
    assert view.closed.finished


def test_join_times_out_with_what_is_missing(handlers: Handlers) -> None:
    handlers.more["last_call"] = 1
    held = RendezvousSettings("run", 2, 4, RendezvousTimeout(join=0.3))
    coordinator = ServerlessCoordinator(
        StoreRendezvousBackend(handlers.store, "run"), handlers.store, held
    )
    handler = DynamicRendezvousHandler(coordinator, held, local_addr="127.0.0.1")
    with pytest.raises(RendezvousTimeoutError) as caught:
        handler.next_rendezvous()
    for part in ("'run'", "0.3 s", "join_timeout", "1 of at least 2", "backend core"):
        assert part in str(caught.value)
    assert coordinator.report(Deadline(5)).members == ()  # it has withdrawn
    handler.shutdown()


# -- between processes ----------------------------------------------------------------------


def agent(path: str, pipe: Connection) -> None:
    params = RendezvousParameters(
        "file", path, "run", 2, 3, "127.0.0.1", lease=1.5, last_call=25, join=30, close=5
    )
    handler = create_handler(params)
    assert isinstance(handler, DynamicRendezvousHandler)
    while True:
        info = handler.next_rendezvous()
        info.store.set(f"rank{info.rank}", b"here")
        keys = [f"rank{rank}" for rank in range(info.world_size)]
        info.store.wait(keys, 10)
        pipe.send((handler.round, info.rank, info.world_size, len(info.participants)))
        if info.world_size == 2:
            break
        view = handler.view()
        while not handler.num_nodes_waiting():
            view = handler.wait_for_change(30, view)
    handler.finish()
    handler.shutdown()
    pipe.send("done")


@pytest.mark.integration
@pytest.mark.cases("case-B1")
def test_processes_over_a_file_survive_a_killed_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = str(tmp_path / "job")
    agents, pipes = [], []
    for _ in range(3):
        mine, theirs = context.Pipe()
        process = context.Process(target=agent, args=(path, theirs))
        process.start()
        agents.append(process)
        pipes.append(mine)

    def hear(pipe: Connection) -> Any:
        assert pipe.poll(40)
        return pipe.recv()

    try:
        first = [hear(pipe) for pipe in pipes]
        assert sorted(first) == [(1, rank, 3, 3) for rank in range(3)]
        agents[1].kill()
        rest = [pipes[0], pipes[2]]
        assert sorted(hear(pipe) for pipe in rest) == [(2, 0, 2, 2), (2, 1, 2, 2)]
        assert [hear(pipe) for pipe in rest] == ["done", "done"]
        for process in (agents[0], agents[2]):
            process.join(20)
            assert process.exitcode == 0
    finally:
        for process in agents:
            process.kill()
            process.join(10)


def test_the_file_backend_by_name(tmp_path: Path) -> None:
    for endpoint, config in ((f"file://{tmp_path}/a", {}), ("", {"store_path": f"{tmp_path}/b"})):
        handler = create_handler(
            RendezvousParameters("file", endpoint, "run", 1, 1, "127.0.0.1", config=config)
        )
        assert handler.get_backend() == "file"
        assert handler.next_rendezvous().rank == 0
        assert handler.shutdown()
    assert FileRendezvousBackend(tmp_path / "a", "run").get_state() is not None
