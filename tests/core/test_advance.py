"""`advance`: the rules of rounds by their numbers (J, G, S, E), timers and batches.

The rules of coming and going are in test_membership.py, those of sealing in test_rounds.py.
"""

import pytest
from tests.core.builders import Drive, a_failure, a_node, a_settings, sealed

from rallypoint.core.advance import Step, advance, closed_by_fault, timer_seconds, timers
from rallypoint.core.events import (
    Beat,
    Event,
    Exclude,
    ExclusionOver,
    Finish,
    LastCallOver,
    Leave,
    Notify,
    RejoinOver,
    ReplacementWaitOver,
    RoundOpened,
    RoundSealed,
    RunClosed,
    Send,
    SteadyOver,
)
from rallypoint.core.invariants import check_state, check_step
from rallypoint.core.state import (
    Aspect,
    Closed,
    Gathering,
    LastCall,
    RunState,
    Verdict,
)


def test_nothing_happens_without_events() -> None:
    state = RunState(run_id="demo")
    opened = "run 'demo' has not been opened: no node has joined"
    assert advance(state) == Step(state, (), (), ())
    assert advance(state).reason == opened


def test_j2_min_nodes_start_the_last_call() -> None:
    run = Drive(2, 4, last_call_seconds=7)
    step = run.join("node1")
    assert (run.phase, step.timers, step.messages) == ("Gathering", (), ())
    assert step.reason == (
        "node1 pid 1 joined; 1 of at least 2 nodes have joined round 1; waiting for 1 more; "
        "here: node1 pid 1"
    )
    step = run.join("node2")
    assert step.state.phase == LastCall(round=1, call=1)
    assert step.timers == (LastCallOver(incarnation=1, round=1, call=1),)
    assert timer_seconds(step.state, step.timers[0]) == 7
    assert step.reason == (
        "node2 pid 2 joined; 2 of at least 2 nodes have joined round 1; "
        "last call for up to 2 more (last_call=7 s)"
    )


def test_j2_below_min_nodes_ends_the_last_call() -> None:
    run = Drive(2, 4)
    run.join("node1", "node2")
    first = run.step.timers[0]
    step = run.leave("node2", "ctrl-c")
    assert step.state.phase == Gathering(round=1)
    assert step.timers == ()
    assert step.reason.startswith("node2 pid 2 left: ctrl-c; 1 of at least 2 nodes")
    assert run.join("node3").state.phase == LastCall(round=1, call=2)
    before = run.state
    assert run.do(first).state == before  # the timer of the first call comes too late
    assert run.phase == "LastCall"


def test_j2_loss_above_min_nodes_keeps_the_last_call() -> None:
    run = Drive(2, 4)
    run.join("node1", "node2", "node3")
    assert run.leave("node3").state.phase == LastCall(round=1, call=1)


def test_j3_max_nodes_seal_at_once() -> None:
    run = Drive(1, 3)
    run.join("node1", "node2")
    step = run.join("node3")
    assert step.reason == (
        "round 1 sealed with 3 nodes: all 3 nodes joined (max_nodes=3); "
        "round 1 is running with 3 nodes"
    )
    assert step.timers == ()
    assert [run.kinds(n) for n in ("node1", "node2", "node3")] == [["RoundSealed"]] * 3


@pytest.mark.cases("case-C5")
@pytest.mark.parametrize(("target", "sealed_at"), [(2, 2), (3, 3), (None, 4), (9, 4)])
def test_j3_target_nodes_seal_at_once(target: int | None, sealed_at: int) -> None:
    run = Drive(2, 4, target_nodes=target)
    for count in range(1, 5):
        run.join(f"node{count}")
        if run.phase == "Sealed":
            break
    assert len(run.record.seats) == sealed_at


def test_b1_steady_round_ends_consecutive_failures() -> None:
    run = sealed("node1", "node2", steady_after_seconds=7)
    run.fail("node1")
    run.rejoin("node1", "node2")
    steady = SteadyOver(1, 2)
    assert run.step.timers == (steady,)
    assert timer_seconds(run.state, steady) == 7
    for stale in (SteadyOver(1, 1), SteadyOver(1, 3), SteadyOver(2, 2)):
        before = run.state
        assert run.do(stale).state == before
    step = run.do(steady)
    assert (step.state.failing, step.timers) == (0, ())
    assert step.reason.startswith("round 2 works steadily; ")


def test_h1_exclusions_have_timers_in_every_phase() -> None:
    run = Drive(1, 2)
    run.do(Exclude(Aspect.SLOT, "a", "", "me", 9.0), Exclude(Aspect.SLOT, "b", "", "me"))
    assert list(run.step.timers) == [ExclusionOver(1)]
    assert timer_seconds(run.state, ExclusionOver(1)) == 9
    assert timer_seconds(run.state, ExclusionOver(2)) == 0  # until it is admitted
    assert timer_seconds(run.state, ExclusionOver(3)) == 0
    run.join("node1")
    assert list(run.step.timers) == [LastCallOver(1, 1, 1), ExclusionOver(1)]
    run.close()
    assert list(run.step.timers) == [ExclusionOver(1)]
    assert run.do(ExclusionOver(1)).timers == ()


