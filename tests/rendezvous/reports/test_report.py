"""A report says what a run is doing, as much as a state and its history know."""

from tests.core.builders import a_failure, a_settings
from tests.rendezvous.reports.test_history import Watched

from rallypoint.core.advance import timer_seconds, timers
from rallypoint.core.events import (
    Close,
    Disconnected,
    Exclude,
    Fail,
    LastCallOver,
    Leave,
    Reconnected,
)
from rallypoint.core.state import Aspect
from rallypoint.rendezvous.coordinator import ExclusionLine
from rallypoint.rendezvous.reports.report import MISSING_SHOWN, brief_report, report_of


def test_timers_have_their_remaining_time() -> None:
    run = Watched(a_settings(1, 3, last_call_seconds=30, disconnect_grace_seconds=2))
    run.do(run.join("n1"))
    (timer,) = timers(run.state)
    left = timer_seconds(run.state, timer) - 10
    report = report_of(run.state, "here", run.seen, run.now, timers=[(timer, left)])
    assert [(t.setting, t.remaining_seconds) for t in report.timers] == [("last_call", 20)]
    run.do(LastCallOver(1, 1, timer.call) if isinstance(timer, LastCallOver) else timer)
    run.do(Disconnected("n1"))
    report = report_of(run.state, "here", run.seen, run.now + 0.5)
    (grace,) = report.timers
    assert (grace.name, grace.setting) == ("n1 pid 1 may reconnect", "disconnect_grace")
    assert grace.remaining_seconds == 1.5
    run.do(Reconnected("n1"))
    assert report_of(run.state, "here", run.seen, run.now).timers == ()


def test_without_a_history_no_times_are_told() -> None:
    run = Watched()
    run.seal()
    report = report_of(run.state, "a file")
    assert report.since_seconds is None
    assert {member.since_seconds for member in report.members} == {None}
    (line,) = report.rounds  # what the state itself tells
    assert (line.number, line.size, line.opened_seconds, line.sealed_seconds) == (1, 2, None, None)
    assert line.sealed_because == "all 2 nodes joined (max_nodes=2)"
    assert line.nodes == ("n1 pid 1", "n2 pid 2")


def test_brief_report_does_not_grow_with_the_run() -> None:
    run = Watched(a_settings(1, 5000))
    names = [f"n{i}" for i in range(5000)]
    run.do(*(run.join(name) for name in names))
    run.do(Leave("n0"))
    report = brief_report(run.state, "here")
    assert (report.members, report.rounds) == ((), ())
    assert len(report.missing) == 17
    assert report.missing[-1] == "4983 more"
    assert "waiting for n1 pid 1" in report.reason
    run.do(*(run.join(name, 1, 1) for name in names[4:]))
    assert brief_report(run.state, "here").missing == ("n1 pid 1", "n2 pid 2", "n3 pid 3")


def test_exclusions_have_their_remaining_time() -> None:
    run = Watched()
    run.do(Exclude(Aspect.SLOT, "pod-3", "bad memory", "alice", 60.0, "noon"))
    run.do(Exclude(Aspect.NODE, "n9", "", "bob"))
    left = [(timer, 42.0) for timer in timers(run.state)]
    report = report_of(run.state, "here", run.seen, run.now, timers=left)
    (slot, node) = report.exclusions
    assert slot == ExclusionLine("slot", "pod-3", "bad memory", "alice", "noon", 60.0, 42.0)
    assert node == ExclusionLine("node", "n9", "no reason was given", "bob")
    assert report.timers == ()  # shown with the exclusion


def test_consecutive_failures_are_reported_with_their_timer() -> None:
    run = Watched()
    run.seal()
    run.do(Fail("n1", 1, 1, a_failure("n1")))
    run.do(run.join("n1", 1, 1), run.join("n2", 1, 1))
    left = [(timer, 42.0) for timer in timers(run.state)]
    report = report_of(run.state, "here", run.seen, run.now, timers=left)
    assert report.failing == 1
    (timer,) = report.timers
    assert (timer.name, timer.setting) == ("earlier failing rounds no longer count", "steady_after")


def test_closed_run_has_no_current_round() -> None:
    run = Watched(a_settings(1, 1))
    run.do(run.join("n1"))
    assert [line.number for line in report_of(run.state, "a file").rounds] == [1]
    run.do(Close("alice", "enough"))
    assert report_of(run.state, "a file").rounds == ()


def test_lost_connection_starts_a_grace_timer() -> None:
    run = Watched()
    run.seal()
    run.do(Disconnected("n1"), Disconnected("n2"))
    run.now += 0.25
    report = report_of(run.state, "here", run.seen, run.now)
    assert [(t.name, t.remaining_seconds) for t in report.timers] == [
        ("n1 pid 1 may reconnect", 0.75),
        ("n2 pid 2 may reconnect", 0.75),
    ]
    run.do(Leave("n1"))
    assert len(report_of(run.state, "here", run.seen, run.now).timers) == 1


def test_gathering_round_has_no_members_yet() -> None:
    run = Watched(a_settings(2, 2))
    run.do(run.join("n1"))
    (line,) = report_of(run.state, "a file").rounds
    assert (line.number, line.size, line.sealed_because, line.nodes) == (1, 0, "", ())


def test_brief_report_names_all_missing_nodes_up_to_the_limit() -> None:
    run = Watched(a_settings(1, 100))
    names = [f"n{i}" for i in range(MISSING_SHOWN + 1)]
    run.do(*(run.join(name) for name in names))
    run.do(LastCallOver(1, 1, 1))
    run.do(Leave("n0"))
    missing = brief_report(run.state, "here").missing
    assert len(missing) == MISSING_SHOWN
    assert not missing[-1].endswith("more")
