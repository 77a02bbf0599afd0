"""Notices, rule P1: who is told that a node will leave, when, and for how long it stands."""

from collections.abc import Callable

import pytest
from tests.core.builders import Drive, sealed, unchanged

from rallypoint.core.events import (
    Finish,
    Leave,
    NoticeGiven,
    Notify,
    RoundSealed,
    WaitingChanged,
)
from rallypoint.core.notices import standing
from rallypoint.core.state import Notice

SPOT = Notify("node2", "spot machine", seconds=25.0)
GIVEN = NoticeGiven(1, 1, "node2", "node2 pid 2", "spot machine", "node2 pid 2", 25.0)


def test_p1_notice_reaches_all_members_of_the_round() -> None:
    run = sealed("node1", "node2", "node3", most=3)
    run.join("node4")
    before = run.state
    step = run.do(SPOT)
    assert [run.sent(f"node{i}") for i in (1, 2, 3)] == [[GIVEN]] * 3
    assert run.sent("node4") == []  # a spare
    assert run.state.notices == {
        "node2": Notice("node2", "node2 pid 2", "spot machine", "node2 pid 2", 25.0)
    }
    assert (step.state.phase, run.places()) == (before.phase, run.places())
    assert step.timers == ()
    assert step.reason == (
        "node2 pid 2 will leave: spot machine, in 25 s; round 1 is running with 3 nodes; 1 spare; "
        "node2 pid 2 will leave: spot machine"
    )


def test_p1_earlier_of_two_notices_applies() -> None:
    run = sealed("node1", "node2")
    run.do(Notify("node2", "maintenance", "bob"))
    unchanged(run, Notify("node2", "maintenance", "bob"))
    run.do(SPOT)
    assert run.sent("node1")[-1] == GIVEN
    unchanged(run, SPOT)
    unchanged(run, Notify("node2", "maintenance", "alice"))
    unchanged(run, Notify("node2", "maintenance", "alice", seconds=30.0))
    assert run.step.reason.startswith(
        "not sooner than the notice that stands: node2 pid 2 will leave: spot machine, in 25 s"
    )
    run.do(Notify("node2", "spot machine", seconds=3.0))
    given = [m.seconds for m in run.sent("node1") if isinstance(m, NoticeGiven)]
    assert given[-1] == 3.0
    assert run.state.notices["node2"].seconds == 3.0


def test_p1_notice_without_a_reason_gets_a_default() -> None:
    run = sealed("node1", "node2")
    assert run.do(Notify("node2", "")).reason.startswith("node2 pid 2 will leave: it was asked to;")


def test_p1_unknown_and_finished_nodes_give_no_notice() -> None:
    run = sealed("node1", "node2")
    unchanged(run, Notify("node9", "why"))
    run.finish("node2")
    unchanged(run, SPOT)


@pytest.mark.parametrize("names", [["node1", "node2"], ["node1", "node3", "node4", "node5"]])
def test_p1_notice_of_a_waiting_node_reaches_nobody(names: list[str]) -> None:
    run = sealed(*names)
    run.join("node9")
    run.do(Notify("node9", "spot machine"))
    assert run.kinds("node9") == ["NoticeGiven"]
    assert [run.sent(name) for name in names] == [[] for _ in names]
    assert [n.node for n in standing(run.state, "node9")] == ["node9"]
    assert standing(run.state, "node1") == ()


ENDS: dict[str, Callable[[Drive], object]] = {
    "leave": lambda run: run.leave("node2"),
    "loss": lambda run: run.lose("node2"),
    "failure": lambda run: run.fail("node1"),
    "new round": lambda run: run.rejoin("node1"),
    "finish": lambda run: run.finish("node2"),
    "close": lambda run: run.close(),
}


@pytest.mark.parametrize("end", ENDS)
def test_p1_notice_ends_with_the_node_or_the_round(end: str) -> None:
    run = sealed("node1", "node2", "node3")
    run.do(SPOT)
    ENDS[end](run)
    assert run.state.notices == {}


def test_p1_end_of_one_notice_keeps_the_others() -> None:
    run = sealed("node1", "node2", "node3")
    run.do(SPOT, Notify("node3", "spot machine"))
    run.finish("node2")
    assert list(run.state.notices) == ["node3"]


def test_p1_finish_ends_a_notice() -> None:
    run = sealed("node1", "node2", "node3")
    run.lose("node3")
    run.do(SPOT)
    assert list(run.state.notices) == ["node2"]
    run.do(Finish("node2", 1, 1))
    assert run.state.notices == {}


def test_p1_notice_while_gathering_is_sent_then_and_with_the_seat() -> None:
    run = Drive(2, 3)
    run.join("node1", "node2")
    run.do(SPOT)
    assert run.sent("node1") == run.sent("node2") == [GIVEN]
    run.join("node3")
    assert run.sent("node3") == [RoundSealed(run.record), GIVEN]
    assert run.sent("node1") == [RoundSealed(run.record), GIVEN]


def test_p1_notice_while_gathering_reaches_former_members() -> None:
    run = sealed("node1", "node2", "node3")
    run.lose("node3")
    run.rejoin("node1")
    run.do(SPOT)
    assert run.kinds("node1") == run.kinds("node2") == ["NoticeGiven"]
    run.rejoin("node2")
    assert run.kinds("node1") == ["RoundSealed", "NoticeGiven"]


def test_p1_notice_of_a_spare_is_not_sent_to_a_new_round() -> None:
    run = Drive(1, 2, target_nodes=1)
    run.join("node1")
    run.join("node2")
    run.do(SPOT)
    assert run.places() == {"participants": ["node1"], "spares": ["node2"]}
    run.join("node1")
    assert run.sent("node1") == [RoundSealed(run.record)]


def test_p1_repeated_join_gets_current_notices() -> None:
    run = sealed("node1", "node2", most=3)
    run.join("node3")
    run.do(SPOT)
    run.join("node1", after=0)
    assert run.sent("node1") == [RoundSealed(run.record), WaitingChanged(1, 1, 1), GIVEN]
    assert standing(run.state, "node1") == standing(run.state, "node2") == (GIVEN,)
    assert standing(run.state, "node3") == standing(run.state, "nobody") == ()


def test_p1_notice_and_leave_in_one_batch() -> None:
    run = sealed("node1", "node2", "node3")
    run.do(SPOT, Leave("node2", "spot machine"))
    assert run.state.notices == {}
    assert run.kinds("node1") == ["NoticeGiven", "RoundOpened"]


def test_p1_replacement_has_no_notice() -> None:
    run = Drive(1, 2)
    run.join("node1", slot="a")
    run.join("node2", slot="b")
    run.do(SPOT)
    run.join("node3", slot="b")
    assert run.state.notices == {}
