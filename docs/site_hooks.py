"""Turns links that leave docs/ into file names when the site is built.

The site contains only docs/, so a link to a source file would lead nowhere.
"""

import re
from typing import Any

_OUTSIDE = re.compile(
    r"\[([^\]]+)\]\(((?:\.\./)+(?:src|examples|benchmarks|deploy|tests|[A-Z]+\.md)[^)]*)\)"
)


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    """Turn links to files outside of docs/ into text."""
    depth = page.file.src_uri.count("/") + 1

    def as_text(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if target.count("../") < depth:
            return found[0]
        path = target.replace("../", "")
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return _OUTSIDE.sub(as_text, markdown)
