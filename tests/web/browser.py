"""A real Chromium that looks at a page.

RALLYPOINT_CHROMIUM names the browser; screenshots go to RALLYPOINT_ARTEFACTS, if it is set.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# without the last ones a browser asks its maker's hosts for things at each start
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
LIMIT_MS = 10_000


@contextlib.contextmanager
def chromium() -> "Iterator[Browser]":
    """Start the browser."""
    from playwright.sync_api import sync_playwright  # of the extra `browser`

    path = os.environ.get("RALLYPOINT_CHROMIUM") or shutil.which("chromium")
    assert path, "no chromium on the PATH; RALLYPOINT_CHROMIUM names one"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Look:
    """A page, and all that it complained of."""

    page: "Page"
    complaints: list[str] = field(default_factory=list)

    def picture(self, name: str) -> None:
        """Keep a screenshot as an artefact."""
        folder = os.environ.get("RALLYPOINT_ARTEFACTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"))

    def faults(self) -> list[str]:
        """Return what axe-core calls serious or critical."""
        from axe_playwright_python.sync_playwright import Axe

        found: dict[str, Any] = Axe().run(self.page).response
        return [
            f"{fault['id']}: {fault['help']}: {[node['target'] for node in fault['nodes']][:3]}"
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical")
        ]


@contextlib.contextmanager
def look(
    browser: "Browser", url: str, *, scheme: str = "light", width: int = 1280
) -> Iterator[Look]:
    """Open a page; it must not have complained by the end."""
    dark = scheme == "dark"
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        bypass_csp=False,
    )
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    shown = Look(page)
    page.on("console", lambda message: shown.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: shown.complaints.append(str(error)))
    try:
        page.goto(url)
        yield shown
        assert not shown.complaints, shown.complaints
    finally:
        context.close()
