import json
from importlib.resources import files

import jsonschema
import msgspec
import pytest
from tests.core.builders import a_failure, a_node, a_settings

from rallypoint.core.state import Settings
from rallypoint.rendezvous.coordinator import (
    ExclusionLine,
    NodeStatus,
    NoticeLine,
    Report,
    RoundLine,
    RunningTimer,
)
from rallypoint.rendezvous.reports import status

SHIPPED = files("rallypoint") / "schemas" / "status.v1.json"


def report(
    phase: str = "gathering", settings: Settings | None = None, *members: NodeStatus
) -> Report:
    return Report("job", phase, 1, 1, "because", members=members, settings=settings)


def candidate(name: str, **fields: object) -> NodeStatus:
    return NodeStatus(a_node(name, **fields), "candidate")


def test_shipped_schema_is_current() -> None:
    made = json.loads(json.dumps(status.json_schema()))
    assert json.loads(SHIPPED.read_text("utf-8")) == made, "write it anew: make docs"


def test_document_matches_its_schema() -> None:
    full = Report(
        "job", "sealed", 2, 7, "because", ("n9",),
        (NodeStatus(a_node("n1", slot="s"), "participant", 0, True, 1.5, 0.25),),
        a_settings(max_restarts=3), 1, "here", 4.0, "n1",
        (RunningTimer("a wait", "last_call", 2.0),), (RoundLine(2, 7, 9.0, nodes=("n1",)),),
        (a_failure(),), (("n8", "lost"),), 1,
        (ExclusionLine("slot", "pod-3", "bad memory", "alice", "noon", 60.0, 42.0),),
        (NoticeLine("id", "n1 pid 1", "spot machine", "alice", 25.0, 9.0),),
    )  # fmt: skip
    server = status.ServerStatus("h:1", "1", 1, 2, 3.0, 4.0, 5, 6, 7, 0.1, 0.2, 8, 9, 1, ())
    document = status.Status(status.SCHEMA, "here", server, (status.run_status(full),))
    shown = json.loads(msgspec.json.encode(document))
    jsonschema.validate(shown, json.loads(SHIPPED.read_text("utf-8")))
    (run,) = shown["runs"]
    assert run["budget"] == {"used": 1, "allowed": 3, "in_a_row": 1}
    assert run["exclusions"][0]["remaining_seconds"] == 42.0
    assert run["notices"][0]["node"] == "n1 pid 1"
    assert run["settings"]["quarantine_time"] == 600.0
    assert run["members"][0]["slot"] == "s"
    assert run["shut_out"] == [{"id": "n8", "why": "lost"}]
    assert run["failures"][0]["exit_code"] == 1


def test_unknown_run_error_suggests_similar_names() -> None:
    def told(*names: str, count: int = 0) -> str:
        lines = tuple(status.RunLine(name, "sealed", 1, 2, "at work") for name in names)
        there = status.ServerStatus(
            "h:1", "1", 1, 2, 3.0, 4.0, 5, 6, 7, 0.1, 0.2, 8, 9, count or len(names), lines
        )
        return status.no_such_run(run, there)

    run = status.run_status(Report("digits", "gathering", 1, 1, "", server="the server at h:1"))
    assert not run.is_there
    text = "the server at h:1 has no run 'digits': no node has joined it"
    assert status.no_such_run(run, None) == text
    assert told() == f"{text}; no run is there"
    assert told("x", "digit", "digits-2") == f"{text}; runs there: 'digit', 'digits-2', 'x'"
    assert told("a", "b", "c", "d", "e", "digit").endswith(", ...")
    assert told("a", "b", "c", "d", "e", "digit").startswith(f"{text}; runs there: 'digit', ")
    assert told("x", count=7) == f"{text}; runs there: 'x', ..."
    closed = Report("digits", "closed", 1, 1, "")
    opened = report("gathering", a_settings())
    assert status.run_status(closed).is_there
    assert status.run_status(opened).is_there


def test_members_come_by_place_then_rank_then_name() -> None:
    members = (
        NodeStatus(a_node("n4"), "spare"),
        NodeStatus(a_node("n2"), "participant", 1),
        NodeStatus(a_node("n3"), "waiting"),
        NodeStatus(a_node("n1"), "participant", 0),
    )
    shown = status.run_status(report("sealed", a_settings(), *members))
    assert [member.id for member in shown.members] == ["n1", "n2", "n3", "n4"]


def test_finished_nodes_are_not_counted_as_unknown() -> None:
    done = [NodeStatus(a_node(f"n{i}"), "finished") for i in range(1, 6)]
    told = status.absent(report("gathering", a_settings(2, 2), candidate("n9"), done[0]))
    label = done[0].node.label
    assert told == (f"1 node more (min_nodes=2): {label} has finished and will not return",)
    assert " and 2 more have finished" in status.done_sentence(report("x", None, *done))


@pytest.mark.parametrize(
    ("settings", "here", "told"),
    [
        (a_settings(2, 4), 2, ()),
        (a_settings(3, 4), 2, ("1 node that has never connected (min_nodes=3)",)),
        (a_settings(2, 4, target_nodes=2), 2, ()),
        (
            a_settings(2, 4, target_nodes=4),
            2,
            ("2 nodes that have never connected (target_nodes=4)",),
        ),
    ],
)
def test_missing_nodes_are_counted(settings: Settings, here: int, told: tuple[str, ...]) -> None:
    members = [candidate(f"n{i}") for i in range(here)]
    assert status.absent(report("gathering", settings, *members)) == told


def test_missing_node_is_named_by_its_free_rank() -> None:
    members = [candidate("a", node_rank=0), candidate("b", node_rank=2)]
    shown = status.absent(report("gathering", a_settings(4, 4), *members))
    assert shown == ("the node that asks for rank 1", "the node that asks for rank 3")


def test_missing_members_of_the_last_round_are_named() -> None:
    known = msgspec.structs.replace(report("gathering", a_settings(2, 4)), missing=("n7", "n8"))
    assert status.absent(known) == ("n7", "n8")


@pytest.mark.parametrize("phase", ["sealed", "closed"])
def test_sealed_round_misses_nobody(phase: str) -> None:
    assert status.absent(report(phase, a_settings(3, 4))) == ()


def test_unopened_run_misses_nobody() -> None:
    assert status.absent(report()) == ()


def test_unopened_run_has_no_settings() -> None:
    assert (
        status.run_status(Report("job", "gathering", 1, 1, "no node has joined")).settings is None
    )
