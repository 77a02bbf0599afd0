"""The draft of a state: copied, changed, frozen; its indexes follow what it holds."""

import pytest
from tests.core.builders import a_node, sealed

from rallypoint.core.events import Refusal, Refused, Send, WaitingChanged
from rallypoint.core.mutable_state import MutableState
from rallypoint.core.state import FENCED_LIMIT, PLACES, Member, RunState


def a_member(name: str, **fields: object) -> Member:
    return Member(node=a_node(name, **fields), arrival=1)


def a_draft(**places: list[Member]) -> MutableState:
    filled = {place: {m.node.id: m for m in members} for place, members in places.items()}
    return MutableState(RunState(run_id="demo", **filled))  # type: ignore[arg-type] # one per place


def test_unchanged_mutable_state_freezes_to_the_same_state() -> None:
    run = sealed("node1", "node2", most=2)
    run.join("node3")
    run.finish("node1")
    assert MutableState(run.state).freeze() == run.state


def test_source_state_is_not_changed() -> None:
    state = RunState(run_id="demo", fenced={"x": "y"})
    d = MutableState(state)
    d.put(d.candidates, a_member("node1"))
    d.fence("z", "why")
    assert state == RunState(run_id="demo", fenced={"x": "y"})


def test_messages_to_nobody_are_not_listed() -> None:
    d = a_draft()
    d.send([], WaitingChanged(1, 1, 0))
    assert d.messages == []
    d.send(iter(["a", "b"]), WaitingChanged(1, 1, 0))
    assert d.messages == [Send(("a", "b"), WaitingChanged(1, 1, 0))]


def test_refusal_is_sent_and_noted() -> None:
    d = a_draft()
    d.refuse("0123456789", Refusal.STALE, "because")
    assert d.messages == [Send(("0123456789",), Refused(Refusal.STALE, "because", 1, 1))]
    assert d.note == "refused 01234567: because"


def test_l2_oldest_fences_are_forgotten_beyond_the_limit() -> None:
    d = a_draft()
    for i in range(FENCED_LIMIT + 2):
        d.fence(f"n{i}", "why", replaced=i in (1, 3))
    assert len(d.fenced) == FENCED_LIMIT
    assert d.replaced == {"n3"}  # forgotten with its fence
    assert "n1" not in d.fenced
    assert {"n2", f"n{FENCED_LIMIT + 1}"} <= set(d.fenced)


@pytest.mark.parametrize("place", PLACES)
def test_node_is_found_and_removed_in_every_place(place: str) -> None:
    member = a_member("node1")
    d = a_draft(**{place: [member]})
    assert d.place_of("node1") is getattr(d, place)
    assert d.place_of("node2") is None
    assert (d.live(), d.is_empty()) == (["node1"], False)
    assert d.take("node1") is member
    assert (d.live(), d.is_empty()) == ([], True)
    with pytest.raises(KeyError):
        d.take("node1")


def test_i1_slot_index_follows_changes() -> None:
    d = a_draft(candidates=[a_member("a", slot="s0")], finished=[a_member("z", slot="s9")])
    assert d.holder_of_slot("s1") is None
    assert d.holder_of_slot("s9") is None  # who has finished holds no slot
    d.put(d.candidates, a_member("b", slot="s1"))
    d.put(d.candidates, a_member("c"))
    holder = d.holder_of_slot("s1")
    assert holder is not None
    assert holder.node.id == "b"
    d.put(d.waiting, a_member("b2", slot="s1"))  # the newer one
    d.take("b")
    holder = d.holder_of_slot("s1")
    assert holder is not None
    assert holder.node.id == "b2"
    d.take("b2")
    d.take("c")
    assert d.holder_of_slot("s1") is None
    d.put(d.finished, d.take("a"))
    assert d.holder_of_slot("s0") is None


def test_r1_hint_index_follows_changes() -> None:
    d = a_draft(spares=[a_member("a", node_rank=0)], finished=[a_member("z", node_rank=9)])
    assert d.holder_of_rank(1) is None
    assert d.holder_of_rank(9) is None
    d.put(d.candidates, a_member("b", node_rank=1))
    holder = d.holder_of_rank(1)
    assert holder is not None
    assert holder.node.id == "b"
    d.put(d.waiting, a_member("b2", node_rank=1))
    d.take("b")
    holder = d.holder_of_rank(1)
    assert holder is not None
    assert holder.node.id == "b2"
    d.put(d.finished, d.take("a"))
    assert d.holder_of_rank(0) is None


def test_index_survives_emptied_places() -> None:
    d = a_draft(candidates=[a_member("a", slot="s0")])
    assert d.holder_of_slot("s0") is not None
    d.candidates.clear()
    assert d.holder_of_slot("s0") is None
