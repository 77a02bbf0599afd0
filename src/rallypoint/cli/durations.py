"""Durations on the command line."""

import re

import click

LONGEST_SECONDS = 1e9  # 31 years; a wait of the operating system has an end
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")


class Duration(click.ParamType[float]):
    """Seconds, or a number with a unit: 30, 90s, 5m, 6h, 1d."""

    name = "duration"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no duration; write 30, 90s, 5m, 6h or 1d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


class Seconds(click.ParamType[float]):
    """Seconds that a wait can have: neither nan, which is no number, nor more than can be waited.

    Args:
        min_open: whether 0 is refused.
    """

    name = "seconds"

    def __init__(self, min_open: bool = False) -> None:
        self._min_open = min_open

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = float("nan")
        if not 0 <= seconds <= LONGEST_SECONDS or (self._min_open and not seconds):
            least = "more than 0" if self._min_open else "0 or more"
            self.fail(f"{value!r}: give seconds, {least}, at most {LONGEST_SECONDS:g}", param, ctx)
        return seconds


LONG = Duration()
