from typing import Any

import msgspec
import pytest
from tests.cli.golden import check
from tests.core.builders import a_node, a_settings

from rallypoint.agent.policy.decisions import AgentState, Decision
from rallypoint.agent.policy.events import Action, Event, Leave, Signal, StopWorkers, WorkersStopped
from rallypoint.agent.reporting.messages import stopping_line, waiting_line
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
    "a round is at work": report(*HERE, phase="sealed", reason="round 1 is at work with 4 nodes"),
    "many nodes: no names": report(),
}  # fmt: skip


def test_what_a_node_that_waits_tells() -> None:
    lines = []
    for name, one in PICTURES.items():
        lines += [f"{name}:", f"  {waiting_line(one, 0.0, 560.0)}"]
    check("waiting", "\n".join(lines) + "\n")


@pytest.mark.parametrize(("age", "text"), [(0.0, "node7 8 s ago"), (4.0, "node7 12 s ago")])
def test_the_time_since_the_report_is_counted(age: float, text: str) -> None:
    line = waiting_line(PICTURES["one of the round before is missing"], age, 30.0 - age)
    assert text in line
    assert line.endswith(f"join ends in {30 - age:.0f} s")


def test_the_end_of_the_last_call_comes_nearer() -> None:
    assert "last call ends in 10 s" in waiting_line(PICTURES["last call"], 2.0, 9.0)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (report(*HERE, phase="last call"), "3 of at most 4 nodes, last call;"),
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
def test_what_is_not_known_is_left_out(one: Report, text: str) -> None:
    assert text in waiting_line(one, 0.0, 560.0)


@pytest.mark.parametrize(
    ("event", "actions", "line"),
    [
        (
            Signal("SIGTERM", 15), (StopWorkers(30.0),),
            "received SIGTERM: stopping the workers, up to 30 s; again to end the grace",
        ),
        (Signal("SIGINT", 2), (StopWorkers(0.0),), "received SIGINT: ending the workers at once"),
        (Signal("SIGTERM", 15), (Leave("received SIGTERM"),), ""),
        (WorkersStopped(), (StopWorkers(30.0),), ""),
    ],
)  # fmt: skip
def test_a_signal_that_ends_the_workers_is_answered_at_once(
    event: Event, actions: tuple[Action, ...], line: str
) -> None:
    assert stopping_line(event, Decision(AgentState("node", 1), actions)) == line
