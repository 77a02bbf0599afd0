"""Writes the commit into the wheel, where `rallypoint --version` finds it."""

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg] # hatchling's own parameter
    """Adds rallypoint/revision.txt, if this is a checkout."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Ask git, and add the answer."""
        root = Path(self.root)
        path = root / "src" / "rallypoint" / "version.py"
        spec = importlib.util.spec_from_file_location("revision", path)
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found = module.of_checkout(root)
        if found:
            self._folder = tempfile.TemporaryDirectory()
            kept = Path(self._folder.name) / "revision.txt"
            kept.write_text(f"{found}\n", encoding="utf-8")
            build_data["force_include"][str(kept)] = "rallypoint/revision.txt"
