import json
from pathlib import Path

import pytest

import rallypoint
from rallypoint.agent.policy import events as e
from rallypoint.agent.policy.decisions import AgentState, Decision, begin, decide
from rallypoint.agent.reporting import records
from rallypoint.agent.reporting.records import Kind
from rallypoint.core.events import Assignment
from rallypoint.core.state import Verdict

SEAT = Assignment(1, 1, 0, 2, 0, 2, 0, 2, "h", 1, 0, "all came")
CRASHED = Assignment(1, 3, 0, 1, 0, 1, 0, 1, "h", 1, 2, "x", 1)
SEALED = e.Sealed(SEAT)
OPENED = e.RoundOpened(1, 2, "node-c was lost", ("node-c",))


def kinds(*events: e.Event) -> list[Kind]:
    """Return what is told of the last of several events."""
    decision = begin(AgentState("node-a", 1))
    for event in events:
        decision = decide(decision.state, event)
    return [kind for kind, _why, _data in records.entries(events[-1], decision)]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([SEALED], [Kind.SEALED, Kind.STARTED]),
        ([SEALED, OPENED], [Kind.LOST, Kind.RESTART, Kind.STOPPING]),
        ([SEALED, OPENED, OPENED], []),  # an echo
        ([SEALED, OPENED, e.WorkersStopped()], [Kind.STOPPED, Kind.JOIN]),
        (
            [SEALED, e.WorkerExited(1, 0, 0)],
            [Kind.WORKER_EXITED, Kind.FINISH, Kind.LEAVE, Kind.EXIT],
        ),
        (
            [SEALED, e.WorkerHung(1, 0, 9, 61.0)],
            [Kind.WORKER_HUNG, Kind.WORKER_FAILED, Kind.STOPPING],
        ),
        ([SEALED, e.Fenced("silent")], [Kind.FENCED, Kind.STOPPING]),
        (
            [SEALED, e.RunClosed(1, "b", "why", Verdict.CLOSED)],
            [Kind.CLOSED, Kind.STOPPING],
        ),
        ([SEALED, e.SignalToForward("SIGUSR1", 10)], [Kind.SIGNAL]),
        (
            [SEALED, e.PreemptSignal("SIGUSR2", 12)],
            [Kind.SIGNAL, Kind.ASKED_TO_SAVE, Kind.NOTICE],
        ),
        (
            [SEALED, e.PreemptSignal("SIGUSR2", 12), e.WorkersSaved(1, 7)],
            [Kind.SAVED, Kind.STOPPING, Kind.LEAVE],
        ),
        ([e.Signal("SIGTERM", 15)], [Kind.SIGNAL, Kind.LEAVE, Kind.EXIT]),
        ([e.AgentFailed("oh")], [Kind.ERROR, Kind.LEAVE, Kind.EXIT]),
        ([e.JoinFailed(e.JoinError.TIMEOUT, "1 of 2")], [Kind.JOIN_FAILED, Kind.EXIT]),
        ([e.Sealed(CRASHED)], [Kind.SEALED, Kind.BACKOFF]),
    ],
)  # fmt: skip
def test_entries(events: list[e.Event], expected: list[Kind]) -> None:
    assert kinds(*events) == expected


def test_shipped_schema_is_current() -> None:
    path = Path(rallypoint.__file__).parent / "schemas" / "event.v1.json"
    assert json.loads(path.read_text("utf-8")) == records.json_schema()


def test_waiting_newcomers_are_recorded() -> None:
    assert kinds(SEALED, e.NodesWaiting(2))[0] is Kind.WAITING


def test_first_decision_is_recorded_without_an_event() -> None:
    told = records.entries(None, begin(AgentState("node-a", 1)))
    assert [kind for kind, _why, _data in told] == [Kind.JOIN]


def test_only_a_sealed_round_brings_an_assignment() -> None:
    assert records.seat_of(SEALED) is SEAT
    assert records.seat_of(OPENED) is None
    assert records.seat_of(None) is None


@pytest.mark.parametrize(("reason", "expected"), [("rejoining", [Kind.RESTART]), ("", [])])
def test_round_that_opens_is_recorded_if_the_agent_reacts(
    reason: str, expected: list[Kind]
) -> None:
    decision = Decision(AgentState("node-a", 1), (), reason)
    said = records.entries(e.RoundOpened(1, 2, "node-b left"), decision)
    assert [kind for kind, _why, _data in said] == expected