def test_timer_of_an_unopened_run_has_no_length() -> None:
    assert timer_seconds(RunState("x"), RejoinOver(1, 1)) == 0


def test_p1_notice_changes_no_round_and_starts_no_timer() -> None:
    run = sealed("node1", "node2")
    phase = run.state.phase
    step = run.do(Notify("node1", "why", seconds=5.0))
    assert (step.state.phase, step.timers) == (phase, ())


LATE: dict[str, Event] = {
    "steady": SteadyOver(1, 1),
    "exclusion": ExclusionOver(1),
    "last-call": LastCallOver(1, 1, 1),
    "rejoin": RejoinOver(1, 1),
    "rejoin-next": RejoinOver(1, 2),
    "replacement": ReplacementWaitOver(1, 1),
    "replacement-next": ReplacementWaitOver(1, 2),
}


@pytest.mark.parametrize("event", LATE.values(), ids=LATE)
def test_e1_no_timer_touches_a_sealed_round(event: Event) -> None:
    run = sealed("node1", "node2")
    before = run.state
    step = run.do(event)
    assert (step.state, step.messages) == (before, ())


@pytest.mark.cases("case-B1")
def test_j5_after_a_loss_the_survivors_seal_at_once() -> None:
    run = sealed("node1", "node2", "node3")
    run.lose("node2")
    run.rejoin("node1")
    step = run.rejoin("node3")
    assert run.number == 2
    assert run.ranks() == ["node1", "node3"]
    assert run.record.reason == "all 2 live nodes have joined"
    assert step.timers == ()


def test_j5_survivors_below_min_wait_for_newcomers_without_a_last_call() -> None:
    run = sealed("node1", "node2")
    run.lose("node2")
    step = run.rejoin("node1")
    assert (run.phase, step.timers) == ("Gathering", ())
    assert "; waiting for 1 more; here: node1 pid 1" in step.reason
    run.join("node9")
    assert run.ranks() == ["node1", "node9"]


def test_j5_last_call_without_members_of_the_last_round() -> None:
    run = sealed("node1", "node2")
    run.join("node3", "node4")
    run.lose("node1")
    step = run.lose("node2")
    assert step.state.phase == LastCall(round=2, call=2)
    run.last_call_over()
    assert run.ranks() == ["node3", "node4"]


@pytest.mark.parametrize(("seconds", "waits"), [(0.0, False), (0.5, True), (1.0, True)])
def test_j5_the_shortest_replacement_wait_is_one(seconds: float, waits: bool) -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=seconds)
    step = run.lose("node3")
    assert any(isinstance(timer, ReplacementWaitOver) for timer in step.timers) is waits


def test_j5_replacement_wait_needs_a_loss() -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=5)
    step = run.rejoin("node1")
    assert step.timers == (RejoinOver(1, 2),)
    run.rejoin("node2", "node3")
    assert run.phase == "Sealed"


def test_j5_loss_while_gathering_starts_the_replacement_wait() -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=5)
    run.rejoin("node1")
    assert run.lose("node2").timers == (RejoinOver(1, 2), ReplacementWaitOver(1, 2))
    assert run.rejoin("node3").timers == (ReplacementWaitOver(1, 2),)


def test_j5_the_loss_of_a_newcomer_starts_no_replacement_wait() -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=5)
    run.rejoin("node1")
    run.join("node9")
    assert run.lose("node9").timers == (RejoinOver(1, 2),)


def test_j5_no_replacement_wait_for_a_finished_node() -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=5)
    run.rejoin("node1")
    run.do(Finish("node2", 1, 1))
    run.rejoin("node3")
    assert run.ranks() == ["node1", "node3"]


def test_j5_loss_of_a_rejoined_node_starts_the_replacement_wait() -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=5)
    run.rejoin("node1", "node2")
    assert run.lose("node1").timers == (RejoinOver(1, 2), ReplacementWaitOver(1, 2))


def test_j5_finished_node_that_leaves_starts_no_replacement_wait() -> None:
    run = sealed("node1", "node2", "node3", replacement_wait_seconds=5)
    run.finish("node1")
    run.rejoin("node2")
    assert run.leave("node1").timers == (RejoinOver(1, 2),)


@pytest.mark.cases("case-B6")
def test_g1_two_of_ten_form_no_round() -> None:
    ten = [f"node{i}" for i in range(1, 11)]
    run = sealed(*ten, least=2, most=10)
    run.fail("node1")
    for name in ten[:9]:
        run.rejoin(name)
        assert run.phase == "Gathering"
    run.rejoin("node10")
    assert sorted(run.ranks()) == sorted(ten)


@pytest.mark.cases("case-C3")
def test_g1_restarted_node_does_not_form_a_round_alone() -> None:
    run = sealed("nodeA", "nodeB", least=1, most=2)
    run.lose("nodeA")
    run.join("nodeA2")
    assert run.phase == "Gathering"  # nodeB is alive, and has been told
    run.rejoin("nodeB")
    assert sorted(run.ranks()) == ["nodeA2", "nodeB"]
    assert run.number == 2


