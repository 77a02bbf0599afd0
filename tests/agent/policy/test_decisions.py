import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.agent.policy import events as e
from rallypoint.agent.policy.decisions import (
    AgentState,
    Decision,
    Joining,
    Over,
    Pausing,
    Stopping,
    Working,
    begin,
    decide,
)
from rallypoint.agent.policy.exit_codes import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NO_RESTART,
    EXIT_NOT_JOINED,
)
from rallypoint.agent.policy.membership_change import MembershipRules
from rallypoint.core.events import Assignment
from rallypoint.core.state import Failure, Newcomers, Verdict
from rallypoint.worker.change import ChangeKind

GRACE = 7.0
START = AgentState(
    "node-a",
    local_world_size=2,
    stop_grace_seconds=GRACE,
    rules=MembershipRules(gather_seconds=0.5),
    max_restarts=3,
)
FAILURE = Failure("node-b", 5, 1, 3)


def seat(number: int = 1, incarnation: int = 1, failing: int = 0) -> Assignment:
    return Assignment(incarnation, number, 1, 2, 2, 4, 2, 4, "h", 1, 0, "all came", failing)


def after(*events: e.Event) -> Decision:
    decision = begin(START)
    for event in events:
        decision = decide(decision.state, event)
    return decision


SEALED = e.Sealed(seat())
FAILED = e.WorkerExited(1, 1, 9, "", "noon", ("a", "b"))
OPENED = e.RoundOpened(1, 2, "node-c was lost", ("node-c",))
CLOSED = e.RunClosed(1, "node-b", "its budget is used up", Verdict.BUDGET, (FAILURE,))
FINISHED = e.RunClosed(1, "all", "done", Verdict.FINISHED)
PAUSED = e.Sealed(seat(3, failing=2))
USR1, PREEMPT = e.SignalToForward("SIGUSR1", 10), e.PreemptSignal("SIGUSR2", 12)
NOTICED = e.NoticesChanged((e.Notice("a", "node-a", "maintenance", 20.0, mine=True),))
HUNG = e.WorkerHung(1, 1, 40, 61.0, "noon", ("a", "b"))
TERM = e.Signal("SIGTERM", 15)
CLOSED_TEXT = "the run was closed by node-b: its budget is used up"
REPORT = Failure("node-a", 3, 1, 9, "", "noon", "a\nb", 1)
HUNG_REPORT = Failure(
    "node-a", 3, 1, None, "", "noon", "a\nb\nno progress for 61 s; the last step was 40", 1
)
REPLACED = e.Exit(93, "this node was replaced for good: by b")
STOP = e.StopWorkers(GRACE)
STOPPED = e.WorkersStopped()

