import click
import pytest

from rallypoint.cli.durations import LONG


@pytest.mark.parametrize(
    ("text", "long"),
    [("30", 30.0), ("90s", 90.0), ("5m", 300.0), ("6h", 21600.0), ("1.5d", 129600)],
)
def test_durations(text: str, long: float) -> None:
    assert LONG.convert(text, None, None) == long


def test_what_is_none_is_refused_with_examples() -> None:
    with pytest.raises(click.BadParameter, match="'soon' is no duration; write 30, 90s, 5m"):
        LONG.convert("soon", None, None)
