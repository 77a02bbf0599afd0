import pytest

from rallypoint.agent.policy import events as e
from rallypoint.agent.policy.view_events import ViewTracker, events_of, join_failed
from rallypoint.core.events import (
    Assignment,
    NoticeGiven,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
)
from rallypoint.core.state import Failure, Verdict
from rallypoint.errors import (
    AuthenticationError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous.view import View

FAILURE = Failure("n", 0, 0, 1)
SEAT = Assignment(1, 1, 0, 2, 0, 2, 0, 2, "10.0.0.1", 7, 0, "all came")
CLOSED = RunClosed(1, 1, "a", "noon", "enough", Verdict.BUDGET, (FAILURE,))
FENCED = Refused(Refusal.FENCED, "its lease lapsed")


def test_a_view_has_the_events_that_the_view_before_did_not_have() -> None:
    fenced, opened = Refused(Refusal.FENCED, "x"), RoundOpened(1, 2, "y", ("z",))
    full = View(waiting=2, opened=opened, closed=CLOSED, fenced=fenced, error=ValueError("e"))
    assert [type(event) for event in events_of(full, View())] == [
        e.AgentFailed,
        e.Fenced,
        e.RunClosed,
        e.RoundOpened,
        e.NodesWaiting,
    ]
    assert events_of(full, full) == [e.RoundOpened(1, 2, "y", ("z",))]
    replaced = View(fenced=Refused(Refusal.REPLACED, "by b"))
    assert events_of(replaced, View()) == [e.Fenced("by b", replaced=True)]
    assert events_of(View(), View(waiting=2)) == [e.NodesWaiting(0)]


def test_notices_say_whether_they_are_about_this_node() -> None:
    notices = tuple(NoticeGiven(1, 1, n, n.upper(), "spot", "alice", 25.0) for n in ("a", "b"))
    view = View(notices=notices)
    assert events_of(view, View(), "b") == [
        e.NoticesChanged(
            (e.Notice("a", "A", "spot", 25.0, False), e.Notice("b", "B", "spot", 25.0, True))
        )
    ]
    assert events_of(view, view, "b") == []


def test_a_tracker_compares_each_view_with_the_one_before() -> None:
    tracker = ViewTracker()
    assert tracker.changed(View(waiting=2), "a") == [e.NodesWaiting(2)]
    assert tracker.changed(View(waiting=2), "a") == []
    assert tracker.changed(View(), "a") == [e.NodesWaiting(0)]


def test_after_a_seat_everything_in_the_view_is_new_but_a_fence_from_before_the_join() -> None:
    tracker = ViewTracker()
    tracker.joins(View(waiting=9, fenced=FENCED))
    view = View(SEAT, waiting=2, fenced=FENCED)
    tracker.changed(view, "a")
    assert tracker.sealed(SEAT, view, "a") == [e.Sealed(SEAT), e.NodesWaiting(2)]
    assert tracker.changed(view, "a") == []
    later = Refused(Refusal.FENCED, "another loss")
    found = tracker.sealed(SEAT, View(SEAT, fenced=later), "a")
    assert found == [e.Sealed(SEAT), e.Fenced("another loss", replaced=False)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RendezvousGracefulExitError("x"), e.JoinError.NOT_NEEDED),
        (RendezvousClosedError("x"), e.JoinError.CLOSED),
        (RendezvousTimeoutError("x"), e.JoinError.TIMEOUT),
        (RendezvousConnectionError("x"), e.JoinError.CONNECTION),
        (RendezvousStateError("x"), e.JoinError.REFUSED),
        (AuthenticationError("x"), e.JoinError.REFUSED),
    ],
)
def test_the_class_of_an_error_says_how_a_join_failed(error: Exception, kind: e.JoinError) -> None:
    assert join_failed(error, None) == e.JoinFailed(kind, "x")


def test_a_wrong_token_is_a_refusal_and_no_lost_connection() -> None:
    error = RendezvousConnectionError("x")
    error.__cause__ = AuthenticationError("wrong token")
    assert join_failed(error, None).error is e.JoinError.REFUSED


def test_an_internal_error_is_shown_with_its_traceback() -> None:
    failed = join_failed(KeyError("a fault"), None)
    assert failed.error is e.JoinError.OTHER
    assert "KeyError: 'a fault'" in failed.text


def test_the_end_of_the_run_comes_with_its_failures_and_verdict() -> None:
    error = RendezvousClosedError("x")
    assert join_failed(error, CLOSED) == e.JoinFailed(
        e.JoinError.CLOSED, "x", (FAILURE,), Verdict.BUDGET
    )
    finished = RunClosed(1, 1, "a", "noon", "done", Verdict.FINISHED, (FAILURE,))
    assert join_failed(error, finished).failures == ()
