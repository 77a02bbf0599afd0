"""Newcomers and leaving nodes: what an agent does about them, as a table."""

import msgspec
import pytest

from rallypoint.agent.policy import events as e
from rallypoint.agent.policy.membership_change import (
    MembershipRules,
    MembershipState,
    Outcome,
    asked_to_leave,
    decide,
    end_of,
    wait,
    will_leave,
)
from rallypoint.core.events import Assignment
from rallypoint.core.state import Newcomers
from rallypoint.worker.change import ChangeKind

JOINING, LEAVING = ChangeKind.JOINING, ChangeKind.LEAVING
END = e.Exit(143, "received SIGTERM")
MINE = e.Notice("a", "node-a", "maintenance", 20.0, mine=True)
OTHERS = e.Notice("b", "node-b", "spot reclaim")
OTHERS_SOONER = msgspec.structs.replace(OTHERS, seconds=9.0)
SOONER = e.NoticesChanged((MINE,))
NEWS = e.NodesWaiting(1)


def seat(rank: int) -> Assignment:
    return Assignment(1, 4, rank, 3, rank, 3, rank, 3, "h", 1, 0, "all came")


def rules(admit: Newcomers) -> MembershipRules:
    return MembershipRules(admit, gather_seconds=0.5, grace_seconds=60.0)


class Go:
    """Somebody asks this agent to go."""


class WillGo:
    """This agent will have to go."""


def after(admit: Newcomers, rank: int, *events: object) -> Outcome:
    outcome = Outcome(MembershipState())
    for event in events:
        known = (outcome.membership, rules(admit), seat(rank))
        if isinstance(event, Go):
            outcome = asked_to_leave(*known, END)
        elif isinstance(event, WillGo):
            outcome = will_leave(*known, END)
        else:
            outcome = decide(*known, event)  # type: ignore[arg-type]
    return outcome


def ask(kind: ChangeKind, who: str, why: str, seconds: float, watch: bool) -> e.AskToSave:
    return e.AskToSave(1, 4, kind, who, why, seconds, watch)


def timer(seconds: float, number: int) -> e.StartChangeTimer:
    return e.StartChangeTimer(4, seconds, number)


NOW, CHECKPOINT, NEVER = Newcomers
SAVED, DUE = e.WorkersSaved(4, 70), e.ChangeTimerElapsed(4, 1)
ONE_WAITS = ask(JOINING, "1 node", "1 node waits", 60.0, True)
LATE = "; the workers have not saved in"
LATE_20 = e.Exit(143, f"{END.text}{LATE} 20 s")
ALL_SAVED = "; all workers have saved at step 70"

