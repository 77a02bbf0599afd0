import pytest
from tests.core.builders import a_failure, a_node, a_settings

from rallypoint.core.advance import advance
from rallypoint.core.events import (
    Cause,
    Close,
    Disconnected,
    Event,
    Exclude,
    Fail,
    Finish,
    Join,
    Leave,
    Lost,
    Notify,
    Reconnected,
    RejoinOver,
)
from rallypoint.core.state import Aspect, RunState, Settings
from rallypoint.rendezvous.reports.history import ROUNDS_KEPT, SEATS_KEPT, History, Noted
from rallypoint.rendezvous.reports.report import report_of


class Watched:
    """A run, its history, and a clock that only moves when told."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or a_settings(2, 2)
        self.state = RunState("run")
        self.seen = History()
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


def test_round_is_remembered_with_time_and_reason() -> None:
    run = Watched()
    run.do(run.join("n1"))
    noted = run.do(run.join("n2"), after=3)
    assert noted.sealed is run.seen.rounds[0]
    run.do(Lost("n2", Cause.LEASE), after=10)
    (first, second) = run.seen.lines(run.now + 1)
    assert (first.number, first.size, first.opened_seconds, first.sealed_seconds) == (1, 2, 14, 11)
    assert first.sealed_because == "all 2 nodes joined (max_nodes=2)"
    assert first.ended_seconds == 1
    assert "n2 pid 2 was lost" in first.ended_because
    assert first.lost == ("n2 pid 2",)
    assert first.nodes == ("n1 pid 1", "n2 pid 2")
    assert second.opened_because == first.ended_because
    assert (second.sealed_seconds, second.ended_seconds, second.nodes) == (None, None, ())


def test_loss_has_its_detection_time() -> None:
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


def test_node_that_did_not_rejoin_is_lost_too() -> None:
    run = Watched(a_settings(1, 3))
    run.do(*(run.join(name) for name in ("n1", "n2", "n3")))
    run.do(Leave("n3"))
    run.do(run.join("n1", 1, 1))
    noted = run.do(RejoinOver(1, 2), after=60)
    assert [(loss.label, loss.cause, loss.seconds) for loss in noted.losses] == [
        ("n2 pid 2", "rejoin", 60)
    ]
    assert noted.sealed is not None


def test_close_ends_the_round_with_author_and_reason() -> None:
    run = Watched()
    run.seal()
    run.do(Close("someone", "enough"), after=2)
    (line,) = run.seen.lines(run.now)
    assert (line.ended_seconds, line.ended_because) == (0, "someone: enough")


def test_reopened_run_has_a_new_round() -> None:
    run = Watched()
    run.seal()
    run.do(Close("someone", "enough"))
    run.do(Join(a_node("n9"), run.settings, new_incarnation=True))
    assert [(line.incarnation, line.number) for line in run.seen.lines(run.now)][-1] == (2, 2)


def test_report_says_how_long_nodes_are_in_their_place() -> None:
    run = Watched(a_settings(2, 2))
    run.do(run.join("n1"))
    run.do(run.join("n2"), after=5)
    run.do(run.join("n3"), after=5)
    run.do(Finish("n1", 1, 1), after=7)
    report = report_of(run.state, "here", run.seen, run.now + 1)
    since = {member.node.id: (member.place, member.since_seconds) for member in report.members}
    assert since == {"n1": ("finished", 1), "n2": ("participant", 13), "n3": ("spare", 8)}
    assert report.since_seconds == 13


def test_history_is_bounded() -> None:
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


@pytest.mark.parametrize(
    ("opening", "why"),
    [
        (Leave("n2", "its work is done"), "n2 pid 2 left: its work is done"),
        (Lost("n2", Cause.LEASE), "n2 pid 2 was lost: its lease lapsed"),
        (Join(a_node("n1"), a_settings(1, 2), 1, 1, "x"), "n1 pid 1 asked for a new round: x"),
        (Fail("n1", 1, 1, a_failure()), f"a worker failed: {a_failure().label}"),
    ],
)
def test_round_opened_and_sealed_in_one_step_has_its_reason(opening: Event, why: str) -> None:
    run = Watched(a_settings(1, 2))
    run.seal()
    noted = run.do(opening, run.join("n1", 1, 1), run.join("n2", 1, 1))
    assert noted.sealed is not None
    first, second = run.seen.lines(run.now)
    assert (first.ended_because, second.opened_because) == (why, why)


def test_notices_have_their_remaining_time() -> None:
    run = Watched()
    run.seal()
    run.do(Notify("n2", "spot machine", seconds=25.0), after=1)
    run.do(Notify("n2", "spot machine", seconds=24.5), after=1)  # the first one ends sooner still
    run.do(Notify("n1", "maintenance", "alice"))
    (two, one) = report_of(run.state, "here", run.seen, run.now + 9).notices
    assert (two.id, two.node, two.why, two.by) == ("n2", "n2 pid 2", "spot machine", "n2 pid 2")
    assert (two.seconds, two.remaining_seconds) == (24.5, 15.0)
    assert (one.by, one.seconds, one.remaining_seconds) == ("alice", None, None)
    (two, _one) = report_of(run.state, "here", run.seen, run.now + 99).notices
    assert two.remaining_seconds == 0.0
    (two, _one) = report_of(run.state, "here").notices  # one look knows no times
    assert two.remaining_seconds is None
    run.do(Notify("n2", "spot machine", seconds=3.0), after=1)
    (two, _one) = report_of(run.state, "here", run.seen, run.now + 1).notices
    assert two.remaining_seconds == 2.0
    run.do(Leave("n2"))
    assert report_of(run.state, "here", run.seen, run.now).notices == ()
    assert run.seen.lines(run.now)[0].left == ("n2 pid 2",)


def test_excluded_node_is_among_the_lost_of_its_round() -> None:
    run = Watched(a_settings(1, 2))
    run.seal()
    run.do(Exclude(Aspect.NODE, "n2", "bad memory", "alice"))
    assert run.seen.rounds[0].lost == ["n2 pid 2"]
    run.do(Exclude(Aspect.NODE, "n9", "", "alice"))
    assert run.seen.rounds[-1].lost == []


def test_round_without_a_cause_has_no_reason() -> None:
    run = Watched(a_settings(1, 1))
    run.do(run.join("n1"))
    run.do(Exclude(Aspect.NODE, "n9", "", "alice"), Leave("n1"), run.join("n2"))
    assert run.seen.rounds[0].ended_because == "n1 pid 1 left"


def test_round_opened_by_an_exclusion_and_sealed_at_once_has_its_reason() -> None:
    run = Watched(a_settings(1, 2))
    run.seal()
    run.do(Exclude(Aspect.NODE, "n2", "bad memory", "alice"), run.join("n1", 1, 1))
    assert run.seen.rounds[0].ended_because == "n2 pid 2 was excluded by alice: bad memory"
    run.do(Exclude(Aspect.NODE, "n9", "", "alice"), run.join("n1", 1, 2))
    assert run.seen.rounds[1].ended_because == "n1 pid 1 asked for a new round"


def test_history_of_nodes_is_bounded() -> None:
    run = Watched(a_settings(1, 1))
    for number in range(600):
        run.do(run.join(f"m{number}"), Disconnected(f"m{number}"))
        run.do(Leave(f"m{number}"))
    assert len(run.seen._since) <= 300
    assert len(run.seen.disconnected_seconds(run.now)) <= 300


def test_event_without_effect_leaves_no_history() -> None:
    run = Watched()
    run.do(run.join("n1"))
    run.do(run.join("n1"), after=5)  # said again
    assert run.seen.place_seconds("n1", "candidate", run.now) == 5
    run.do(run.join("n2"))
    assert run.do(RejoinOver(1, 1)) == Noted()


def test_lost_connection_has_a_grace_timer_until_it_is_back() -> None:
    run = Watched()
    run.seal()
    run.do(Disconnected("n1"), Disconnected("n2"))
    report = report_of(run.state, "here", run.seen, run.now)
    assert [timer.name for timer in report.timers] == [
        "n1 pid 1 may reconnect",
        "n2 pid 2 may reconnect",
    ]
    run.do(Leave("n1"), Leave("n9"))
    report = report_of(run.state, "here", run.seen, run.now)
    assert [timer.name for timer in report.timers] == ["n2 pid 2 may reconnect"]


def test_unopened_run_has_no_history() -> None:
    run = Watched()
    assert run.do(Exclude(Aspect.SLOT, "a", "", "alice")) == Noted()
    assert (list(run.seen.rounds), run.seen.phase_at) == ([], None)


def test_restored_connection_is_not_reported_as_lost() -> None:
    run = Watched()
    run.seal()
    run.do(Disconnected("n1"))
    run.do(Reconnected("n1"))
    assert run.seen.disconnected_seconds(run.now) == {}
