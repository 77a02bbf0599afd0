"""What messages mean to a node, and which of them a state stands for."""

import msgspec
import pytest

from rallypoint.core.advance import advance
from rallypoint.core.events import (
    Admit,
    Assignment,
    Cause,
    Close,
    Event,
    Exclude,
    Fail,
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
    WaitingChanged,
    assignment,
)
from rallypoint.core.state import (
    Aspect,
    Failure,
    Member,
    Node,
    RunState,
    Sealed,
    Settings,
    Verdict,
)
from rallypoint.rendezvous.view import (
    NodeMessage,
    Seated,
    View,
    catch_up,
    fold,
    known_round,
    needs_new_id,
    observe,
    run_closed,
    seat_of,
)

SETTINGS = Settings(min_nodes=1, max_nodes=3)
FAILURE = Failure("n", 0, 0, 1)
SEAT = Assignment(1, 1, 0, 2, 0, 2, 0, 2, "10.0.0.1", 7, 0, "all came")
OPENED = RoundOpened(1, 2, "b was lost", ("b",))
PARKED = Parked(1, 2, False, "waits")
CLOSED = RunClosed(1, 1, "a", "", "enough", Verdict.CLOSED)
FENCED = Refused(Refusal.FENCED, "its lease lapsed")
REPLACED = Refused(Refusal.REPLACED, "by another")
EXCLUDED = Refused(Refusal.EXCLUDED, "bad memory")
NOTICE = NoticeGiven(1, 1, "b", "b", "spot machine", "alice", 25.0)
WORKING = View(assignment=SEAT, waiting=2)


def join(name: str, **more: int | bool) -> Join:
    node = Node(id=name, address=f"10.0.0.{ord(name) - 96}", port=1)
    return Join(node, SETTINGS, **more)  # type: ignore[arg-type]


class Watched:
    """A run, and the view of one node that looks after each step (or misses some)."""

    def __init__(self, me: str) -> None:
        self.me = me
        self.state = RunState(run_id="run")
        self.before: RunState | None = None
        self.view = View()
        self.told: list[object] = []

    def do(self, *events: Event, look: bool = True) -> View:
        step = advance(self.state, *events)
        self.state = step.state
        self.told += [send.message for send in step.messages if self.me in send.to]
        if look:
            self.view = observe(self.view, self.state, self.me, self.before)
            self.before = self.state
        return self.view

    def seal(self, *names: str) -> View:
        self.do(*(join(name) for name in names))
        if not isinstance(self.state.phase, Sealed):
            self.do(LastCallOver(1, 1, self.state.calls))
        return self.view


def test_a_candidate_has_no_seat() -> None:
    run = Watched("a")
    assert run.do(join("a")) == View()


def test_a_participant_of_a_sealed_round_has_its_seat() -> None:
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
def test_a_loss_opens_the_round_and_names_the_lost_node(skip: bool) -> None:
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
    again = run.do(join("a", incarnation=1, after=1))
    assert again.opened is None
    assert again.assignment is not None
    assert (again.assignment.round, again.assignment.size) == (2, 2)


def test_a_node_that_saw_no_state_before_does_not_know_which_nodes_were_lost() -> None:
    run = Watched("a")
    run.do(join("a"), join("b"), join("c"), Lost("b", Cause.LEASE), look=False)
    opened = run.do().opened
    assert opened is not None
    assert (opened.round, opened.lost) == (2, ())


def test_newcomers_are_parked_until_they_are_candidates() -> None:
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


def test_a_lost_node_is_fenced_and_keeps_its_seat_in_the_view() -> None:
    run = Watched("a")
    run.seal("a", "b")
    view = run.do(Lost("a", Cause.LEASE))
    assert view.fenced is not None
    assert "its lease lapsed" in view.fenced.why
    assert view.assignment is not None  # what it works in, until it has stopped


def test_i1_a_replaced_node_learns_that_it_is_replaced() -> None:
    run = Watched("a")
    old, new = (join(name).node for name in "ab")
    run.do(Join(msgspec.structs.replace(old, slot="s"), SETTINGS))
    view = run.do(Join(msgspec.structs.replace(new, slot="s"), SETTINGS))
    assert view.fenced is not None
    assert view.fenced.refusal is Refusal.REPLACED


def test_a_node_that_the_state_does_not_know_is_shut_out() -> None:
    view = observe(View(), RunState(run_id="run"), "a", None)
    assert view.fenced is not None
    assert "not a member" in view.fenced.why


