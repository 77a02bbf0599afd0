"""What the site needs beside the pages: links that leave docs/ become names of files.

On the site there is no repository around the pages; a link to a source file would lead
nowhere, so its target is told instead.
"""

import re
from typing import Any

_OUTSIDE = re.compile(
    r"\[([^\]]+)\]\(((?:\.\./)+(?:src|examples|benchmarks|deploy|tests|[A-Z]+\.md)[^)]*)\)"
)


def on_page_markdown(markdown: str, page: Any, **_more: Any) -> str:
    """Turn links to files outside of docs/ into text."""
    depth = page.file.src_uri.count("/") + 1

    def told(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        if target.count("../") < depth:
            return found[0]
        path = target.replace("../", "")
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return _OUTSIDE.sub(told, markdown)
