"""Deadline: one time budget, on a clock that the test moves."""

from datetime import timedelta

import pytest

from rallypoint.deadline import Deadline, seconds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("given", "expected"), [(3, 3.0), (0.5, 0.5), (timedelta(minutes=2, milliseconds=5), 120.005)]
)
def test_seconds_from_numbers_and_timedeltas(given: float | timedelta, expected: float) -> None:
    result = seconds(given)
    assert isinstance(result, float)
    assert result == pytest.approx(expected)


def test_deadline_counts_down() -> None:
    clock = Clock()
    deadline = Deadline(timedelta(seconds=10), clock)
    assert (deadline.timeout, deadline.remaining(), deadline.elapsed()) == (10.0, 10.0, 0.0)
    clock.now += 4
    assert (deadline.remaining(), deadline.elapsed(), deadline.expired()) == (6.0, 4.0, False)
    assert (deadline.capped(1.0), deadline.capped(60.0)) == (1.0, 6.0)
    clock.now += 6
    assert (deadline.remaining(), deadline.expired()) == (0.0, True)
    clock.now += 5
    assert (deadline.remaining(), deadline.elapsed(), deadline.capped(1.0)) == (0.0, 15.0, 0.0)


def test_deadline_of_zero_is_over_at_once() -> None:
    assert Deadline(0, Clock()).expired()


def test_the_default_clock_is_monotonic_time() -> None:
    deadline = Deadline(60)
    assert 0 <= deadline.elapsed() < 60
    assert not deadline.expired()