@pytest.mark.cases("case-C5")
def test_two_newcomers_cost_one_round() -> None:
    four = ["node1", "node2", "node3", "node4"]
    run = sealed(*four, least=2, most=6)
    run.join("node5", "node6")
    assert run.number == 1
    run.rejoin(*four, why="nodes wait")
    assert run.number == 2
    assert run.ranks() == [*four, "node5", "node6"]


@pytest.mark.cases("case-C8")
@pytest.mark.parametrize("reached", ["gathering", "last call", "parked", "rejoining"])
def test_death_during_a_join_blocks_nobody(reached: str) -> None:
    run = Drive(2, 3)
    if reached in ("gathering", "last call"):
        run.join("dead", *(["node1"] if reached == "last call" else []))
        run.lose("dead")
        run.join("node1", "node2")
        run.last_call_over()
    else:
        run.join("node1", "node2")
        run.last_call_over()
        run.join("dead")
        if reached == "rejoining":
            run.rejoin("node1")
        run.lose("dead")
        run.rejoin("node1", "node2")
    assert run.ranks() == ["node1", "node2"]


def test_messages_are_in_order_of_the_events() -> None:
    run = sealed("node1", "node2")
    step = run.do(
        run.joining("node3"),
        Leave("node2"),
        run.joining("node1", after=1),
    )
    kinds = [type(send.message).__name__ for send in step.messages]
    assert kinds == ["Parked", "WaitingChanged", "RoundOpened", "RoundSealed"]
    opened, record = step.messages[2].message, step.messages[3].message
    assert isinstance(opened, RoundOpened)
    assert isinstance(record, RoundSealed)
    assert (opened.round, record.record.number) == (2, 2)


def test_batch_reason_has_the_last_three_notes() -> None:
    run = Drive(9, 9)
    step = run.do(*(run.joining(f"node{i}") for i in (1, 2, 3, 4, 4)), Beat("node1"))
    assert step.reason.startswith("node2 pid 2 joined; node3 pid 3 joined; node4 pid 4 joined; 4 ")
    step = run.do(run.joining("ghost", after=1), run.joining("ghost", after=1))
    assert step.reason.count("refused ghost") == 1


def test_given_state_is_not_changed() -> None:
    run = Drive(3, 4)
    run.join("node1")
    before = run.state
    snapshot = dict(before.candidates)
    advance(before, run.joining("node2"), Leave("node1"), Beat("node1"))
    assert before.candidates == snapshot


def test_timers_of_an_unopened_run() -> None:
    state = RunState(run_id="demo")
    assert timers(state) == ()
    assert timer_seconds(state, LastCallOver(1, 1, 1)) == 0.0


def test_timers_of_a_closed_run() -> None:
    run = Drive(2, 4)
    run.join("node1", "node2")
    assert run.close().timers == ()


def test_large_batch_is_one_step() -> None:
    state = RunState(run_id="demo")
    settings = a_settings(100, 100)
    run = Drive(100, 100)
    events = [run.joining(f"node{i}", settings=settings) for i in range(100)]
    step = advance(state, *events)
    assert len(step.messages) == 1
    assert len(step.messages[0].to) == 100
    assert step.messages[0].to[7] == a_node("node7").id


def test_reason_has_no_consecutive_duplicates() -> None:
    run = sealed("n1", "n2")
    one, two = (run.joining(name, settings=a_settings(1, 9)) for name in ("x1", "x2"))
    reason = run.do(one, two, two, one).reason
    assert reason.count("refused x1") == 2
    assert reason.count("refused x2") == 1


def test_run_with_failed_rules_closes_without_a_rule() -> None:
    run = sealed("n1", "n2", most=2)
    run.join("n3")  # a spare
    run.do(Notify("n1", "the machine goes", "admin"))
    step = closed_by_fault(run.state, "the server", "10:15", "a fault of ours")
    assert step.state.phase == Closed(1, "the server", "10:15", "a fault of ours")
    assert (step.state.notices, step.state.failing) == ({}, 0)
    assert (step.state.participants, step.state.spares, step.timers) == ({}, {}, ())
    closed = RunClosed(1, 1, "the server", "10:15", "a fault of ours", Verdict.CLOSED)
    assert step.messages == (Send(("n1", "n2", "n3"), closed),)
    assert step.reason == "run 'demo' was closed at 10:15 by the server: a fault of ours"
    assert check_state(step.state) == []
    assert check_step(run.state, step.state, step.messages) == []
    again = closed_by_fault(step.state, "someone", "11:00", "another one")
    assert (again.state, again.messages, again.reason) == (step.state, (), step.reason)


def test_h1_reason_names_the_node_excluded_for_failures() -> None:
    run = sealed("n1", "n2", "n3", quarantine_failures=1)
    run.fail("n2", a_failure("n2"))
    reason = run.rejoin("n1", "n3", "n2").reason
    assert reason.startswith("n2 pid 2 was excluded by quarantine: ")