TABLE: list[tuple[str, Newcomers, int, list[object], tuple[e.Action, ...], object]] = [
    # what, mode, rank, events, actions, what the workers are stopped for
    ("now: gather", NOW, 0, [NEWS], (timer(0.5, 1),), None),
    ("now: a second is gathered", NOW, 0, [NEWS, e.NodesWaiting(2)], (), None),
    ("now: let both in", NOW, 0, [NEWS, e.NodesWaiting(2), DUE], (), e.Join("2 nodes wait")),
    ("now: gone again", NOW, 0, [NEWS, e.NodesWaiting(0), DUE], (), None),
    ("now: another comes", NOW, 0, [NEWS, e.NodesWaiting(0), DUE, NEWS], (timer(0.5, 2),), None),
    ("now: go at once", NOW, 0, [Go()], (), END),
    ("now: another round's timer", NOW, 0, [NEWS, e.ChangeTimerElapsed(3, 1)], (), None),
    ("never: wait", NEVER, 0, [NEWS], (), None),
    ("never: go at once", NEVER, 0, [Go()], (), END),
    ("ask first", CHECKPOINT, 0, [NEWS], (ONE_WAITS, timer(60.0, 1)), None),
    (
        "one agent alone watches",
        CHECKPOINT,
        1,
        [NEWS],
        (ask(JOINING, "1 node", "1 node waits", 60.0, False), timer(60.0, 1)),
        None,
    ),
    ("ask once", CHECKPOINT, 0, [NEWS, e.NodesWaiting(3)], (), None),
    (
        "all saved: let in",
        CHECKPOINT,
        0,
        [NEWS, e.NodesWaiting(2), SAVED],
        (),
        e.Join(f"2 nodes wait{ALL_SAVED}"),
    ),
    ("saved in another round", CHECKPOINT, 0, [NEWS, e.WorkersSaved(3, 70)], (), None),
    ("the grace is over", CHECKPOINT, 0, [NEWS, DUE], (), e.Join(f"1 node waits{LATE} 60 s")),
    ("called off", CHECKPOINT, 0, [NEWS, e.NodesWaiting(0)], (e.CancelChange(),), None),
    (
        "called off while they saved: go on",
        CHECKPOINT,
        0,
        [NEWS, e.NodesWaiting(0), SAVED],
        (e.ReleaseWorkers(1, 4, 70),),
        None,
    ),
    ("the timer of what was called off", CHECKPOINT, 0, [NEWS, e.NodesWaiting(0), DUE], (), None),
    (
        "asked anew",
        CHECKPOINT,
        0,
        [NEWS, e.NodesWaiting(0), NEWS],
        (ONE_WAITS, timer(60.0, 2)),
        None,
    ),
    (
        "and only the new timer counts",
        CHECKPOINT,
        0,
        [NEWS, e.NodesWaiting(0), NEWS, DUE],
        (),
        None,
    ),
    (
        "a signal: save, then go; all are told",
        CHECKPOINT,
        2,
        [Go()],
        (
            ask(LEAVING, "this node", END.text, 60.0, True),
            timer(60.0, 1),
            e.GiveNotice(END.text, 60.0),
        ),
        None,
    ),
    ("then go", CHECKPOINT, 2, [Go(), SAVED], (), e.Exit(143, END.text + ALL_SAVED)),
    ("unsaved", CHECKPOINT, 2, [Go(), DUE], (), e.Exit(143, f"{END.text}{LATE} 60 s")),
    ("asked again: go at once", CHECKPOINT, 2, [Go(), Go()], (), END),
    (
        "one's own notice comes back: nothing new",
        CHECKPOINT,
        2,
        [Go(), e.NoticesChanged((msgspec.structs.replace(MINE, seconds=60.0),))],
        (),
        None,
    ),
    (
        "a sooner notice for this node: less time, no other save",
        CHECKPOINT,
        2,
        [Go(), SOONER],
        (timer(20.0, 2),),
        None,
    ),
    (
        "its time is over",
        CHECKPOINT,
        2,
        [Go(), e.NoticesChanged((MINE,)), e.ChangeTimerElapsed(4, 2)],
        (),
        LATE_20,
    ),
    (
        "the first time ends sooner",
        CHECKPOINT,
        2,
        [Go(), e.NoticesChanged((MINE,)), DUE],
        (),
        LATE_20,
    ),
    (
        "a sooner notice for another",
        NOW,
        2,
        [
            e.NoticesChanged((OTHERS,)),
            e.NoticesChanged((msgspec.structs.replace(OTHERS, seconds=9.0),)),
        ],
        (timer(9.0, 2),),
        None,
    ),
    (
        "a signal outranks newcomers",
        CHECKPOINT,
        2,
        [NEWS, Go(), SAVED],
        (),
        e.Exit(143, END.text + ALL_SAVED),
    ),
    (
        "preempted: save first in every mode",
        NOW,
        2,
        [WillGo()],
        (
            ask(LEAVING, "this node", END.text, 60.0, True),
            timer(60.0, 1),
            e.GiveNotice(END.text, 60.0),
        ),
        None,
    ),
    ("preempted twice", NOW, 2, [WillGo(), WillGo()], (), None),
    ("preempted, then told to go", NOW, 2, [WillGo(), Go()], (), END),
    (
        "a notice for this node, of another",
        NEVER,
        2,
        [e.NoticesChanged((OTHERS, MINE))],
        (ask(LEAVING, "node-a", "maintenance", 20.0, True), timer(20.0, 1)),
        None,
    ),
    (
        "a notice of long ahead: the grace is for saving, not for waiting",
        NEVER,
        2,
        [e.NoticesChanged((msgspec.structs.replace(MINE, seconds=600.0),))],
        (ask(LEAVING, "node-a", "maintenance", 60.0, True), timer(60.0, 1)),
        None,
    ),
    (
        "followed",
        NEVER,
        2,
        [e.NoticesChanged((MINE,)), SAVED],
        (),
        e.Exit(143, f"this node leaves: maintenance{ALL_SAVED}"),
    ),
    (
        "a notice for another",
        NOW,
        2,
        [e.NoticesChanged((OTHERS,))],
        (ask(LEAVING, "node-b", "spot reclaim", 60.0, False), timer(60.0, 1)),
        None,
    ),
    ("it leaves by itself", NOW, 0, [e.NoticesChanged((OTHERS,)), SAVED], (), None),
    ("newcomers wait for it", NOW, 0, [e.NoticesChanged((OTHERS,)), NEWS], (), None),
    (
        "and come in with its save",
        NOW,
        0,
        [e.NoticesChanged((OTHERS,)), NEWS, SAVED],
        (),
        e.Join(f"1 node waits{ALL_SAVED}"),
    ),
    ("it has not left", NEVER, 0, [e.NoticesChanged((OTHERS,)), DUE], (e.CancelChange(),), None),
    (
        "and is not waited for again",
        NEVER,
        0,
        [e.NoticesChanged((OTHERS,)), DUE, e.NoticesChanged((OTHERS,))],
        (),
        None,
    ),
    (
        "another one is",
        NEVER,
        0,
        [e.NoticesChanged((OTHERS,)), DUE, e.NoticesChanged((OTHERS, MINE))],
        (ask(LEAVING, "node-a", "maintenance", 20.0, True), timer(20.0, 2)),
        None,
    ),
    (
        "a notice taken back lets newcomers in",
        NOW,
        0,
        [e.NoticesChanged((OTHERS,)), NEWS, e.NoticesChanged(())],
        (e.CancelChange(), timer(0.5, 2)),
        None,
    ),
]


