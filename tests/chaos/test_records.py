"""The checks of chaos runs find violations."""

from pathlib import Path

import pytest
from tests.chaos.records import Life, killed_workers, read_lives, two_worlds, wrong_ranks


def life(
    agent: str, number: int, rank: int, size: int, began: float, ended: float, end: str = "term"
) -> Life:
    return Life(agent, 1, number, rank, size, 100 + int(agent), began, ended, end)


GOOD = [
    life("0", 1, 0, 2, 1.0, 5.0),
    life("1", 1, 1, 2, 1.0, 4.0, ""),
    life("0", 2, 0, 1, 5.5, 9.0, "done"),
]


def test_good_run_passes_all_checks() -> None:
    assert wrong_ranks(GOOD) == []
    assert two_worlds(GOOD, {}) == []
    assert killed_workers(GOOD, {"1"}, set()) == []


@pytest.mark.parametrize(
    "other",
    [
        life("1", 1, 0, 2, 1.0, 4.0),  # the same rank
        life("0", 1, 1, 2, 1.0, 4.0),  # the same agent
        life("1", 1, 1, 3, 1.0, 4.0),  # another size
        life("1", 1, 2, 2, 1.0, 4.0),  # a rank above all
    ],
)
def test_wrong_ranks_are_reported(other: Life) -> None:
    (found,) = wrong_ranks([GOOD[0], other])
    assert "rank 0 of 2" in found


def test_old_round_that_goes_on_is_reported() -> None:
    lives = [GOOD[0], life("1", 1, 1, 2, 1.0, 12.0), GOOD[2]]
    (found,) = two_worlds(lives, {}, 4.0)
    assert "1 round 1.1 rank 1 of 2" in found
    assert two_worlds(lives, {"1": [(4.0, 8.0)]}, 4.0) == []  # it was stopped until 8.0
    assert two_worlds(lives, {"1": [(0.0, 5.0)]}, 4.0) != []  # that was before
    assert two_worlds(lives, {"0": [(4.0, 8.0)]}, 4.0) != []


def test_killing_a_healthy_worker_is_reported() -> None:
    assert len(killed_workers(GOOD, set(), set())) == 1
    assert killed_workers(GOOD, set(), {101}) == []


def test_partly_written_records_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.1.life").write_text("0 1 2 3 4 77 5.5\nbeat 6.0\nbeat 6.")
    (tmp_path / "b.2.life").write_text("1 1 2 2 4 78 5.5\nbeat 6.0\nterm 7.0\n")
    (tmp_path / "c.3.life").write_text("1 1 2")
    first, second = read_lives(tmp_path)
    assert first == Life("0", 1, 2, 3, 4, 77, 5.5, 6.0, "")
    assert (second.ended, second.end) == (7.0, "term")
