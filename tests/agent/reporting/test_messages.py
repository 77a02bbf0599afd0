from typing import Any

import msgspec
import pytest
from tests.cli.golden import check
from tests.core.builders import a_node, a_settings

from rallypoint.agent.policy.decisions import AgentState, Decision
from rallypoint.agent.policy.events import (
    Action,
    Event,
    Exit,
    Leave,
    Signal,
    StopWorkers,
    WorkersStopped,
)
from rallypoint.agent.reporting.messages import (
    LATER_FAILURES_SHOWN,
    final_report,
    stopping_line,
    waiting_line,
)
from rallypoint.core.state import Failure
from rallypoint.rendezvous.coordinator import NodeStatus, Report, RoundLine, RunningTimer


def member(
    number: int, place: str, heard: float | None = 1.0, connected: bool = True
) -> NodeStatus:
    return NodeStatus(a_node(f"node{number}"), place, None, connected, 5.0, heard)


def report(*members: NodeStatus, phase: str = "gathering", **more: Any) -> Report:
    settings = a_settings(4, 6)
    base = Report("run", phase, 1, 2, "2 of at least 4 nodes have joined", (), members, settings)
    return msgspec.structs.replace(base, **more)


HERE = [member(number, "candidate") for number in (1, 2, 3)]
LOST = RoundLine(1, 1, 90.0, "", 80.0, "", 8.0, "node7 was lost", 4, ("node7",))

PICTURES = {
    "one of the round before is missing": report(*HERE, member(7, "participant", 8.0)),
    "its connection is cut": report(*HERE, member(7, "participant", 8.0, False)),
    "several are": report(*[member(n, "participant", float(n)) for n in range(1, 7)]),
    "one was lost": report(*HERE, rounds=(LOST,)),
    "one left": report(*HERE, rounds=(msgspec.structs.replace(LOST, left=("node7",)),)),
    "one has finished": report(*HERE, member(7, "finished"), rounds=(LOST,)),
    "nobody has heard of the others": report(*HERE[:1]),
    "last call": report(
        *HERE, member(4, "candidate"), phase="last call",
        timers=(RunningTimer("last call", "last_call", 12.0),),
    ),
    "a round is at work": report(*HERE, phase="sealed", reason="round 1 is running with 4 nodes"),
    "many nodes: no names": report(),
}  # fmt: skip


def test_waiting_lines_match_the_golden_file() -> None:
    lines = []
    for name, one in PICTURES.items():
        lines += [f"{name}:", f"  {waiting_line(one, 0.0, 560.0)}"]
    check("waiting", "\n".join(lines) + "\n")


@pytest.mark.parametrize(("age", "text"), [(0.0, "node7 8 s ago"), (4.0, "node7 12 s ago")])
def test_age_of_the_report_is_added_to_its_times(age: float, text: str) -> None:
    line = waiting_line(PICTURES["one of the round before is missing"], age, 30.0 - age)
    assert text in line
    assert line.endswith(f"join timeout in {30 - age:.0f} s")


def test_last_call_counts_down() -> None:
    assert "starting in 10 s" in waiting_line(PICTURES["last call"], 2.0, 9.0)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (report(*HERE, phase="last call"), "3 of at most 4 nodes have joined; last call;"),
        (
            report(*HERE, phase="last call", timers=(RunningTimer("another", "lease", 1.0),)),
            "last call;",
        ),
        (report(*HERE, member(7, "participant", None)), "last seen node7;"),
        (
            report(*HERE, rounds=(msgspec.structs.replace(LOST, lost=()),)),
            "3 of 4 nodes, waiting for 1;",
        ),
    ],
)
def test_unknown_details_are_left_out(one: Report, text: str) -> None:
    assert text in waiting_line(one, 0.0, 560.0)


@pytest.mark.parametrize(
    ("event", "actions", "line"),
    [
        (
            Signal("SIGTERM", 15), (StopWorkers(30.0),),
            "received SIGTERM: stopping the workers within 30 s; send it again to kill them now",
        ),
        (Signal("SIGINT", 2), (StopWorkers(0.0),), "received SIGINT: killing the workers now"),
        (Signal("SIGTERM", 15), (Leave("received SIGTERM"),), ""),
        (WorkersStopped(), (StopWorkers(30.0),), ""),
    ],
)  # fmt: skip
def test_stopping_line_says_how_a_signal_stops_the_workers(
    event: Event, actions: tuple[Action, ...], line: str
) -> None:
    assert stopping_line(event, Decision(AgentState("node", 1), actions)) == line


FIRST = Failure("node-a (10.0.0.1) pid 7", 3, 1, 9, "", "12:00:01", "Traceback\nValueError: x", 2)
LATER = Failure("node-b pid 8", 0, 0, None, "SIGABRT", "12:00:02", "", 2)


def test_final_report_names_the_first_failure_then_the_later_ones() -> None:
    assert final_report(Exit(1, "the run was closed", (FIRST, LATER))) == (
        "first failure: rank 3 (local 1) on node-a (10.0.0.1) pid 7: exit code 9 at 12:00:01, "
        "in round 2\n"
        "  its last lines:\n"
        "  | Traceback\n"
        "  | ValueError: x\n"
        "\n"
        "later failures, probably its consequences:\n"
        "  rank 0 (local 0) on node-b pid 8: signal SIGABRT at 12:00:02, in round 2\n"
        "\n"
        "the run was closed"
    )


def test_failures_of_later_rounds_are_listed_apart() -> None:
    text = final_report(Exit(93, "closed", (FIRST, msgspec.structs.replace(LATER, round=5))))
    assert "consequences" not in text
    assert "in later rounds:\n  rank 0 (local 0) on node-b pid 8: signal SIGABRT" in text


def test_own_failures_are_reported_if_the_coordinator_has_none() -> None:
    assert "exit code 9" in final_report(Exit(1, "no connection"), [FIRST])
    assert "(it wrote nothing to stderr)" in final_report(Exit(1), [LATER])


def test_further_failures_are_counted() -> None:
    text = final_report(Exit(1, "", (FIRST, *[LATER] * 20)))
    assert text.count("node-b") == LATER_FAILURES_SHOWN
    assert text.endswith("and 12 more")


@pytest.mark.parametrize("code", [0, 143])
def test_no_report_after_success_or_a_signal(code: int) -> None:
    assert final_report(Exit(code, "received SIGTERM"), [FIRST]) == ""


@pytest.mark.parametrize(
    ("age", "text"), [(4.0, "lost 12 s ago: node7"), (52.0, "lost 1 min ago: node7")]
)
def test_time_since_a_loss_is_counted(age: float, text: str) -> None:
    assert text in waiting_line(PICTURES["one was lost"], age, 560.0)


def test_final_report_without_failures_is_the_reason() -> None:
    assert final_report(Exit(1, "no connection")) == "no connection"