@pytest.mark.parametrize(
    ("admit", "rank", "events", "actions", "then"),
    [r[1:] for r in TABLE],
    ids=[r[0] for r in TABLE],
)
def test_outcomes(
    admit: Newcomers, rank: int, events: list[object], actions: tuple[e.Action, ...], then: object
) -> None:
    outcome = after(admit, rank, *events)
    assert (outcome.actions, outcome.then) == (actions, then)


@pytest.mark.parametrize(
    ("admit", "events", "reason"),
    [
        (NOW, [NEWS], "1 node waits"),
        (CHECKPOINT, [NEWS], "1 node waits: the workers have 60 s to save first"),
        (CHECKPOINT, [NEWS, SAVED], "1 node waits; all workers have saved at step 70"),
        (CHECKPOINT, [NEWS, e.NodesWaiting(0)], "no change is pending any more (1 node waits)"),
        (CHECKPOINT, [Go()], "received SIGTERM: the workers have 60 s to save first"),
        (NOW, [e.NoticesChanged((OTHERS,)), DUE], "node-b has not left in 60 s"),
        (
            CHECKPOINT,
            [NEWS, e.NodesWaiting(0), SAVED],
            "the workers have saved, but no change is pending",
        ),
    ],
)
def test_every_outcome_has_a_reason(admit: Newcomers, events: list[object], reason: str) -> None:
    assert after(admit, 0, *events).reason == reason


def test_leaving_node_does_not_join_again() -> None:
    assert end_of(MembershipState()) is None
    assert end_of(after(CHECKPOINT, 0, Go()).membership) == END
    assert end_of(after(NOW, 0, e.NoticesChanged((OTHERS,))).membership) is None
    followed = end_of(after(NOW, 0, e.NoticesChanged((MINE,))).membership)
    assert followed == e.Exit(143, "this node leaves: maintenance")


def test_wait_counts_nodes() -> None:
    assert [wait(1), wait(2)] == ["1 node waits", "2 nodes wait"]
