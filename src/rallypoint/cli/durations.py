"""Durations on the command line."""

import re

import click

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


LONG = Duration()
