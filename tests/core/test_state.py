"""The values of the state: labels for people, places, numbers."""

import gc

import msgspec
import pytest
from tests.core.builders import a_failure, a_node, sealed

from rallypoint.core.state import (
    PLACES,
    Closed,
    Failure,
    Gathering,
    LastCall,
    Member,
    Node,
    Phase,
    Sealed,
    State,
    Verdict,
    find,
    round_number,
)


@pytest.mark.parametrize(
    ("node", "label"),
    [
        (Node(id="0123456789", address="10.0.0.1"), "10.0.0.1 id 01234567"),
        (Node(id="0123456789", address="10.0.0.1", pid=7), "10.0.0.1 pid 7"),
        (Node(id="x", address="10.0.0.1", pid=7, host="node1"), "node1 (10.0.0.1) pid 7"),
        (Node(id="x", address="node1", pid=7, host="node1"), "node1 pid 7"),
    ],
)
def test_a_nodes_label(node: Node, label: str) -> None:
    assert node.label == label


@pytest.mark.parametrize(
    ("failure", "label"),
    [
        (a_failure("n1", code=3), "rank 0 (local 0) on n1: exit code 3"),
        (Failure("n1", 5, 1, None, "", "noon"), "rank 5 (local 1) on n1: it hung at noon"),
        (
            Failure("n1", 5, 1, None, "SIGKILL", "noon"),
            "rank 5 (local 1) on n1: signal SIGKILL at noon",
        ),
    ],
)
def test_a_failures_label(failure: Failure, label: str) -> None:
    assert failure.label == label


def test_round_numbers_of_the_phases() -> None:
    record = sealed("node1", "node2").record
    phases: list[tuple[Phase, int]] = [
        (Gathering(3), 3),
        (LastCall(4, 1), 4),
        (Sealed(record), 1),
        (Closed(5, "", "", ""), 5),
    ]
    assert [round_number(phase) for phase, _ in phases] == [n for _, n in phases]


def test_a_closed_run_has_finished_if_that_is_the_verdict() -> None:
    assert [Closed(1, "", "", "", verdict).finished for verdict in Verdict] == [True, False, False]
    assert Closed(1, "", "", "").verdict is Verdict.CLOSED


@pytest.mark.parametrize("place", PLACES)
def test_a_node_is_found_wherever_it_is(place: str) -> None:
    member = Member(node=a_node("node1"), arrival=1)
    state = msgspec.structs.replace(State(run_id="x"), **{place: {"node1": member}})
    assert find(state, "node1") is member
    assert find(state, "node2") is None


def test_rank_0_gives_the_bootstrap_address() -> None:
    record = sealed("node2", "node1").record
    assert (record.master_addr, record.master_port) == ("node1", 20_001)


def test_no_value_costs_the_collector_of_cycles_anything() -> None:
    run = sealed("n1", "n2")
    member = run.state.participants["n1"]
    values = (run.state, run.record, run.record.seats[0], member, member.node, run.settings)
    for value in (*values, *run.step.messages, run.joining("n3")):
        assert not gc.is_tracked(value), value


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        State(run_id="x").run_id = "y"  # type: ignore[misc] # this is the point
