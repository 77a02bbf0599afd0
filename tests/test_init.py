"""The public names: all of them exist, are imported when used, and importing is cheap."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rallypoint
import rallypoint.rendezvous


@pytest.mark.parametrize("module", [rallypoint, rallypoint.rendezvous])
def test_every_public_name_can_be_imported(module: ModuleType) -> None:
    for name, where in module._WHERE.items():
        found = getattr(module, name)
        assert found is getattr(importlib.import_module(where), name)
        assert name in dir(module)


@pytest.mark.parametrize("module", [rallypoint, rallypoint.rendezvous])
def test_type_stubs_match_the_table_of_names(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed - {"worker"} == set(module._WHERE)


@pytest.mark.parametrize("module", [rallypoint, rallypoint.rendezvous])
def test_unknown_attribute_is_an_error(module: ModuleType) -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(module, "nonsense")  # noqa: B009 - the lookup is what is tested


def test_worker_is_a_module() -> None:
    assert rallypoint.worker.__name__ == "rallypoint.worker"


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, rallypoint; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    heavy = {"msgspec", "asyncio", "socket", "rallypoint.rendezvous", "rallypoint.server"}
    assert not loaded & heavy
