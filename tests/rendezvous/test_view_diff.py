"""What a node sees in a state is what the core's messages would have told it."""

import msgspec
import pytest

from rallypoint.core.advance import advance
from rallypoint.core.annotations import Aspect
from rallypoint.core.events import (
    Admit,
    Cause,
    Close,
    Event,
    Exclude,
    Finish,
    Join,
    LastCallOver,
    Leave,
    Lost,
    NoticeGiven,
    Notify,
    Parked,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
    assignment,
)
from rallypoint.core.state import (
    Member,
    Node,
    Sealed,
    Settings,
    State,
)
from rallypoint.rendezvous.coordinator import View
from rallypoint.rendezvous.view_diff import run_closed, seat_of, view_of

SETTINGS = Settings(min_nodes=1, max_nodes=3)


def join(name: str, **more: int | bool) -> Join:
    node = Node(id=name, address=f"10.0.0.{ord(name) - 96}", port=1)
    return Join(node, SETTINGS, **more)  # type: ignore[arg-type]


class Watched:
    """A run, and the view of one node that looks after each step (or misses some)."""

    def __init__(self, me: str) -> None:
        self.me = me
        self.state = State(run_id="run")
        self.before: State | None = None
        self.view = View()
        self.told: list[object] = []

    def do(self, *events: Event, look: bool = True) -> View:
        step = advance(self.state, *events)
        self.state = step.state
        self.told += [send.message for send in step.messages if self.me in send.to]
        if look:
            self.view = view_of(self.view, self.state, self.me, self.before)
            self.before = self.state
        return self.view

    def seal(self, *names: str) -> View:
        self.do(*(join(name) for name in names))
        if not isinstance(self.state.phase, Sealed):
            self.do(LastCallOver(1, 1, self.state.calls))
        return self.view


def test_a_candidate_is_in_no_round() -> None:
    run = Watched("a")
    assert run.do(join("a")) == View()


def test_sealed() -> None:
    run = Watched("b")
    view = run.seal("a", "b")
    phase = run.state.phase
    assert isinstance(phase, Sealed)
    assert view == View(assignment=assignment(phase.record, 1))
    assert seat_of(run.state, "b") == view.assignment
    assert seat_of(run.state, "x") is None


def test_waiting_nodes_are_counted() -> None:
    run = Watched("a")
    run.seal("a", "b")
    assert run.do(join("c")).waiting == 1
    assert run.do(join("d")).waiting == 1  # a spare
    assert run.do(Leave("c")).waiting == 1  # the spare waits in its place


@pytest.mark.parametrize("skip", [False, True])
def test_a_loss_opens_the_round_and_says_who(skip: bool) -> None:
    run = Watched("a")
    seat = run.seal("a", "b", "c").assignment
    label = run.state.participants["b"].node.label
    run.do(Lost("b", Cause.LEASE), look=not skip)
    view = run.do(join("c", incarnation=1, after=1))
    (opened,) = [each for each in run.told if isinstance(each, RoundOpened)]
    assert view.opened == opened
    assert opened.lost == (label,)
    assert "its lease lapsed" in opened.why
    assert view.assignment == seat
    assert view.waiting == 1
    again = run.do(join("a", incarnation=1, after=1))
    assert again.opened is None
    assert again.assignment is not None
    assert (again.assignment.round, again.assignment.size) == (2, 2)


def test_who_has_not_looked_before_does_not_know_who_was_lost() -> None:
    run = Watched("a")
    run.do(join("a"), join("b"), join("c"), Lost("b", Cause.LEASE), look=False)
    opened = run.do().opened
    assert opened is not None
    assert (opened.round, opened.lost) == (2, ())


def test_newcomers_are_parked() -> None:
    run = Watched("c")
    run.do(join("a"), join("b"), look=False)
    run.do(LastCallOver(1, 1, 1), look=False)
    run.do(join("c"))
    assert run.view.parked is not None
    assert not run.view.parked.spare
    assert run.view.waiting == 0
    spare = Watched("d")
    spare.do(join("a"), join("b"), join("c"), look=False)
    spare.do(join("d"))
    assert spare.view.parked is not None
    assert spare.view.parked.spare
    told = [each for each in spare.told if isinstance(each, Parked)]
    assert [(each.round, each.spare) for each in told] == [(1, True)]
    assert spare.do(Lost("a", Cause.LEASE)).parked is None  # a candidate now (S1)


