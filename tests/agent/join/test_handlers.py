from datetime import timedelta

import pytest

from rallypoint.agent.join.handlers import NAMED_NODES, ElasticHandler, StaticHandler, agent_handler
from rallypoint.core.events import Assignment
from rallypoint.core.state import Failure, Settings, Verdict
from rallypoint.errors import RendezvousClosedError, RendezvousStateError
from rallypoint.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from rallypoint.rendezvous.coordinator import Report
from rallypoint.rendezvous.handler import DynamicRendezvousHandler
from rallypoint.rendezvous.view import View
from rallypoint.store.api import Store

FAILURE = Failure("node-a", 0, 0, 1)


class Static(RendezvousHandler):
    """Meets at once, and is told nothing."""

    place: RendezvousStoreInfo | None = RendezvousStoreInfo("10.0.0.1", 99)

    def __init__(self) -> None:
        self.log: list[str] = []

    def get_backend(self) -> str:
        return "static"

    def get_run_id(self) -> str:
        return "run"

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(_NO_STORE, 1, 3, self.place)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        raise AssertionError("an agent never closes a run")

    def num_nodes_waiting(self) -> int:
        return 0

    def pre_shutdown(self) -> None:
        self.log.append("pre_shutdown")

    def shutdown(self) -> bool:
        self.log.append("shutdown")
        return True


class _NoStore(Store):
    def _call(self, request: object, timeout: float) -> object:
        raise AssertionError("not used")

    def clone(self) -> Store:
        return self


_NO_STORE = _NoStore()


def test_static_round_gets_an_assignment() -> None:
    handler = agent_handler(Static(), 2, 1)
    assert isinstance(handler, StaticHandler)
    found = handler.next_round("")
    assert found.master == ("10.0.0.1", 99)
    assert found.assignment == Assignment(
        1, 1, 1, 3, 2, 6, 2, 6, "10.0.0.1", 99, 0, "all nodes have met"
    )
    assert handler.next_round("again").assignment.round == 2
    assert handler.view() == View()
    assert handler.waiting_for() is None
    handler.notice("nobody is told", None)


def test_static_node_counts_its_own_failures() -> None:
    handler = StaticHandler(Static(), 1, 1)
    handler.next_round("")
    handler.fail(FAILURE)
    assert handler.next_round("").assignment.restarts == 1
    handler.fail(FAILURE)
    with pytest.raises(RendezvousClosedError, match="max_restarts=1 is used up"):
        handler.next_round("")
    closed = handler.view().closed
    assert closed is not None
    assert (closed.verdict, closed.failures) == (Verdict.BUDGET, (FAILURE, FAILURE))


def test_static_node_pauses_after_repeated_failures() -> None:
    handler = StaticHandler(Static(), 1, 5)
    assert handler.next_round("").assignment.failing == 0
    for count in (1, 2):
        handler.fail(FAILURE)
        assert handler.next_round("").assignment.failing == count


def test_static_handler_must_give_a_bootstrap_address() -> None:
    static = Static()
    static.place = None
    with pytest.raises(RendezvousStateError, match="bootstrap"):
        StaticHandler(static, 1, 0).next_round("")


def test_leave_shuts_the_handler_down() -> None:
    static = Static()
    StaticHandler(static, 1, 0).leave("done")
    assert static.log == ["pre_shutdown", "shutdown"]


class Dynamic(DynamicRendezvousHandler):
    """Answers without a coordinator."""

    wanted = Settings(2, 4)

    def __init__(self, seat: Assignment | None, error: Exception | None = None) -> None:
        self.seat, self.error, self.log = seat, error, [""]

    def next_rendezvous(self, why: str = "") -> RendezvousInfo:
        self.log.append(why)
        return RendezvousInfo(_NO_STORE, 0, 1, None, assignment=self.seat)

    def view(self) -> View:
        if self.error is not None:
            raise self.error
        return View(waiting=3)

    def waiting_for(self) -> Report:
        self.log.append("brief")
        return Report("run", "gathering", 1, 1, "why", settings=self.wanted)

    def report(self) -> Report:
        self.log.append("whole")
        return Report("run", "gathering", 1, 1, "why", settings=self.wanted)

    def notice(self, why: str, seconds: float | timedelta | None = None) -> None:
        self.log.append(f"notice {why} {seconds}")

    def leave(self, why: str = "") -> None:
        self.log.append(f"leave {why}")

    def shutdown(self) -> bool:
        self.log.append("shutdown")
        return True


SEAT = Assignment(1, 4, 0, 1, 0, 1, 0, 1, "h", 5, 0, "why")


def test_elastic_handler_is_wrapped() -> None:
    dynamic = Dynamic(SEAT)
    handler = agent_handler(dynamic, 1, 0)
    assert isinstance(handler, ElasticHandler)
    found = handler.next_round("a node was lost")
    assert (found.assignment, found.master) == (SEAT, ("h", 5))
    handler.leave("done")
    assert dynamic.log == ["", "a node was lost", "leave done", "shutdown"]


def test_callback_gets_the_view() -> None:
    dynamic, views = Dynamic(SEAT), list[View]()
    end = ElasticHandler(dynamic).on_change(views.append)
    dynamic._notify()
    end()
    dynamic._notify()
    assert views == [View(waiting=3)]


def test_error_of_a_background_thread_is_in_the_view() -> None:
    error = RendezvousStateError("the thread failed")
    assert ElasticHandler(Dynamic(SEAT, error)).view().error is error


def test_members_are_requested_in_small_runs() -> None:
    dynamic = Dynamic(SEAT)
    handler = ElasticHandler(dynamic)
    handler.waiting_for()
    handler.waiting_for()
    assert dynamic.log[1:] == ["brief", "whole", "whole"]
    many = Dynamic(SEAT)
    many.wanted = Settings(2, NAMED_NODES + 1)
    handler = ElasticHandler(many)
    handler.waiting_for()
    handler.waiting_for()
    assert many.log[1:] == ["brief", "brief"]


def test_notice_reaches_the_handler() -> None:
    dynamic = Dynamic(SEAT)
    ElasticHandler(dynamic).notice("SIGUSR2", 60.0)
    assert dynamic.log[1:] == ["notice SIGUSR2 60.0"]
