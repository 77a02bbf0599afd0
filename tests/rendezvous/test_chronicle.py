import pytest
from tests.rendezvous.core.builders import a_failure, a_node, a_settings

from rallypoint.rendezvous.chronicle import (
    ROUNDS_KEPT,
    SEATS_KEPT,
    Chronicle,
    Noted,
    brief_report,
    report_of,
)
from rallypoint.rendezvous.core.advance import advance, timer_seconds, timers
from rallypoint.rendezvous.core.events import (
    Cause,
    Close,
    Disconnected,
    Event,
    Fail,
    Finish,
    Join,
    LastCallOver,
    Leave,
    Lost,
    Reconnected,
    RejoinOver,
)
from rallypoint.rendezvous.core.state import Settings, State


class Watched:
    """A run, its chronicle, and a clock that only moves when told."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or a_settings(2, 2)
        self.state = State("run")
        self.seen = Chronicle()
        self.now = 100.0
        self.heard: dict[str, float] = {}

    def do(self, *events: Event, after: float = 0.0) -> Noted:
        self.now += after
        before, step = self.state, advance(self.state, *events)
        self.state = step.state
        return self.seen.note(before, events, step.state, self.now, self.heard.get)

    def join(self, name: str, incarnation: int = 0, after: int = 0) -> Join:
        return Join(a_node(name), self.settings, incarnation, after)

    def seal(self) -> Noted:
        return self.do(self.join("n1"), self.join("n2"))


def test_a_round_is_remembered_with_when_and_why() -> None:
    run = Watched()
    run.do(run.join("n1"))
    noted = run.do(run.join("n2"), after=3)
    assert noted.sealed is run.seen.rounds[0]
    run.do(Lost("n2", Cause.LEASE), after=10)
    (first, second) = run.seen.lines(run.now + 1)
    assert (first.number, first.size, first.opened_seconds, first.sealed_seconds) == (1, 2, 14, 11)
    assert first.sealed_because == "2 of the 2 nodes wanted have come"
    assert first.ended_seconds == 1
    assert "n2 pid 2 was lost" in first.ended_because
    assert first.lost == ("n2 pid 2",)
    assert first.nodes == ("n1 pid 1", "n2 pid 2")
    assert second.opened_because == first.ended_because
    assert (second.sealed_seconds, second.ended_seconds, second.nodes) == (None, None, ())


def test_a_loss_is_told_with_how_long_it_took_to_see_it() -> None:
    run = Watched(a_settings(1, 3))
    run.do(*(run.join(name) for name in ("n1", "n2", "n3")))
    run.heard = {"n1": 95.0}
    (loss,) = run.do(Lost("n1", Cause.LEASE), after=10).losses
    assert (loss.label, loss.cause, loss.seconds) == ("n1 pid 1", "lease", 15)
    run.do(Disconnected("n2"))
    (loss,) = run.do(Lost("n2", Cause.DISCONNECT), after=1).losses
    assert (loss.cause, loss.seconds) == ("disconnect", 1)
    assert run.do(Lost("n2", Cause.DISCONNECT)).losses == ()
    assert run.do(Leave("n3")).losses == ()


def test_who_did_not_join_again_was_lost_too() -> None:
    run = Watched(a_settings(1, 3))
    run.do(*(run.join(name) for name in ("n1", "n2", "n3")))
    run.do(Leave("n3"))
    run.do(run.join("n1", 1, 1))
    noted = run.do(RejoinOver(1, 2), after=60)
    assert [(loss.label, loss.cause, loss.seconds) for loss in noted.losses] == [
        ("n2 pid 2", "rejoin", 60)
    ]
    assert noted.sealed is not None


def test_a_close_ends_the_round_by_whom_and_why() -> None:
    run = Watched()
    run.seal()
    run.do(Close("someone", "enough"), after=2)
    (line,) = run.seen.lines(run.now)
    assert (line.ended_seconds, line.ended_because) == (0, "someone: enough")


def test_a_run_that_is_opened_afresh_has_a_round_of_its_own() -> None:
    run = Watched()
    run.seal()
    run.do(Close("someone", "enough"))
    run.do(Join(a_node("n9"), run.settings, new_incarnation=True))
    assert [(line.incarnation, line.number) for line in run.seen.lines(run.now)][-1] == (2, 2)


def test_places_are_told_since_when() -> None:
    run = Watched(a_settings(2, 2))
    run.do(run.join("n1"))
    run.do(run.join("n2"), after=5)
    run.do(run.join("n3"), after=5)
    run.do(Finish("n1", 1, 1), after=7)
    report = report_of(run.state, "here", run.seen, run.now + 1)
    since = {member.node.id: (member.place, member.since_seconds) for member in report.members}
    assert since == {"n1": ("finished", 1), "n2": ("participant", 13), "n3": ("spare", 8)}
    assert report.since_seconds == 13


def test_timers_are_told_with_what_is_left() -> None:
    run = Watched(a_settings(1, 3, last_call_seconds=30, grace_seconds=2))
    run.do(run.join("n1"))
    (timer,) = timers(run.state)
    left = timer_seconds(run.state, timer) - 10
    report = report_of(run.state, "here", run.seen, run.now, timers=[(timer, left)])
    assert [(t.setting, t.remaining_seconds) for t in report.timers] == [("last_call", 20)]
    run.do(LastCallOver(1, 1, timer.call) if isinstance(timer, LastCallOver) else timer)
    run.do(Disconnected("n1"))
    report = report_of(run.state, "here", run.seen, run.now + 0.5)
    (grace,) = report.timers
    assert (grace.name, grace.setting) == ("n1 pid 1 may come back", "disconnect_grace")
    assert grace.remaining_seconds == 1.5
    run.do(Reconnected("n1"))
    assert report_of(run.state, "here", run.seen, run.now).timers == ()


def test_without_a_chronicle_no_times_are_told() -> None:
    run = Watched()
    run.seal()
    report = report_of(run.state, "a file")
    assert report.since_seconds is None
    assert {member.since_seconds for member in report.members} == {None}
    (line,) = report.rounds  # what the state itself tells
    assert (line.number, line.size, line.opened_seconds, line.sealed_seconds) == (1, 2, None, None)
    assert line.sealed_because == "2 of the 2 nodes wanted have come"


def test_what_is_remembered_is_bounded() -> None:
    run = Watched(a_settings(1, 1))
    run.do(run.join("n1"))
    for number in range(1, ROUNDS_KEPT + 20):
        run.do(run.join("n1", 1, number))
    assert len(run.seen.rounds) == ROUNDS_KEPT
    many = Watched(a_settings(2000, 2000))
    nodes = [f"n{i}" for i in range(2000)]
    many.do(*(many.join(name) for name in nodes))
    for number in range(1, 4):
        many.do(*(many.join(name, 1, number) for name in nodes))
    lines = many.seen.lines(many.now)
    assert [len(line.nodes) for line in lines] == [0, 0, 2000, 2000]
    assert sum(len(line.nodes) for line in lines) <= SEATS_KEPT
    assert [line.size for line in lines] == [2000] * 4


def test_a_brief_report_does_not_grow_with_the_run() -> None:
    run = Watched(a_settings(1, 5000))
    names = [f"n{i}" for i in range(5000)]
    run.do(*(run.join(name) for name in names))
    run.do(Leave("n0"))
    report = brief_report(run.state, "here")
    assert (report.members, report.rounds) == ((), ())
    assert len(report.missing) == 17
    assert report.missing[-1] == "4983 more"
    assert "waiting for n1 pid 1" in report.reason


@pytest.mark.parametrize(
    ("opening", "why"),
    [
        (Leave("n2", "its work is done"), "n2 pid 2 left: its work is done"),
        (Lost("n2", Cause.LEASE), "n2 pid 2 was lost: its lease lapsed"),
        (Join(a_node("n1"), a_settings(1, 2), 1, 1, "x"), "n1 pid 1 asked for a new round: x"),
        (Fail("n1", 1, 1, a_failure()), f"a worker failed: {a_failure().label}"),
    ],
)
def test_a_round_that_is_opened_and_sealed_in_one_step_has_its_reason(
    opening: Event, why: str
) -> None:
    run = Watched(a_settings(1, 2))
    run.seal()
    noted = run.do(opening, run.join("n1", 1, 1), run.join("n2", 1, 1))
    assert noted.sealed is not None
    first, second = run.seen.lines(run.now)
    assert (first.ended_because, second.opened_because) == (why, why)
