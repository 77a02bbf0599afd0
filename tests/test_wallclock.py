import re

import pytest

from rallypoint.wallclock import duration, now_text


def test_times_are_in_utc() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", now_text())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""), (0.04, "0.0 s"), (9.9, "9.9 s"), (10, "10 s"), (61, "1 min 1 s"),
        (120, "2 min"), (3700, "1 h 1 min"), (90_000, "1 d 1 h"), (86_400, "1 d"),
    ],
)  # fmt: skip
def test_durations_in_words(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
