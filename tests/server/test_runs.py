"""The host of the core on a loop with manual time: order, grace, leases, resuming."""

from typing import Any

import msgspec
import pytest
from tests.server.fakes import SETTINGS, Bench, FakeConnection

from rallypoint.core.events import (
    Close,
    Exclude,
    Finish,
    Leave,
    NoticeGiven,
    Notify,
    Parked,
    Refusal,
    Refused,
    RoundOpened,
    RunClosed,
    WaitingChanged,
)
from rallypoint.core.state import Aspect, Gathering, Sealed, Settings
from rallypoint.rendezvous import wire
from rallypoint.rendezvous.view import Seated
from rallypoint.server.runs import AT_ONCE_NODES, LEAST_SECONDS, SECONDS_A_NODE, grace_seconds


@pytest.mark.parametrize(
    ("was_held_up", "return_seconds", "grace"),
    [(False, -1.0, 1.0), (True, -1.0, 15.0), (False, 40.0, 40.0), (True, 4.0, 15.0)],
)
def test_grace_is_longer_after_this_process_was_away(
    was_held_up: bool, return_seconds: float, grace: float
) -> None:
    settings = Settings(1, 1, lease_seconds=15.0, disconnect_grace_seconds=1.0)
    assert grace_seconds(settings, was_held_up, return_seconds) == grace


def told(connection: FakeConnection, kind: type[Any]) -> Any:
    """Return the one message of a kind that has come; forget all."""
    found = [message for message in connection.take() if isinstance(message, kind)]
    assert len(found) == 1, found
    return found[0]


def connected(bench: Bench) -> set[str]:
    """Return the participants that the state holds for connected."""
    return {node for node, m in bench.host.state.participants.items() if m.connected}


def test_messages_go_out_only_after_the_state_is_stored() -> None:
    bench = Bench()
    seen: list[object] = []
    for node in ("a", "b"):
        connection = bench.join(node)
        connection.at_send = lambda: seen.append(bench.host.state.phase)
    bench.loop.turn()
    bench.loop.advance(31)
    assert len(seen) == 2
    assert all(isinstance(phase, Sealed) for phase in seen)


def test_events_of_one_turn_are_one_write() -> None:
    bench = Bench()
    for node in "abcd":
        bench.join(node)
    bench.loop.turn()
    assert bench.host.writes == 1
    assert all(isinstance(s.take()[0], Seated) for s in bench.connections.values())


def test_joining_node_gets_its_seat_and_no_round_opened() -> None:
    bench = Bench()
    bench.seal("a", "b", "c")
    bench.join("a", 1, 1)
    bench.loop.turn()
    assert bench.connections["a"].take() == []
    assert told(bench.connections["b"], RoundOpened).round == 2


MANY = Settings(2, 3000, last_call_seconds=30.0, lease_seconds=15.0)
WAIT_SECONDS = 2000 * SECONDS_A_NODE


def many_nodes() -> Bench:
    bench = Bench(MANY)
    for number in range(2000):
        bench.join(f"n{number}")
    bench.loop.turn()
    bench.host.writes = 0
    return bench


def test_few_nodes_do_not_wait_for_others() -> None:
    bench = Bench(MANY)
    for number in range(AT_ONCE_NODES):
        bench.join(f"n{number}")
        bench.loop.turn()
    assert bench.host.writes == AT_ONCE_NODES
    for number in range(5):  # that is one more, and as many as come within a moment
        bench.join(f"late{number}")
        bench.loop.turn()
    assert bench.host.writes == AT_ONCE_NODES
    bench.loop.now += LEAST_SECONDS * 1.1
    bench.loop.turn()
    assert bench.host.writes == AT_ONCE_NODES + 1


def test_events_of_thousands_of_nodes_are_batched() -> None:
    bench = many_nodes()
    for late in ("x", "y"):
        bench.join(late)
        bench.loop.turn()
        assert bench.host.writes == 0
    bench.loop.now += WAIT_SECONDS * 1.1
    bench.loop.turn()
    assert bench.host.writes == 1
    assert {"x", "y"} <= set(bench.host.state.candidates)


def test_events_that_decide_do_not_wait_for_others() -> None:
    bench = many_nodes()
    bench.join("x")
    bench.ask("n7", 1, Leave("n7", "done"))
    bench.loop.turn()
    assert bench.host.writes == 1
    assert "x" in bench.host.state.candidates
    assert "n7" not in bench.host.state.candidates


