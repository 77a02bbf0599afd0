"""What people read: each sentence, its numbers, and the setting that ends the wait."""

import msgspec
import pytest
from tests.core.builders import Drive, a_node, a_settings, sealed

from rallypoint.core.events import Disconnected, Exclude, Notify, Reconnected
from rallypoint.core.explain import (
    NAMES_SHOWN,
    closed_sentence,
    describe,
    differences,
    goal_of,
    missing,
    names,
    nodes,
    phase_name,
    rows,
)
from rallypoint.core.state import (
    Aspect,
    Closed,
    Member,
    Newcomers,
    RunState,
    Settings,
    Verdict,
)


def members(*names_: str) -> list[Member]:
    return [Member(node=a_node(name), arrival=i) for i, name in enumerate(names_)]


def test_names_are_in_natural_order_and_few() -> None:
    assert names(members("node10", "node9")) == "node9 pid 9, node10 pid 10"
    assert names([]) == ""
    seven = members(*(f"n{i}" for i in range(1, 8)))
    assert names(seven, shown=2) == "n1 pid 1, n2 pid 2 and 5 more"
    assert names(seven).endswith("n5 pid 5 and 2 more")
    assert names(seven[:6]).endswith("n5 pid 5 and 1 more")
    assert names(seven[:5]).endswith("n5 pid 5")


def test_unopened_run() -> None:
    state = RunState(run_id="demo")
    assert describe(state) == "run 'demo' has not been opened: no node has joined"


def test_gathering_says_how_many_are_missing() -> None:
    run = Drive(3, 4)
    run.join("node1")
    run.leave("node1")
    assert describe(run.state) == ("0 of at least 3 nodes have joined round 1; waiting for 3 more")


@pytest.mark.parametrize(
    ("phase", "sentence"),
    [
        (Closed(1, "alice", "noon", "enough"), "run 'x' was closed at noon by alice: enough"),
        (Closed(1, "alice", "", "enough"), "run 'x' was closed by alice: enough"),
        (Closed(1, "n1", "noon", "all", Verdict.FINISHED), "run 'x' finished at noon by n1: all"),
    ],
)
def test_closed_says_who_when_and_why(phase: Closed, sentence: str) -> None:
    assert closed_sentence("x", phase) == sentence
    assert describe(RunState(run_id="x", phase=phase)) == sentence


@pytest.mark.parametrize(
    ("target", "goal"), [(None, 4), (0, 4), (1, 2), (2, 2), (3, 3), (4, 4), (9, 4)]
)
def test_target_is_within_the_bounds(target: int | None, goal: int) -> None:
    assert goal_of(a_settings(2, 4, target_nodes=target)) == goal


@pytest.mark.parametrize(("count", "words"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")])
def test_numbers_of_nodes(count: int, words: str) -> None:
    assert nodes(count) == words


def test_lost_connection_is_what_the_round_waits_for() -> None:
    run = Drive(2, 3, disconnect_grace_seconds=2)
    run.join("node1")
    run.do(Disconnected("node1"))
    assert "cut" not in describe(run.state)  # more nodes are what is missing
    run.join("node2")
    assert describe(run.state) == (
        "2 of at least 2 nodes have joined round 1; "
        "waiting for node1 pid 1 to reconnect (disconnect_grace=2 s)"
    )
    run.do(Reconnected("node1"))
    assert describe(run.state).endswith("; last call for up to 1 more (last_call=30 s)")


def test_last_call_and_replacement_wait_are_described() -> None:
    run = Drive(1, 3, replacement_wait_seconds=5)
    run.join("node1")
    assert describe(run.state).endswith("; last call for up to 2 more (last_call=30 s)")
    run.join("node2")
    run.last_call_over()
    run.lose("node2")
    run.rejoin("node1")
    assert describe(run.state).endswith("; waiting for a replacement (replacement_wait=5)")


def test_finished_nodes_are_not_waited_for() -> None:
    run = sealed("node1", "node2", "node3")
    run.finish("node1")
    run.lose("node2")
    run.rejoin("node3")
    assert "; 1 has finished and will not return" in describe(run.state)


def test_working_round_names_finished_waiting_and_spare_nodes() -> None:
    run = sealed("node1", "node2", least=2, most=2)
    run.join("node3")
    assert describe(run.state) == "round 1 is running with 2 nodes; 1 spare"
    run.finish("node1")
    assert describe(run.state) == (
        "round 1 is running with 2 nodes; 1 has finished, still working: node2 pid 2; 1 spare"
    )
    run = sealed("node1", "node2", least=2, most=3)
    run.join("node3")
    assert describe(run.state).endswith("with 2 nodes; 1 wait for the next round")


def test_notices_and_exclusions_are_summarised() -> None:
    run = sealed("node1", "node2", "node3", least=1)
    run.do(Notify("node2", "spot machine", seconds=25.0))
    run.do(Exclude(Aspect.SLOT, "pod-3", "bad memory", "alice"))
    news = "; node2 pid 2 will leave: spot machine; excluded: slot pod-3 (by alice)"
    assert describe(run.state) == f"round 1 is running with 3 nodes{news}"
    run.lose("node3")
    assert describe(run.state).endswith(" (rejoin_timeout=60 s); excluded: slot pod-3 (by alice)")
    for number in range(NAMES_SHOWN):
        run.do(Exclude(Aspect.SLOT, f"s{number}", "", "bob"))
    assert describe(run.state).endswith("slot s2 (by bob), slot s3 (by bob)")


def test_phase_names() -> None:
    run = Drive(2, 3)
    seen = [phase_name(run.state)]
    for name in ("node1", "node2", "node3"):
        run.join(name)
        seen.append(phase_name(run.state))
    run.close()
    seen.append(phase_name(run.state))
    assert seen == ["gathering", "gathering", "last call", "sealed", "closed"]


def test_missing_nodes_are_those_the_round_waits_for() -> None:
    run = sealed("node1", "node2", "node3")
    assert missing(run.state) == ()
    run.rejoin("node1")
    assert missing(run.state) == ("node2 pid 2", "node3 pid 3")


def test_rows_give_every_live_node_its_place() -> None:
    run = sealed("node1", "node2", "node3", most=4)
    run.join("node4", "node5")
    assert [(n.id, place, rank, up) for n, place, rank, up in rows(run.state)] == [
        ("node1", "participant", 0, True),
        ("node2", "participant", 1, True),
        ("node3", "participant", 2, True),
        ("node4", "waiting", None, True),
        ("node5", "spare", None, True),
    ]
    run.finish("node2")
    assert [row[1] for row in rows(run.state)][-1] == "finished"
    run.lose("node1")
    assert next(row[1] for row in rows(run.state)) == "candidate"


def test_every_setting_that_may_differ_is_compared() -> None:
    held = Settings(1, 2, admit=Newcomers.NOW)
    others = set(Settings.__struct_fields__) - {"min_nodes", "max_nodes", "admit"}
    for name in others:
        asked = msgspec.structs.replace(held, **{name: 77})
        assert "(not 77), which holds for all nodes" in differences(held, asked)
    asked = msgspec.structs.replace(held, lease_seconds=5.0, admit=Newcomers.NEVER)
    assert differences(held, asked) == (
        "lease=15 (not 5), which holds for all nodes; admit=now (not never): each node goes by its "
        "own, so give all nodes the same"
    )
    assert differences(held, held) == ""
    assert differences(held, Settings(1, 3)) == ""  # refused (J6)