TABLE: list[tuple[str, list[e.Event], tuple[e.Action, ...]]] = [
    ("sealed starts workers", [SEALED], (e.StartWorkers(seat()),)),
    ("a failure is told at once", [SEALED, FAILED], (e.ReportFailure(REPORT), STOP)),
    (
        "then the next round is asked for",
        [SEALED, FAILED, STOPPED],
        (e.Join(f"a worker of this node failed: {REPORT.label}", announced=True),),
    ),
    ("one worker done is not all", [SEALED, e.WorkerExited(1, 0, 0)], ()),
    (
        "all done: case-D3",
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
    ("case-C5: the first newcomer", [SEALED, e.NodesWaiting(1)], (e.StartChangeTimer(1, 0.5, 1),)),
    ("case-C5: the second is gathered", [SEALED, e.NodesWaiting(1), e.NodesWaiting(2)], ()),
    (
        "case-C5: then stop once",
        [SEALED, e.NodesWaiting(1), e.NodesWaiting(2), e.ChangeTimerElapsed(1, 1)],
        (STOP,),
    ),
    (
        "case-C5: one new round for both",
        [SEALED, e.NodesWaiting(1), e.NodesWaiting(2), e.ChangeTimerElapsed(1, 1), STOPPED],
        (e.Join("2 nodes wait"),),
    ),
    (
        "newcomers left again",
        [SEALED, e.NodesWaiting(1), e.NodesWaiting(0), e.ChangeTimerElapsed(1, 1)],
        (),
    ),
    ("an old timer", [e.Sealed(seat(2)), e.NodesWaiting(1), e.ChangeTimerElapsed(1, 1)], ()),
    ("closed while working", [SEALED, CLOSED], (STOP,)),
    (
        "the budget is used up",
        [SEALED, FAILED, CLOSED, STOPPED],
        (e.Exit(EXIT_NO_RESTART, CLOSED_TEXT, (FAILURE,)),),
    ),
    ("closed while joining: the join's answer says it", [CLOSED], ()),
    ("finished while joining: likewise", [FINISHED], ()),
    (
        "finished without us",
        [SEALED, FINISHED, STOPPED],
        (e.Exit(EXIT_DONE, "the run has finished without this node: done"),),
    ),
    ("not needed", [e.JoinFailed(e.JoinError.NOT_NEEDED, "go home")], (e.Exit(EXIT_DONE),)),
    (
        "too late",
        [e.JoinFailed(e.JoinError.TIMEOUT, "1 of 2")],
        (e.Exit(EXIT_NOT_JOINED, "1 of 2"),),
    ),
    (
        "a crash loop pauses",
        [PAUSED],
        (
            e.StartBackoffTimer(
                3,
                2.0,
                "2 rounds in a row failed; restarting workers in 2 s",
            ),
        ),
    ),
    ("then starts", [PAUSED, e.BackoffElapsed(3)], (e.StartWorkers(seat(3, failing=2)),)),
    ("an old pause", [PAUSED, e.BackoffElapsed(2)], ()),
    (
        "who came during the pause is let in after it",
        [PAUSED, e.NodesWaiting(1), e.BackoffElapsed(3)],
        (e.StartWorkers(seat(3, failing=2)), e.StartChangeTimer(3, 0.5, 1)),
    ),
    ("a loss during the pause", [PAUSED, e.RoundOpened(1, 4, "lost c")], (e.Join("lost c"),)),
    ("an old opening during the pause", [PAUSED, OPENED], ()),
    ("replaced during the pause", [PAUSED, e.Fenced("by b", True)], (REPLACED,)),
    ("fenced during the pause", [PAUSED, e.Fenced("x")], (e.Join("was fenced: x"),)),
    (
        "closed during the pause",
        [PAUSED, CLOSED],
        (e.Exit(EXIT_NO_RESTART, CLOSED_TEXT, (FAILURE,)),),
    ),
    (
        "signal during the pause",
        [PAUSED, TERM],
        (e.Leave("received SIGTERM"), e.Exit(143, "received SIGTERM")),
    ),
    ("our fault during it", [PAUSED, e.AgentFailed("x")], (e.Leave("x"), e.Exit(1, "x"))),
    ("a worker hangs", [SEALED, HUNG], (e.ReportFailure(HUNG_REPORT), STOP)),
    ("hung in an older round", [e.Sealed(seat(2)), HUNG], ()),
    ("a signal for the workers", [SEALED, USR1], (e.ForwardSignal("SIGUSR1", 10),)),
    ("also in their grace", [SEALED, TERM, USR1], (e.ForwardSignal("SIGUSR1", 10),)),
    ("there are no workers", [USR1], ()),
    (
        "to be taken away: all save first",
        [SEALED, PREEMPT],
        (
            e.AskToSave(1, 1, ChangeKind.LEAVING, "this node", "received SIGUSR2", 60.0, True),
            e.StartChangeTimer(1, 60.0, 1),
            e.GiveNotice("received SIGUSR2", 60.0),
        ),
    ),
    (
        "then it leaves",
        [SEALED, PREEMPT, e.WorkersSaved(1, 7)],
        (STOP, e.Leave("received SIGUSR2; all workers have saved at step 7")),
    ),
    ("it does not join again", [SEALED, PREEMPT, OPENED], (STOP, e.Leave("received SIGUSR2"))),
    (
        "nor after a failure, which is told",
        [SEALED, PREEMPT, FAILED],
        (e.ReportFailure(REPORT), STOP, e.Leave("received SIGUSR2")),
    ),
    (
        "a notice while pausing",
        [PAUSED, NOTICED, e.BackoffElapsed(3)],
        (
            e.StartWorkers(seat(3, failing=2)),
            e.AskToSave(1, 3, ChangeKind.LEAVING, "node-a", "maintenance", 20.0, True),
            e.StartChangeTimer(3, 20.0, 1),
        ),
    ),
    ("while a round changes", [SEALED, OPENED, PREEMPT], (e.GiveNotice("received SIGUSR2"),)),
    ("while going anyway", [SEALED, TERM, PREEMPT], ()),
    (
        "to be taken away, with nothing to save",
        [PREEMPT],
        (e.Leave("received SIGUSR2"), e.Exit(140, "received SIGUSR2")),
    ),
    ("an older incarnation closed", [e.Sealed(seat(1, 2)), CLOSED], ()),
    ("fenced", [SEALED, e.Fenced("was silent")], (STOP,)),
    ("replaced", [SEALED, e.Fenced("by b", True)], (STOP,)),
    ("replaced: for good", [SEALED, e.Fenced("by b", True), STOPPED], (REPLACED,)),
    ("replaced while it stops", [SEALED, FAILED, e.Fenced("by b", True), STOPPED], (REPLACED,)),
    ("fenced while it stops", [SEALED, OPENED, e.Fenced("x"), STOPPED], (e.Join(OPENED.why),)),
    ("comes anew", [SEALED, e.Fenced("x"), STOPPED], (e.Join("was fenced: x"),)),
    ("signal", [SEALED, TERM], (STOP, e.Leave("received SIGTERM"))),
    ("signal: exit", [SEALED, TERM, STOPPED], (e.Exit(143, "received SIGTERM"),)),
    ("signal: a second hurries", [SEALED, TERM, TERM], (e.StopWorkers(0.0),)),
    ("signal while it ends anyway", [SEALED, CLOSED, TERM], (e.Leave("received SIGTERM"),)),
    (
        "what ended it is what counts",
        [SEALED, CLOSED, TERM, STOPPED],
        (e.Exit(EXIT_NO_RESTART, CLOSED_TEXT, (FAILURE,)),),
    ),
    ("our fault while a round changes", [SEALED, OPENED, e.AgentFailed("x")], (e.Leave("x"),)),
    (
        "signal while joining",
        [TERM],
        (e.Leave("received SIGTERM"), e.Exit(143, "received SIGTERM")),
    ),
    ("signal while stopping", [SEALED, OPENED, TERM], (e.Leave("received SIGTERM"),)),
    ("outranks rejoining", [SEALED, OPENED, TERM, STOPPED], (e.Exit(143, "received SIGTERM"),)),
    ("case-C9: our fault is a leave", [SEALED, e.AgentFailed("oh")], (STOP, e.Leave("oh"))),
    ("case-C9: while joining", [e.AgentFailed("oh")], (e.Leave("oh"), e.Exit(EXIT_FAILED, "oh"))),
    ("nothing after the exit", [TERM, SEALED], ()),
]


@pytest.mark.parametrize(
    ("events", "actions"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_decisions(events: list[e.Event], actions: tuple[e.Action, ...]) -> None:
    assert after(*events).actions == actions


def test_reasons_are_plain_sentences() -> None:
    assert after(SEALED).reason == "round 1 is sealed: all came"
    assert after(SEALED, OPENED).reason == "round 2 opens: node-c was lost"
    assert after(SEALED, FAILED).reason == "rank 3 (local 1) on node-a: exit code 9 at noon"


def test_first_cause_is_the_reason_of_the_join() -> None:
    state = after(SEALED, FAILED, OPENED, e.NodesWaiting(3), e.Fenced("late")).state
    assert isinstance(state.phase, Stopping)
    assert state.phase.then == e.Join(
        f"a worker of this node failed: {REPORT.label}", announced=True
    )


ANY_EVENT = st.one_of(
    st.builds(e.Sealed, st.builds(seat, st.integers(1, 4), st.just(1), st.integers(0, 2))),
    st.builds(e.BackoffElapsed, st.integers(1, 4)),
    st.builds(e.WorkerHung, st.integers(1, 4), st.integers(0, 1), st.just(7), st.just(9.0)),
    st.just(USR1),
    st.just(PREEMPT),
    st.builds(e.WorkerExited, st.integers(1, 4), st.integers(0, 1), st.sampled_from([0, 1, None])),
    st.just(STOPPED),
    st.builds(e.RoundOpened, st.just(1), st.integers(1, 5), st.just("why")),
    st.builds(e.NodesWaiting, st.integers(0, 3)),
    st.just(NOTICED),
    st.just(e.NoticesChanged(())),
    st.builds(e.WorkersSaved, st.integers(1, 4), st.just(7)),
    st.builds(e.ChangeTimerElapsed, st.integers(1, 4), st.integers(1, 3)),
    st.builds(e.RunClosed, st.just(1), st.just("x"), st.just("y"), st.sampled_from(Verdict)),
    st.builds(e.Fenced, st.just("z")),
    st.builds(e.JoinFailed, st.sampled_from(list(e.JoinError)), st.just("t")),
    st.just(TERM),
    st.just(e.AgentFailed("f")),
)


@given(st.lists(ANY_EVENT, max_size=40), st.sampled_from(Newcomers))
def test_any_events_give_valid_actions(events: list[e.Event], admit: Newcomers) -> None:
    running = stopping = over = False
    joining = True
    decision = begin(msgspec.structs.replace(START, rules=MembershipRules(admit)))
    for event in events:
        before = decision.state.phase
        pausing = isinstance(before, Pausing)
        decision = decide(decision.state, event)
        if isinstance(event, e.WorkersStopped) and isinstance(before, Stopping):
            running = stopping = False
        for action in decision.actions:
            assert not over, "no action after Exit"
            match action:
                case e.StartWorkers():
                    assert not running, "never two starts without a stop"
                    assert joining or pausing
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
        pausing = isinstance(decision.state.phase, Pausing)
        joining = joining and not pausing
        assert isinstance(decision.state.phase, Joining) == (joining and not over)
        assert isinstance(decision.state.phase, Working) == (running and not stopping and not over)