def test_thousands_of_reconnects_are_few_writes() -> None:
    bench = many_nodes()
    cut = [f"n{number}" for number in range(500)]
    for node in cut:
        bench.host.disconnected(bench.connections[node])
    bench.loop.now += WAIT_SECONDS * 1.1
    bench.loop.turn()
    assert bench.host.writes == 1
    assert sum(not m.connected for m in bench.host.state.candidates.values()) == len(cut)
    for node in cut:
        bench.host.resume(bench.connect(node), wire.Resume(node, 1, 1))
    bench.loop.now += WAIT_SECONDS * 1.1
    bench.loop.turn()
    assert bench.host.writes == 2
    assert all(member.connected for member in bench.host.state.candidates.values())


def test_leave_is_acknowledged_after_it_is_stored() -> None:
    bench = Bench()
    bench.seal("a", "b", "c")
    connection = bench.ask("c", 7, Leave("c", "done here"))
    assert connection.take() == []
    bench.loop.turn()
    assert connection.take() == [wire.Done(7)]
    opened = told(bench.connections["a"], RoundOpened)
    assert "done here" in opened.why
    assert bench.labels_lost() == set()


# -- grace (L1) ---------------------------------------------------------------------------


def test_disconnected_node_is_lost_after_the_grace() -> None:
    bench = Bench()
    bench.seal("a", "b", "c")
    bench.host.disconnected(bench.connections["c"])
    bench.loop.advance(0.9)
    assert bench.connections["a"].take() == []
    bench.loop.advance(0.2)
    assert told(bench.connections["a"], RoundOpened).lost == ("c (10.0.0.1) id c",)
    assert "c" in bench.labels_lost()


def test_grace_is_at_most_the_lease() -> None:
    bench = Bench(
        msgspec.structs.replace(SETTINGS, disconnect_grace_seconds=60.0, lease_seconds=3.0)
    )
    bench.join("a")
    bench.join("b")
    bench.loop.turn()
    bench.host.disconnected(bench.connections["b"])
    bench.loop.advance(3.2)
    assert "b" in bench.labels_lost()


def test_resume_within_the_grace_changes_nothing() -> None:
    bench = Bench()
    bench.seal("a", "b")
    bench.host.disconnected(bench.connections["b"])
    bench.loop.advance(0.5)
    assert connected(bench) == {"a"}
    connection = bench.connect("b")
    bench.host.resume(connection, wire.Resume("b", 1, 1))
    bench.loop.advance(5)
    assert connected(bench) == {"a", "b"}
    assert bench.connections["a"].take() == []
    assert connection.take() == [WaitingChanged(1, 1, 0)]
    assert bench.labels_lost() == set()


def test_repeated_join_within_the_grace_counts_as_a_resume() -> None:
    bench = Bench()
    bench.join("a")
    bench.loop.turn()
    bench.host.disconnected(bench.connections["a"])
    bench.loop.advance(0.5)
    bench.connect("a")
    bench.join("a")
    bench.loop.advance(5)
    assert bench.host.state.candidates["a"].connected
    assert bench.labels_lost() == set()


def test_old_connection_that_ends_late_changes_nothing() -> None:
    bench = Bench()
    bench.seal("a", "b")
    old = bench.connections["b"]
    bench.host.resume(bench.connect("b"), wire.Resume("b", 1, 1))
    bench.host.disconnected(old)
    bench.loop.advance(5)
    assert bench.labels_lost() == set()


# -- resuming: what was missed ------------------------------------------------------------


def test_lost_node_that_resumes_is_fenced() -> None:
    bench = Bench()
    bench.seal("a", "b", "c")
    bench.host.disconnected(bench.connections["c"])
    bench.loop.advance(2)
    connection = bench.connect("c")
    bench.host.resume(connection, wire.Resume("c", 1, 1))
    refused = told(connection, Refused)
    assert refused.refusal is Refusal.FENCED
    assert "its connection closed" in refused.why
    assert connection.node is None


def test_unknown_node_learns_that_it_is_unknown() -> None:
    bench = Bench()
    connection = bench.connect("a")
    bench.host.resume(connection, wire.Resume("a", 1, 3))
    refused = told(connection, Refused)
    assert refused.refusal is Refusal.FENCED
    assert "restarted without its state" in refused.why


