"""Times as text for people and logs; never compared."""

import datetime

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def now_text() -> str:
    """Return this machine's time in UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float | None) -> str:
    """Return a duration in seconds as text for people, "" for None."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    for size, unit in _UNITS:
        if seconds >= size:
            smaller = {86400: (3600, "h"), 3600: (60, "min"), 60: (1, "s")}[size]
            rest = int(seconds % size // smaller[0])
            return f"{int(seconds // size)} {unit}" + (f" {rest} {smaller[1]}" if rest else "")
    return ""