def test_an_excluded_node_stays_so_in_its_view_after_it_is_admitted() -> None:
    run = Watched("a")
    run.seal("a", "b")
    view = run.do(Exclude(Aspect.NODE, "a", "bad memory", "alice"))
    (told,) = (each for each in run.told if isinstance(each, Refused))
    assert view == View(fenced=Refused(Refusal.EXCLUDED, told.why, 1, 2))
    assert run.do(Admit(Aspect.NODE, "a", "alice")) == view  # what it was told stands


def test_notices_reach_the_nodes_that_work_with_the_leaving_node() -> None:
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


def test_a_spare_of_a_run_without_settings_is_parked() -> None:
    state = RunState("run", spares={"a": Member(Node("a", "host"), 1)})
    view = observe(View(), state, "a", None)
    assert view.parked is not None
    assert view.parked.spare


def test_a_closed_run_says_by_whom_and_why() -> None:
    run = Watched("a")
    run.seal("a", "b")
    view = run.do(Close("b", "enough", "noon"))
    assert view.closed == next(each for each in run.told if isinstance(each, RunClosed))
    assert view.closed == run_closed(run.state)
    assert view.closed.why == "enough"


def test_the_last_finish_closes_the_run() -> None:
    run = Watched("a")
    run.seal("a", "b")
    view = run.do(Finish("a", 1, 1))
    assert view.closed is None
    assert view.assignment is not None
    view = run.do(Finish("b", 1, 1))
    assert view.closed is not None
    assert view.closed.finished


def test_a_finished_node_is_not_called_into_the_next_round() -> None:
    run = Watched("a")
    run.seal("a", "b", "c")
    run.do(Finish("a", 1, 1))
    view = run.do(Lost("b", Cause.LEASE))
    assert (view.opened, view.waiting, view.fenced) == (None, 0, None)


def test_a_run_that_was_opened_again_counts_as_closed() -> None:
    run = Watched("a")
    run.seal("a", "b")
    run.do(Close("b", "enough"), look=False)
    view = run.do(join("z", new_incarnation=True))
    assert view.closed is not None
    assert view.closed.incarnation == 1
    assert "incarnation 2" in view.closed.why
    assert view.fenced is None
    assert run.do(join("y")).closed == view.closed


def test_a_state_that_is_seen_shows_that_the_node_is_connected() -> None:
    run = Watched("a")
    run.view = View(connected=False)
    assert run.do(join("a")).connected


# -- messages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "view"),
    [
        (Seated(msgspec.structs.replace(SEAT, round=2)), None),
        (OPENED, View(assignment=SEAT, opened=OPENED)),
        (PARKED, View(parked=PARKED, waiting=2)),
        (WaitingChanged(1, 1, 3), View(assignment=SEAT, waiting=3)),
        (CLOSED, View(assignment=SEAT, closed=CLOSED)),
        (FENCED, View(assignment=SEAT, fenced=FENCED)),
        (REPLACED, View(assignment=SEAT, fenced=REPLACED)),
        (Refused(Refusal.STALE, "over"), WORKING),
        (EXCLUDED, View(fenced=EXCLUDED)),
        (NOTICE, View(assignment=SEAT, waiting=2, notices=(NOTICE,))),
    ],
)
def test_each_message_changes_the_view_in_one_way(message: NodeMessage, view: View | None) -> None:
    wanted = view or View(assignment=msgspec.structs.replace(SEAT, round=2))
    assert fold(WORKING, message) == wanted


def test_a_join_refused_by_a_closed_run_learns_the_verdict() -> None:
    for verdict, wanted in ((Verdict.BUDGET, Verdict.BUDGET), (None, Verdict.CLOSED)):
        refused = Refused(Refusal.CLOSED, "over", 1, 2, (FAILURE,), verdict)
        closed = RunClosed(1, 2, "", "", "over", wanted, (FAILURE,))
        assert fold(WORKING, refused) == View(assignment=SEAT, closed=closed)


def test_a_notice_is_kept_once_for_each_node_until_the_round_is_over() -> None:
    again = msgspec.structs.replace(NOTICE, why="maintenance")
    other = msgspec.structs.replace(NOTICE, node="c")
    view = View(assignment=SEAT)
    for message in (NOTICE, other, again):
        view = fold(view, message)
    assert view.notices == (other, again)
    for end in (OPENED, FENCED, Seated(SEAT), EXCLUDED):
        assert fold(view, end).notices == ()