def test_resumed_node_learns_of_a_round_opened_meanwhile() -> None:
    bench = Bench()
    bench.seal("a", "b", "c")
    bench.host.disconnected(bench.connections["b"])
    bench.ask("c", 1, Leave("c", "gone"))
    bench.loop.advance(0.5)
    connection = bench.connect("b")
    bench.host.resume(connection, wire.Resume("b", 1, 1))
    opened = told(connection, RoundOpened)
    assert (opened.round, "gone" in opened.why) == (2, True)
    assert isinstance(bench.host.state.phase, Gathering)


def test_resumed_node_gets_a_seat_assigned_meanwhile() -> None:
    bench = Bench()
    bench.seal("a", "b")
    bench.join("a", 1, 1)
    bench.join("b", 1, 1)
    bench.host.disconnected(bench.connections["b"])
    bench.loop.turn()
    assert isinstance(bench.host.state.phase, Sealed)
    connection = bench.connect("b")
    bench.host.resume(connection, wire.Resume("b", 1, 1))
    assert told(connection, Seated).seat.round == 2


def test_resumed_node_learns_how_many_wait() -> None:
    bench = Bench()
    bench.seal("a", "b")
    bench.host.disconnected(bench.connections["b"])
    bench.join("n")
    bench.loop.turn()
    assert isinstance(bench.connections["n"].take()[0], Parked)
    connection = bench.connect("b")
    bench.host.resume(connection, wire.Resume("b", 1, 1))
    assert told(connection, WaitingChanged).count == 1


def test_resumed_node_learns_of_standing_notices() -> None:
    bench = Bench()
    bench.seal("a", "b")
    bench.host.disconnected(bench.connections["b"])
    bench.ask("a", 3, Notify("a", "spot machine", seconds=25.0))
    bench.loop.turn()
    assert told(bench.connections["a"], NoticeGiven).seconds == 25.0
    connection = bench.connect("b")
    bench.host.resume(connection, wire.Resume("b", 1, 1))
    assert told(connection, NoticeGiven).why == "spot machine"
    bench.loop.advance(5)
    (notice,) = bench.host.report().notices
    assert (notice.node, notice.remaining_seconds) == ("a (10.0.0.1) id a", 20.0)


def test_h1_node_excluded_while_disconnected_learns_it() -> None:
    bench = Bench()
    bench.seal("a", "b", "c")
    bench.host.disconnected(bench.connections["b"])
    out = Exclude(Aspect.NODE, "b", "bad memory", "alice", 60.0)
    bench.ask("a", 3, out)
    bench.loop.turn()
    assert told(bench.connections["a"], RoundOpened).lost == ("b (10.0.0.1) id b",)
    connection = bench.connect("b")
    bench.host.resume(connection, wire.Resume("b", 1, 1))
    refused = told(connection, Refused)
    assert (refused.refusal, connection.node) == (Refusal.EXCLUDED, None)
    assert "bad memory" in refused.why
    bench.join("b")
    bench.loop.turn()
    assert told(connection, Refused).refusal is Refusal.EXCLUDED
    (line,) = bench.host.report().exclusions
    assert line.remaining_seconds is not None
    assert 59 < line.remaining_seconds <= 60
    bench.loop.advance(61)  # its time is over
    assert bench.host.state.exclusions == ()


@pytest.mark.parametrize("finished", [False, True])
def test_resumed_node_learns_that_the_run_was_closed(finished: bool) -> None:
    bench = Bench()
    bench.seal("a", "b")
    if finished:  # this node was done before its connection was cut
        bench.host.ask(bench.connections["b"], wire.Ask(1, Finish("b", 1, 1)))
        bench.loop.turn()
    bench.host.disconnected(bench.connections["b"])
    bench.ask("a", 2, Close("someone", "enough"))
    bench.loop.advance(0.5)
    connection = bench.connect("b")
    bench.host.resume(connection, wire.Resume("b", 1, 1))
    closed = told(connection, RunClosed)
    assert (closed.by, closed.why) == ("someone", "enough")


def test_closing_a_closed_run_names_who_was_faster() -> None:
    bench = Bench()
    bench.connect("x")
    bench.connect("y")
    bench.ask("x", 1, Close("x", "first"))
    bench.loop.turn()
    assert [type(message) for message in bench.connections["x"].take()] == [RunClosed, wire.Done]
    bench.ask("y", 1, Close("y", "second"))
    bench.loop.turn()
    closed, done = bench.connections["y"].take()
    assert (closed.by, closed.why, done) == ("x", "first", wire.Done(1))


