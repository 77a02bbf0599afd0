"""Groups: what completes them, what they refuse, how they tell who is missing."""

from typing import Any

import pytest

from rallypoint.errors import StoreValueError
from rallypoint.net import protocol as p
from rallypoint.store.groups import (
    DISCONNECTED,
    TIMED_OUT,
    Groups,
    group_title,
    missing_ranges,
    rank_ranges,
    shown,
)


def member(rank: int | None, size: int = 3, **options: Any) -> p.Gather:
    options = {"value": b"", "collect": False, "timeout": 1.0, **options}
    return p.Gather("b:x", size, rank, **options)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([9, 1, 2, 0, 5, 6], "0-2, 5-6, 9"),
        (range(0, 100, 2), "38 and 30 more"),
    ],
)
def test_rank_ranges(ranks: list[int], text: str) -> None:
    assert rank_ranges(ranks).endswith(text)


@pytest.mark.parametrize(
    ("present", "size", "text"),
    [
        ([], 3, "0-2"),
        ([0, 1, 2], 3, ""),
        ([1, 4], 6, "0, 2-3, 5"),
        ([0], 2**63, "1-9223372036854775807"),  # whatever a client names: no list is made
    ],
)
def test_missing_ranges(present: list[int], size: int, text: str) -> None:
    assert missing_ranges(present, size) == text


def test_titles_and_lists() -> None:
    assert group_title("g:x") == "all_gather 'x'"
    assert group_title("c:x") == "broadcast 'x'"
    assert group_title("other") == "group 'other'"
    assert shown(["a", "b"]) == "a, b"


def test_each_member_gets_its_own_answer() -> None:
    groups = Groups()
    assert groups.join(member(1, value=b"1", collect=True), "all") is None
    assert groups.join(member(2, value=b"2", collect=True, only_first=True), "first") is None
    answers = groups.join(member(0, value=b"0"), "none")
    assert answers == [("all", [b"0", b"1", b"2"]), ("first", [b"0"]), ("none", None)]


def test_members_without_ranks_are_counted() -> None:
    groups = Groups()
    assert groups.join(member(None, 2), "a") is None
    assert groups.describe(member(None, 2)) == "1 of 2 members are here"
    assert groups.join(member(None, 2), "b") == [("a", None), ("b", None)]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (member(1, 0), "size is 0, must be 1 or more"),
        (member(1, 4), "size is 4, but it was opened with 3"),
        (member(3), "rank 3 is not in 0..2"),
        (member(-1), "rank -1 is not in 0..2"),
        (member(0), "rank 0 is in it already"),
        (member(None), "others came with a rank, this without"),
        (member(None, collect=True), "values are collected by rank"),
    ],
)
def test_refused(request_: p.Gather, text: str) -> None:
    groups = Groups()
    groups.join(member(0), "a")
    with pytest.raises(StoreValueError, match=text):
        groups.join(request_, "b")
    assert groups.members("b:x") == ["a"]


def test_members_with_and_without_rank_do_not_mix() -> None:
    groups = Groups()
    groups.join(member(None), "a")
    with pytest.raises(StoreValueError, match="this came with a rank, others without"):
        groups.join(member(0), "b")


def test_describe_distinguishes_departed_from_missing_members() -> None:
    groups = Groups()
    for rank in range(4):
        groups.join(member(rank, 6), rank)
    groups.leave(member(0, 6), 0, TIMED_OUT)
    groups.leave(member(1, 6), 1, DISCONNECTED)
    text = groups.describe(member(2, 6))
    assert text == (
        "2 of 6 members are here; missing ranks: 4-5; "
        "came but timed out: 0; came but disconnected: 1"
    )
    groups.join(member(0, 6), "again")
    assert "timed out" not in groups.describe(member(2, 6))


def test_group_without_members_is_forgotten() -> None:
    groups = Groups()
    groups.join(member(0), "a")
    groups.leave(member(0), "a", TIMED_OUT)
    assert groups.join(member(1, 5), "b") is None
    assert Groups().describe(member(0)) == "0 of 3 members are here; missing ranks: 0-2"


def test_departed_members_can_be_restored() -> None:
    groups, again = Groups(), Groups()
    for each in (groups, again):
        each.join(member(0), "a")
    groups.join(member(1), "b")
    groups.leave(member(1), "b", TIMED_OUT)
    again.restore_departed(groups.departed())
    assert again.describe(member(0)) == groups.describe(member(0))
    assert Groups().departed() == {}


def test_member_without_a_rank_leaves() -> None:
    groups = Groups()
    groups.join(member(None), "a")
    groups.join(member(None), "b")
    groups.leave(member(None), "a", TIMED_OUT)
    assert groups.members("b:x") == ["b"]


def test_describe_after_one_of_all_members_left() -> None:
    groups = Groups()
    groups.join(member(0, 3), "a")
    groups.join(member(1, 3), "b")
    groups.leave(member(0, 3), "a", TIMED_OUT)
    groups.join(member(2, 3), "c")  # three have come, and two are here
    assert groups.describe(member(1, 3)) == "2 of 3 members are here; came but timed out: 0"


def test_group_of_one_is_complete_at_once() -> None:
    assert Groups().join(member(0, 1), "a") is not None
    with pytest.raises(StoreValueError, match="must be 1 or more"):
        Groups().join(member(0, 0), "a")