def test_a_closed_run_changes_no_more() -> None:
    view = fold(WORKING, CLOSED)
    for message in (OPENED, FENCED, Seated(SEAT), RunClosed(1, 1, "b", "", "x", Verdict.CLOSED)):
        assert fold(view, message) == view


def test_a_parked_node_becomes_a_candidate_when_a_round_opens() -> None:
    parked = View(parked=PARKED, waiting=3, notices=(NOTICE,))
    assert fold(parked, OPENED) == View()


def test_a_round_that_is_announced_again_stays_as_first_announced() -> None:
    view = fold(WORKING, OPENED)
    again = msgspec.structs.replace(OPENED, why="again", lost=())
    assert fold(view, again) == view
    later = msgspec.structs.replace(again, round=3)
    assert fold(view, later).opened == later
    other = msgspec.structs.replace(again, incarnation=2)
    assert fold(view, other).opened == other


def test_the_first_reason_for_a_fence_stays() -> None:
    view = fold(WORKING, FENCED)
    assert fold(view, Refused(Refusal.FENCED, "unknown here")).fenced == FENCED


def test_only_a_lost_node_needs_a_new_id() -> None:
    assert needs_new_id(View(fenced=FENCED))
    assert not needs_new_id(View(fenced=REPLACED))
    assert not needs_new_id(View(fenced=EXCLUDED))
    assert not needs_new_id(View())


def test_the_known_round_is_that_of_the_seat() -> None:
    assert known_round(View()) == (0, 0)
    assert known_round(View(assignment=msgspec.structs.replace(SEAT, incarnation=2))) == (2, 1)


def caught_up(run: "Watched", node: str, known: tuple[int, int], **more: bool) -> list[str]:
    messages = catch_up(run.state, node, known, parked=more.get("parked", False))
    return [type(message).__name__ for message in messages]


def test_a_node_that_missed_nothing_learns_how_many_wait() -> None:
    run = Watched("a")
    run.seal("a", "b")
    assert caught_up(run, "a", (1, 1)) == ["WaitingChanged"]
    (waiting,) = catch_up(run.state, "a", (1, 1))
    assert waiting == WaitingChanged(1, 1, 0)


def test_a_node_that_missed_its_seat_gets_it() -> None:
    run = Watched("a")
    run.seal("a", "b")
    for known in ((0, 0), (1, 0)):
        assert caught_up(run, "a", known) == ["Seated"]
    run.do(join("c"))
    assert caught_up(run, "a", (0, 0)) == ["Seated", "WaitingChanged"]
    assert caught_up(run, "c", (0, 0)) == ["Parked"]


def test_a_candidate_learns_of_its_round_only_if_it_was_parked() -> None:
    run = Watched("a")
    run.do(join("a"))
    run.state = msgspec.structs.replace(run.state, settings=Settings(2, 3))
    assert caught_up(run, "a", (0, 0)) == []
    assert caught_up(run, "a", (0, 0), parked=True) == ["RoundOpened"]


def test_a_participant_learns_that_its_round_is_over() -> None:
    run = Watched("a")
    run.seal("a", "b", "c")
    run.do(Lost("b", Cause.LEASE))
    (opened,) = catch_up(run.state, "a", (1, 1), lost=("b",))
    assert opened == RoundOpened(1, 2, run.state.opening, ("b",))


def test_a_run_that_is_closed_or_was_opened_again_has_one_message() -> None:
    run = Watched("a")
    run.seal("a", "b")
    run.do(Close("b", "enough"))
    for known in ((0, 0), (1, 1)):
        assert catch_up(run.state, "a", known) == [run_closed(run.state)]
    run.do(join("z", new_incarnation=True))
    (closed,) = catch_up(run.state, "a", (1, 1))
    assert closed == RunClosed(
        1,
        1,
        "an unknown caller",
        "",
        "it was closed and opened again as incarnation 2",
        Verdict.CLOSED,
    )


def test_a_node_of_a_run_that_the_server_has_lost_is_unknown() -> None:
    (refused,) = catch_up(RunState("run"), "a", (3, 7), unknown="not known here")
    assert refused == Refused(Refusal.FENCED, "not known here", 1, 1)


def test_failures_are_listed_unless_the_run_has_finished() -> None:
    run = Watched("a")
    run.seal("a", "b")
    run.do(Fail("a", 1, 1, FAILURE), Close("b", "enough"))
    closed = run_closed(run.state)
    assert closed is not None
    assert [failure.node for failure in closed.failures] == ["n"]
    assert run_closed(RunState("run")) is None
