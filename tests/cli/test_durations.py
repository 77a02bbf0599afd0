import click
import pytest

from rallypoint.cli.durations import LONG, Seconds


@pytest.mark.parametrize(
    ("text", "long"),
    [("30", 30.0), ("90s", 90.0), ("5m", 300.0), ("6h", 21600.0), ("1.5d", 129600)],
)
def test_durations(text: str, long: float) -> None:
    assert LONG.convert(text, None, None) == long


def test_what_is_none_is_refused_with_examples() -> None:
    with pytest.raises(click.BadParameter, match="'soon' is no duration; write 30, 90s, 5m"):
        LONG.convert("soon", None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "1e10", "soon", ""])
def test_what_cannot_be_waited_for_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="give seconds, 0 or more, at most 1e\\+09"):
        Seconds().convert(text, None, None)


def test_seconds() -> None:
    assert [Seconds().convert(text, None, None) for text in ("0", "2.5", 30.0)] == [0, 2.5, 30]
    with pytest.raises(click.BadParameter, match="more than 0"):
        Seconds(min_open=True).convert("0", None, None)
