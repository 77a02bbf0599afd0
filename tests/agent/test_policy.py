import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.agent import events as e
from rallypoint.agent.policy import (
    EXIT_DONE,
    EXIT_FAILED,
    AgentState,
    Decision,
    Joining,
    Over,
    Stopping,
    Working,
    begin,
    decide,
)
from rallypoint.rendezvous.core.events import Assignment
from rallypoint.rendezvous.core.state import Failure

GRACE = 7.0
START = AgentState("node-a", local_world_size=2, stop_grace_seconds=GRACE, admit_seconds=0.5)
FAILURE = Failure("node-b", 5, 1, 3)


def seat(number: int = 1, incarnation: int = 1) -> Assignment:
    return Assignment(incarnation, number, 1, 2, 2, 4, 2, 4, "h", 1, 0, "all came")


def after(*events: e.Event) -> Decision:
    decision = begin(START)
    for event in events:
        decision = decide(decision.state, event)
    return decision


SEALED = e.Sealed(seat())
FAILED = e.WorkerExited(1, 1, 9, "", "noon", ("a", "b"))
OPENED = e.RoundOpened(1, 2, "node-c was lost", ("node-c",))
CLOSED = e.RunClosed(1, "node-b", "its budget is used up", False, (FAILURE,))
TERM = e.Signal("SIGTERM", 15)
CLOSED_TEXT = "the run was closed by node-b: its budget is used up"
REPORT = Failure("node-a", 3, 1, 9, "", "noon", "a\nb", 1)
STOP = e.StopWorkers(GRACE)
STOPPED = e.WorkersStopped()

TABLE: list[tuple[str, list[e.Event], tuple[e.Action, ...]]] = [
    ("sealed starts workers", [SEALED], (e.StartWorkers(seat()),)),
    ("a failure is told at once", [SEALED, FAILED], (e.ReportFailure(REPORT), STOP)),
    (
        "then the next round is asked for",
        [SEALED, FAILED, STOPPED],
        (e.Join(f"its worker failed: {REPORT.label}"),),
    ),
    ("one worker done is not all", [SEALED, e.WorkerExited(1, 0, 0)], ()),
    (
        "all done: D3",
        [SEALED, e.WorkerExited(1, 0, 0), e.WorkerExited(1, 1, 0)],
        (e.Finish(), e.Leave("its work is done"), e.Exit(EXIT_DONE)),
    ),
    ("the same worker twice is one", [SEALED, *[e.WorkerExited(1, 0, 0)] * 2], ()),
    ("another was lost", [SEALED, OPENED], (STOP,)),
    ("then join again", [SEALED, OPENED, STOPPED], (e.Join("node-c was lost"),)),
    ("what dies after a loss is a consequence", [SEALED, OPENED, FAILED], ()),
    ("a loss after a failure changes nothing", [SEALED, FAILED, OPENED], ()),
    ("an old opening is no news", [SEALED, e.RoundOpened(1, 1, "old")], ()),
    ("an exit of an older round is no news", [e.Sealed(seat(2)), FAILED], ()),
    ("C5: the first newcomer", [SEALED, e.NodesWaiting(1)], (e.StartAdmitTimer(1, 0.5),)),
    ("C5: the second is gathered", [SEALED, e.NodesWaiting(1), e.NodesWaiting(2)], ()),
    ("C5: then stop once", [SEALED, e.NodesWaiting(1), e.NodesWaiting(2), e.AdmitDue(1)], (STOP,)),
    (
        "C5: one new round for both",
        [SEALED, e.NodesWaiting(1), e.NodesWaiting(2), e.AdmitDue(1), STOPPED],
        (e.Join("2 nodes wait"),),
    ),
    ("newcomers left again", [SEALED, e.NodesWaiting(1), e.NodesWaiting(0), e.AdmitDue(1)], ()),
    ("an old timer", [e.Sealed(seat(2)), e.NodesWaiting(1), e.AdmitDue(1)], ()),
    ("closed while working", [SEALED, CLOSED], (STOP,)),
    (
        "the budget is used up",
        [SEALED, FAILED, CLOSED, STOPPED],
        (e.Exit(EXIT_FAILED, CLOSED_TEXT, (FAILURE,)),),
    ),
    ("closed while joining: the join's answer says it", [CLOSED], ()),
    ("finished while joining: likewise", [e.RunClosed(1, "all", "done", True)], ()),
    (
        "finished without us",
        [SEALED, e.RunClosed(1, "all", "done", True), STOPPED],
        (e.Exit(EXIT_DONE, "the run has finished without this node: done"),),
    ),
    ("not needed", [e.JoinFailed(e.JoinError.NOT_NEEDED, "go home")], (e.Exit(EXIT_DONE),)),
    ("too late", [e.JoinFailed(e.JoinError.TIMEOUT, "1 of 2")], (e.Exit(EXIT_FAILED, "1 of 2"),)),
    ("an older incarnation closed", [e.Sealed(seat(1, 2)), CLOSED], ()),
    ("fenced", [SEALED, e.Fenced("was silent")], (STOP,)),
    ("comes anew", [SEALED, e.Fenced("x"), STOPPED], (e.Join("was fenced: x"),)),
    ("signal", [SEALED, TERM], (STOP, e.Leave("received SIGTERM"))),
    ("signal: exit", [SEALED, TERM, STOPPED], (e.Exit(143, "received SIGTERM"),)),
    ("signal: a second hurries", [SEALED, TERM, TERM], (e.StopWorkers(0.0),)),
    (
        "signal while joining",
        [TERM],
        (e.Leave("received SIGTERM"), e.Exit(143, "received SIGTERM")),
    ),
    ("signal while stopping", [SEALED, OPENED, TERM], (e.Leave("received SIGTERM"),)),
    ("outranks rejoining", [SEALED, OPENED, TERM, STOPPED], (e.Exit(143, "received SIGTERM"),)),
    ("C9: our fault is a leave", [SEALED, e.AgentFailed("oh")], (STOP, e.Leave("oh"))),
    ("C9: while joining", [e.AgentFailed("oh")], (e.Leave("oh"), e.Exit(EXIT_FAILED, "oh"))),
    ("nothing after the exit", [TERM, SEALED], ()),
]