def test_fenced() -> None:
    run = Watched("a")
    run.seal("a", "b")
    view = run.do(Lost("a", Cause.LEASE))
    assert view.fenced is not None
    assert "its lease lapsed" in view.fenced.why
    assert view.assignment is not None  # what it works in, until it has stopped


def test_i1_replaced() -> None:
    run = Watched("a")
    old, new = (join(name).node for name in "ab")
    run.do(Join(msgspec.structs.replace(old, slot="s"), SETTINGS))
    view = run.do(Join(msgspec.structs.replace(new, slot="s"), SETTINGS))
    assert view.fenced is not None
    assert view.fenced.refusal is Refusal.REPLACED


def test_no_member_any_more() -> None:
    view = view_of(View(), State(run_id="run"), "a")
    assert view.fenced is not None
    assert "not a member" in view.fenced.why


def test_excluded() -> None:
    run = Watched("a")
    run.seal("a", "b")
    view = run.do(Exclude(Aspect.NODE, "a", "bad memory", "alice"))
    (told,) = (each for each in run.told if isinstance(each, Refused))
    assert view == View(fenced=Refused(Refusal.EXCLUDED, told.why, 1, 2))
    assert run.do(Admit(Aspect.NODE, "a", "alice")) == view  # what it was told stands


def test_notices_are_seen_by_those_who_work_with_the_node() -> None:
    run = Watched("a")
    run.seal("a", "b")
    view = run.do(Notify("b", "spot machine", seconds=25.0))
    assert view.notices == tuple(each for each in run.told if isinstance(each, NoticeGiven))
    assert [(n.node, n.why, n.seconds) for n in view.notices] == [("b", "spot machine", 25.0)]
    assert run.do(Leave("b")).notices == ()
    late = Watched("b")
    late.do(join("a"), join("b"), look=False)
    late.do(LastCallOver(1, 1, 1), Notify("a", "spot machine"), look=False)
    assert [notice.node for notice in late.do().notices] == ["a"]


def test_parked_without_settings_is_not_known_why() -> None:
    state = State("run", spares={"a": Member(Node("a", "host"), 1)})
    view = view_of(View(), state, "a")
    assert view.parked is not None
    assert view.parked.spare


def test_closed() -> None:
    run = Watched("a")
    run.seal("a", "b")
    view = run.do(Close("b", "enough", "noon"))
    assert view.closed == next(each for each in run.told if isinstance(each, RunClosed))
    assert view.closed == run_closed(run.state)
    assert view.closed.why == "enough"


def test_finished() -> None:
    run = Watched("a")
    run.seal("a", "b")
    view = run.do(Finish("a", 1, 1))
    assert view.closed is None
    assert view.assignment is not None
    view = run.do(Finish("b", 1, 1))
    assert view.closed is not None
    assert view.closed.finished


def test_who_has_finished_is_not_called_into_the_next_round() -> None:
    run = Watched("a")
    run.seal("a", "b", "c")
    run.do(Finish("a", 1, 1))
    view = run.do(Lost("b", Cause.LEASE))
    assert (view.opened, view.waiting, view.fenced) == (None, 0, None)


def test_a_missed_end_is_still_an_end() -> None:
    run = Watched("a")
    run.seal("a", "b")
    run.do(Close("b", "enough"), look=False)
    view = run.do(join("z", new_incarnation=True))
    assert view.closed is not None
    assert view.closed.incarnation == 1
    assert "incarnation 2" in view.closed.why
    assert view.fenced is None
    assert run.do(join("y")).closed == view.closed


def test_connected_again() -> None:
    run = Watched("a")
    run.view = View(connected=False)
    assert run.do(join("a")).connected
