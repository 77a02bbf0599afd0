"""Events and messages: what a node needs of a round, and the wire's view of them."""

import msgspec
import pytest
from tests.core.builders import Drive, a_failure, sealed

from rallypoint.core.events import (
    Admit,
    Assignment,
    Beat,
    Cause,
    Close,
    Disconnected,
    Event,
    Exclude,
    ExclusionOver,
    Fail,
    Finish,
    LastCallOver,
    Leave,
    Lost,
    Message,
    NoticeGiven,
    Notify,
    Parked,
    Reconnected,
    Refusal,
    Refused,
    RejoinOver,
    ReplacementWaitOver,
    RoundOpened,
    RoundSealed,
    RunClosed,
    SettingsHeld,
    SteadyOver,
    WaitingChanged,
    assignment,
    shut_out_as,
)
from rallypoint.core.state import Aspect, Verdict


def test_e1_assignment_matches_the_round_record() -> None:
    run = Drive(2, 2)
    run.join("node1", local_world_size=2)
    run.join("node2", local_world_size=3, role="reader")
    assert assignment(run.record, 1) == Assignment(
        incarnation=1,
        round=1,
        rank=1,
        size=2,
        worker_offset=2,
        world_size=5,
        role_offset=0,
        role_world_size=3,
        master_addr="node1",
        master_port=20_001,
        restarts=0,
        reason="all 2 nodes joined (max_nodes=2)",
    )


def test_join_of_a_closed_run_gets_its_verdict() -> None:
    closed = [RunClosed(1, 1, "", "", "", verdict).finished for verdict in Verdict]
    refused = [Refused(Refusal.CLOSED, "", verdict=verdict).finished for verdict in Verdict]
    assert closed == refused == [True, False, False]
    assert not Refused(Refusal.STALE, "").finished


EVENTS: list[Event] = [
    Drive().joining("node1", why="x", new_incarnation=True),
    Leave("node1", "why"),
    Finish("node1", 1, 2, "noon"),
    Fail("node1", 1, 2, a_failure()),
    Close("alice", "why"),
    Notify("node1", "spot machine", "alice", 25.0),
    Exclude(Aspect.SLOT, "pod-3", "bad memory", "alice", 60.0, "noon"),
    Admit(Aspect.SLOT, "pod-3", "alice"),
    Beat("node1"),
    Disconnected("node1"),
    Reconnected("node1"),
    Lost("node1", Cause.DIED, 4),
    LastCallOver(1, 2, 3),
    RejoinOver(1, 2),
    ReplacementWaitOver(1, 2),
    SteadyOver(1, 2),
    ExclusionOver(3),
]
MESSAGES: list[Message] = [
    RoundSealed(sealed("node1", "node2").record),
    RoundOpened(1, 2, "why", ("x",)),
    Parked(1, 2, True, "why"),
    WaitingChanged(1, 2, 3),
    NoticeGiven(1, 2, "node1", "node1 pid 1", "spot machine", "alice", 25.0),
    SettingsHeld("lease=15.0 (not 5.0)"),
    RunClosed(1, 2, "alice", "noon", "why", Verdict.BUDGET, (a_failure(),)),
    Refused(Refusal.STALE, "why"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_events_round_trip_by_their_tags(event: Event) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=Event) == event


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_round_trip_by_their_tags(message: Message) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message) == message


def test_every_event_kind_is_listed() -> None:
    assert {type(e) for e in EVENTS} == set(Event.__args__)
    assert {type(m) for m in MESSAGES} == set(Message.__args__)


def test_i1_replaced_node_learns_that_it_must_not_come_back() -> None:
    assert shut_out_as("a", {"a"}) is Refusal.REPLACED
    assert shut_out_as("b", {"a"}) is Refusal.FENCED
