"""The shell blocks of README and the quick start work as the pages say.

The quick start is one script, run as it is except for ports and installation. Each block of README
has an entry here that says how it is tested; a block without one fails.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rallypoint.net.addresses import free_port

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 100.0
LOOPBACK = "127.0.0.1"


def fenced(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)


def indented(page: Path) -> list[str]:
    """Return the blocks that are indented by four spaces, outside of fences."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    found = re.findall(r"\n\n((?:    .*(?:\n|$)|\n(?=    ))+)", text)
    return [re.sub(r"^    ", "", block, flags=re.M).strip("\n") for block in found]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which `rallypoint` and `python` are this interpreter's."""
    shim = folder / "bin"
    shim.mkdir()
    for name, what in (("rallypoint", "-m rallypoint"), ("python", "")):
        script = shim / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {what} "$@"\n')
        script.chmod(0o755)
    return {**os.environ, "PATH": f"{shim}:{os.environ['PATH']}"}


def shell(script: str, folder: Path, env: dict[str, str]) -> str:
    """Run a script in a new process group, and end all processes that it leaves."""
    out = folder / "out.txt"
    with (
        out.open("wb") as sink,
        subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=env,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(LIMIT_SECONDS)
        finally:
            end_group(process.pid)
    said = out.read_text("utf-8")
    assert code == 0, said
    return said


def end_group(group: int) -> None:
    """End a process group."""
    for number in (15, 9):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return
        time.sleep(0.5)


def test_the_quick_start_does_what_it_says(tmp_path: Path) -> None:
    script = "\n".join(fenced(ROOT / "docs" / "quickstart.md", "sh"))
    script = re.sub(r"^pip install .*$", "", script, flags=re.M)
    for port in ("29400", "29480"):
        script = script.replace(port, str(free_port(LOOPBACK)))
    # a background server needs a moment; a person types more slowly
    script = re.sub(r"(rallypoint serve .*&)", r"\1\nsleep 2", script)
    said = shell(script, tmp_path, environment(tmp_path))
    assert said.startswith("rallypoint ")
    assert "rank 0 of 2 sees ['worker 0', 'worker 1']" in said
    assert said.count("of 2 sees") == 4
    assert "1 of at least 3 nodes have joined round 1; waiting for 2 more" in said
    assert "missing  2 nodes that have never connected (min_nodes=3)" in said
    assert '"schema":"rallypoint.status/1"' in said
    assert "rallypoint_rounds_sealed_total" in said
    assert "possible cause: address: the endpoint is a loopback address" in said


# -- README ---------------------------------------------------------------------------------

Try = Callable[[str, Path], None]


def only_shown(_block: str, _folder: Path) -> None:
    """A command that only prints; its own test checks the output."""


def made(block: str, _folder: Path) -> None:
    """Targets of the Makefile: make knows what they do (--dry-run)."""
    for target in re.findall(r"^make ([\w-]+)", block, re.M):
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def both_machines(block: str, folder: Path) -> None:
    """Both commands, side by side on this machine."""
    script = block.replace("first:29400", f"{LOOPBACK}:{free_port(LOOPBACK)}")
    script = re.sub(r"^(\w+\$)\s+(.*)$", r"\2 --epochs 1 &", script, flags=re.M)
    (folder / "examples").symlink_to(ROOT / "examples")
    said = shell(f"{script}\nwait", folder, environment(folder))
    assert "accuracy" in said


def explained(block: str, folder: Path) -> None:
    """Without torch: only the options are checked."""
    (folder / "examples").symlink_to(ROOT / "examples")
    script = block.replace("rallypoint run", "rallypoint run --explain", 1)
    assert "nproc_per_node" in shell(script, folder, environment(folder))


def looked_at(block: str, folder: Path) -> None:
    """Both commands, with a server on this machine that has such a run."""
    port = free_port(LOOPBACK)
    script = block.replace("first:29400", f"{LOOPBACK}:{port}").replace(" --watch", "")
    node = f"rallypoint run --nnodes 1 --endpoint {LOOPBACK}:{port} --run-id digits --no-python"
    said = shell(f"{node} sleep 8 &\nsleep 2\n{script}", folder, environment(folder))
    assert "round 1 is running with 1 node" in said
    assert "peers" in said


README: dict[str, Try] = {  # how a block begins -> how it is tested
    "make demo": made,
    "rounds\n": only_shown,
    "first$  rallypoint run": both_machines,
    "rallypoint run --standalone": explained,
    "rallypoint status": looked_at,
    "torchrun ": only_shown,  # tests/integrations/torchrun runs it
}


def test_every_readme_block_is_tested() -> None:
    for block in indented(ROOT / "README.md"):
        assert any(block.startswith(start) for start in README), f"say how to try:\n{block}"


@pytest.mark.parametrize("start", README)
def test_readme_block_works(start: str, tmp_path: Path) -> None:
    found = [block for block in indented(ROOT / "README.md") if block.startswith(start)]
    for block in found:
        README[start](block, tmp_path)
