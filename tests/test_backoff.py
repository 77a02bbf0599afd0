from itertools import islice

import pytest

from rallypoint import backoff


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0), (1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (8, 60), (10_000, 60)],
)
def test_pauses_double_up_to_a_minute(failures: int, seconds: float) -> None:
    assert backoff.pause_seconds(failures) == seconds


def test_pauses_in_sequence() -> None:
    assert list(islice(backoff.pauses(), 8)) == [1, 2, 4, 8, 16, 32, 60, 60]


def test_reason_for_a_pause() -> None:
    assert backoff.crash_loop(1, 1) == ("the previous round failed; restarting workers in 1 s")
    assert backoff.crash_loop(3, 4).startswith("3 rounds in a row failed;")
