"""Terminal pictures, kept as text for people to read: compared, or made anew on request."""

import io
import os
from pathlib import Path

from rich.console import Console, RenderableType

PICTURES = Path(__file__).resolve().parent / "pictures"


def drawn(picture: RenderableType, width: int = 110) -> str:
    """Return what a terminal of that width shows, without colours."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(picture)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def check(name: str, text: str) -> None:
    """Compare with the picture of that name; RALLYPOINT_REFRESH=1 makes it anew."""
    path = PICTURES / f"{name}.txt"
    if os.environ.get("RALLYPOINT_REFRESH"):
        path.write_text(text, "utf-8")
    assert path.read_text("utf-8") == text, f"look at {path.name}; RALLYPOINT_REFRESH=1 renews it"
