"""Rule R1: who gets which rank."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.builders import a_node

from rallypoint.core.ranks import (
    assign_ranks,
    by_id,
    first_order,
    make_round,
    natural_key,
    seat_order,
)
from rallypoint.core.state import Member, Standing


def a_member(name: str, arrival: int = 0, rank: int | None = None, **node: object) -> Member:
    standing = Standing.NEW if rank is None else Standing.MEMBER
    return Member(node=a_node(name, **node), arrival=arrival, rank=rank, standing=standing)


def order(*members: Member) -> list[str]:
    return [m.node.id for m in assign_ranks(members)]


NATURAL = [
    (["node66", "node7", "node8", "node70"], ["node7", "node8", "node66", "node70"]),
    (["10.0.0.10", "10.0.0.9", "9.0.0.1"], ["9.0.0.1", "10.0.0.9", "10.0.0.10"]),
    (["b2", "a10", "a9"], ["a9", "a10", "b2"]),
    (["rack2-n1", "rack10-n1", "rack2-n11"], ["rack2-n1", "rack2-n11", "rack10-n1"]),
    (["node", "node1", ""], ["", "node", "node1"]),
    (["x", "1"], ["1", "x"]),
    (["fe80::a", "fe80::1"], ["fe80::1", "fe80::a"]),
]


@pytest.mark.cases("case-E1")
@pytest.mark.parametrize(("given_order", "expected"), NATURAL)
def test_r1_natural_order(given_order: list[str], expected: list[str]) -> None:
    assert sorted(given_order, key=natural_key) == expected


@pytest.mark.cases("case-E1")
def test_r1_first_order_is_natural_in_any_order_of_arrival() -> None:
    names = ["node7", "node8", "node66", "node70"]
    for arrived in itertools.permutations(names):
        assert order(*(a_member(n, i) for i, n in enumerate(arrived))) == names


def test_r1_host_name_is_compared_if_there_is_one() -> None:
    a = a_member("x", 1, address="10.0.0.1", host="node9")
    b = a_member("y", 2, address="10.0.0.2", host="node10")
    c = a_member("z", 3, address="node3")
    assert order(b, a, c) == ["z", "x", "y"]


def test_r1_equal_host_names_are_ordered_by_address() -> None:
    late = a_member("x", 2, address="10.0.0.9", host="same")
    soon = a_member("y", 1, address="10.0.0.10", host="same")
    assert order(soon, late) == ["x", "y"]


@pytest.mark.cases("case-A8")
def test_r1_equal_names_are_ordered_by_arrival() -> None:
    same = [a_member(n, i, address="host") for i, n in enumerate(("c", "a", "b"))]
    assert order(*reversed(same)) == ["c", "a", "b"]


@pytest.mark.cases("case-E2")
def test_r1_hints_are_honoured() -> None:
    assert order(
        a_member("node1", 1, node_rank=2), a_member("node2", 2, node_rank=0), a_member("node3", 3)
    ) == ["node2", "node3", "node1"]


def test_r1_too_large_hint_comes_first_of_the_rest() -> None:
    assert order(
        a_member("a", 1), a_member("b", 2, node_rank=9), a_member("c", 3, node_rank=7)
    ) == ["c", "b", "a"]


def test_r1_hint_has_precedence_over_a_kept_rank() -> None:
    assert order(a_member("old", 1, rank=0), a_member("new", 2, node_rank=0)) == ["new", "old"]


def test_r1_first_node_with_a_hint_gets_it() -> None:
    assert order(a_member("late", 2, node_rank=1), a_member("soon", 1, node_rank=1)) == [
        "late",
        "soon",
    ]


def test_r1_nodes_with_equal_topology_are_together() -> None:
    assert order(
        a_member("n1", 1, topology="rack10"),
        a_member("n2", 2, topology="rack2"),
        a_member("n3", 3, topology="rack10"),
        a_member("n4", 4, topology="rack2"),
        a_member("n0", 5),
    ) == ["n2", "n4", "n1", "n3", "n0"]


def test_r1_survivors_keep_their_ranks_and_newcomers_fill_the_gaps() -> None:
    assert order(
        a_member("s3", 1, rank=3),
        a_member("s1", 2, rank=1),
        a_member("n9", 3),
        a_member("n8", 4),
    ) == ["n8", "s1", "n9", "s3"]


def test_r1_only_ranks_above_the_size_move_when_shrinking() -> None:
    assert order(
        a_member("s0", 9, rank=0),
        a_member("s5", 1, rank=5),
        a_member("s4", 2, rank=4),
        a_member("s2", 3, rank=2),
    ) == ["s0", "s4", "s2", "s5"]


def test_r1_movers_come_before_newcomers() -> None:
    assert order(a_member("s9", 2, rank=9), a_member("a", 1)) == ["s9", "a"]


def test_r1_no_members_no_ranks() -> None:
    assert assign_ranks([]) == []


def test_r1_assigned_ranks_are_a_membership() -> None:
    before = Member(node=a_node("n"), arrival=4, beats=3, connected=False)
    (after,) = assign_ranks([before])
    assert after == Member(
        node=before.node,
        arrival=4,
        rank=0,
        standing=Standing.MEMBER,
        beats=3,
        connected=False,
    )


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(0, 9),
            st.none() | st.integers(0, 9),
            st.none() | st.sampled_from("ab"),
        ),
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_r1_ranks_are_0_to_n_in_any_given_order(
    wishes: list[tuple[int | None, int | None, str | None]], rng: random.Random
) -> None:
    members = [
        a_member(f"n{i}", i, rank, node_rank=hint, topology=label)
        for i, (rank, hint, label) in enumerate(wishes)
    ]
    first = assign_ranks(members)
    assert [m.rank for m in first] == list(range(len(members)))
    assert {m.node.id for m in first} == {m.node.id for m in members}
    rng.shuffle(members)
    assert assign_ranks(members) == first


@given(st.sets(st.integers(0, 7), min_size=1), st.integers(0, 4))
def test_r1_as_few_survivors_as_possible_move(ranks: set[int], newcomers: int) -> None:
    members = [a_member(f"s{r}", r, rank=r) for r in ranks]
    members += [a_member(f"n{i}", 100 + i) for i in range(newcomers)]
    after = assign_ranks(members)
    moved = [m for m in after if m.node.id.startswith("s") and m.node.id != f"s{m.rank}"]
    assert len(moved) == sum(r >= len(members) for r in ranks)


def test_s2_seat_order() -> None:
    member = a_member("m", 9, rank=7)
    replaced = Member(node=a_node("r"), arrival=8, standing=Standing.MEMBER)
    waiting = Member(node=a_node("w"), arrival=5, standing=Standing.WAITING)
    spare, new = a_member("s", 2), a_member("n", 3)
    members = [new, spare, waiting, member, replaced]
    names = [m.node.id for m in sorted(members, key=seat_order)]
    assert names == ["r", "m", "w", "s", "n"]


def test_first_order_puts_hints_before_labels_before_names() -> None:
    members = [
        a_member("n1", 1),
        a_member("n9", 2, topology="r1"),
        a_member("n8", 3, node_rank=5),
    ]
    assert [m.node.id for m in sorted(members, key=first_order)] == ["n8", "n9", "n1"]


def test_record_counts_workers_of_nodes_and_roles() -> None:
    members = assign_ranks(
        [
            a_member("n0", 0, local_world_size=2),
            a_member("n1", 1, local_world_size=3, role="reader"),
            a_member("n2", 2, local_world_size=1),
        ]
    )
    record = make_round(7, 3, members, 2, "because")
    assert record.failing == 0
    assert (record.incarnation, record.number, record.restarts) == (7, 3, 2)
    assert (record.world_size, record.reason) == (6, "because")
    assert [s.rank for s in record.seats] == [0, 1, 2]
    assert [s.worker_offset for s in record.seats] == [0, 2, 5]
    assert [s.role_offset for s in record.seats] == [0, 0, 2]
    assert [s.role_world_size for s in record.seats] == [3, 3, 3]
    assert (record.master_addr, record.master_port) == ("n0", 20_000)


def test_by_id_keeps_the_order() -> None:
    members = [a_member("b"), a_member("a")]
    assert list(by_id(members).items()) == [("b", members[0]), ("a", members[1])]


def test_r1_moved_survivors_keep_their_order() -> None:
    one, zero = a_member("one", 1, 1), a_member("zero", 2, 0)
    hints = [a_member("first", 3, node_rank=0), a_member("second", 4, node_rank=1)]
    assert order(one, zero, *hints) == ["first", "second", "zero", "one"]