@pytest.mark.parametrize(
    ("events", "actions"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_table(events: list[e.Event], actions: tuple[e.Action, ...]) -> None:
    assert after(*events).actions == actions


def test_reasons_are_words_a_user_can_act_on() -> None:
    assert after(SEALED).reason == "round 1 is sealed: all came"
    assert after(SEALED, OPENED).reason == "round 2 opens: node-c was lost"
    assert after(SEALED, FAILED).reason == "rank 3 (local 1) on node-a: exit code 9 at noon"


def test_the_first_cause_is_what_is_joined_for() -> None:
    state = after(SEALED, FAILED, OPENED, e.NodesWaiting(3), e.Fenced("late")).state
    assert isinstance(state.phase, Stopping)
    assert state.phase.then == e.Join(f"its worker failed: {REPORT.label}")


ANY_EVENT = st.one_of(
    st.builds(e.Sealed, st.builds(seat, st.integers(1, 4))),
    st.builds(e.WorkerExited, st.integers(1, 4), st.integers(0, 1), st.sampled_from([0, 1, None])),
    st.just(STOPPED),
    st.builds(e.RoundOpened, st.just(1), st.integers(1, 5), st.just("why")),
    st.builds(e.NodesWaiting, st.integers(0, 3)),
    st.builds(e.AdmitDue, st.integers(1, 4)),
    st.builds(e.RunClosed, st.just(1), st.just("x"), st.just("y"), st.booleans()),
    st.builds(e.Fenced, st.just("z")),
    st.builds(e.JoinFailed, st.sampled_from(list(e.JoinError)), st.just("t")),
    st.just(TERM),
    st.just(e.AgentFailed("f")),
)


@given(st.lists(ANY_EVENT, max_size=40))
def test_whatever_happens_the_actions_make_sense(events: list[e.Event]) -> None:
    running = stopping = over = False
    joining = True
    decision = begin(START)
    for event in events:
        before = decision.state.phase
        decision = decide(decision.state, event)
        if isinstance(event, e.WorkersStopped) and isinstance(before, Stopping):
            running = stopping = False
        for action in decision.actions:
            assert not over, "no action after Exit"
            match action:
                case e.StartWorkers():
                    assert not running, "never two starts without a stop"
                    assert joining
                    running, joining = True, False
                case e.StopWorkers(grace_seconds=grace):
                    assert running
                    assert not stopping or grace == 0
                    stopping = True
                case e.Join():
                    assert not running
                    joining = True
                case e.ReportFailure() | e.Finish():
                    assert running
                    assert not stopping
                case e.Exit(code=code):
                    over = True
                    assert not running or code == EXIT_DONE
        assert isinstance(decision.state.phase, Over) == over
        assert isinstance(decision.state.phase, Joining) == (joining and not over)
        assert isinstance(decision.state.phase, Working) == (running and not stopping and not over)
