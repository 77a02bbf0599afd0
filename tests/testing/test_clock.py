"""The manual clock moves when told, and never backwards."""

import pytest

from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError
from rallypoint.testing.clock import ManualClock


def test_moves_when_told() -> None:
    clock = ManualClock(100)
    assert clock() == clock() == 100.0
    clock.advance(0.5)
    assert clock() == 100.5


def test_never_backwards() -> None:
    for seconds in (-1.0, float("nan")):
        with pytest.raises(ParameterError, match="seconds="):
            ManualClock().advance(seconds)


def test_drives_a_deadline() -> None:
    clock = ManualClock()
    deadline = Deadline(2, clock)
    clock.advance(2)
    assert deadline.expired()