def test_fenced_node_joins_under_a_new_id_on_the_same_connection() -> None:
    bench = Bench()
    bench.seal("a", "b")
    connection = bench.connections["b"]
    connection.heard_at -= 100
    bench.sweep()
    assert told(connection, Refused).refusal is Refusal.FENCED
    bench.connections["new"] = connection
    bench.join("new")
    bench.join("a", 1, 1)
    bench.loop.turn()
    assert told(connection, Seated).seat.round == 2
    assert set(bench.host.state.participants) == {"a", "new"}


# -- leases, and the judge's own outages ---------------------------------------------------


def test_node_silent_for_a_lease_is_lost() -> None:
    bench = Bench()
    bench.seal("a", "b", "c")
    bench.loop.advance(14)
    bench.connections["a"].heard_at = bench.connections["b"].heard_at = bench.loop.now
    bench.sweep()
    assert bench.labels_lost() == set()
    bench.loop.advance(1.5)
    bench.sweep()
    assert bench.labels_lost() == {"c"}
    assert told(bench.connections["c"], Refused).refusal is Refusal.FENCED


@pytest.mark.cases("case-B5")
def test_pause_of_the_server_loses_no_node() -> None:
    bench = Bench()
    bench.seal("a", "b")
    bench.loop.stall(45)
    bench.sweep(gap=45)
    assert bench.labels_lost() == set()
    assert all(s.heard_at <= bench.loop.now for s in bench.connections.values())
    bench.loop.advance(16)  # but a real death is still seen in one lease
    bench.sweep()
    assert bench.labels_lost() == {"a", "b"}


@pytest.mark.cases("case-B5")
def test_grace_that_ended_during_an_outage_starts_again() -> None:
    bench = Bench()
    bench.seal("a", "b")
    bench.host.disconnected(bench.connections["b"])
    bench.loop.advance(0.5)
    bench.loop.stall(10)  # the timer is run before the sweep
    assert bench.labels_lost() == set()
    bench.sweep(gap=10)
    bench.loop.advance(10)  # clients come back with backoff: a lease, not a grace
    assert bench.labels_lost() == set()
    bench.host.resume(bench.connect("b"), wire.Resume("b", 1, 1))
    bench.loop.advance(10)
    assert bench.labels_lost() == set()


@pytest.mark.cases("case-B5")
def test_node_disconnected_by_an_outage_has_a_lease_to_return() -> None:
    bench = Bench()
    bench.seal("a", "b")
    bench.loop.stall(30)
    bench.sweep(gap=30)
    bench.host.disconnected(bench.connections["b"])
    bench.loop.advance(14)
    assert bench.labels_lost() == set()
    bench.loop.advance(2)
    assert bench.labels_lost() == {"b"}


@pytest.mark.cases("case-B5")
def test_timers_of_the_core_are_extended_by_the_outage() -> None:
    bench = Bench(msgspec.structs.replace(SETTINGS, lease_seconds=1000.0))
    bench.seal("a", "b", "c")
    bench.join("a", 1, 1, why="scale")
    bench.loop.turn()  # b and c have rejoin_timeout (60 s)
    bench.loop.advance(40)
    bench.loop.stall(30)  # past the end of the timer
    bench.sweep(gap=30)
    assert bench.labels_lost() == set()
    bench.sweep()
    bench.loop.advance(10)
    assert bench.labels_lost() == set()
    bench.loop.advance(31)
    assert bench.labels_lost() == {"b", "c"}


# -- the rest -----------------------------------------------------------------------------


def test_report_says_what_the_run_waits_for() -> None:
    bench = Bench()
    bench.join("a")
    report = bench.host.report()
    assert report.run_id == "run"
    assert report.server == "server x:1"
    assert "1 of" in report.reason
    assert [member.place for member in report.members] == ["candidate"]
    assert bench.host.seats() == ()


def test_idle_means_nobody_is_live_connected_or_expected() -> None:
    bench = Bench()
    assert bench.host.is_idle()
    bench.join("a")
    assert not bench.host.is_idle()
    bench.loop.turn()
    bench.host.disconnected(bench.connections["a"])
    assert not bench.host.is_idle()
    bench.loop.advance(2)
    assert bench.host.is_idle()


def test_stop_leaves_no_timer() -> None:
    bench = Bench()
    bench.join("a")
    bench.join("b")
    bench.loop.turn()
    bench.host.disconnected(bench.connections["b"])
    assert bench.loop.pending == 2
    bench.host.stop()
    assert bench.loop.pending == 0
