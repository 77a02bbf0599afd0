"""Operators exclude and admit nodes of real agents, and spares take over."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.harness import Fleet, Process

pytestmark = pytest.mark.integration

LIMIT_SECONDS = 40.0

# A worker that fails at once on one slot, and elsewhere works until it may end.
FAILING = """
import os, pathlib, sys, time
if os.environ["BAD"]:
    sys.exit("error: this machine's memory is bad")
stop = pathlib.Path(sys.argv[1])
while not stop.exists():
    time.sleep(0.02)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


def agent(fleet: Fleet, where: str, name: str, *options: str) -> Process:
    given = (f"--endpoint={where}", "--run-id=job", "--last-call=1", f"--slot={name}")
    return fleet.agent(name, *given, *options)


def order(fleet: Fleet, where: str, *argv: str) -> Process:
    command, *rest = argv
    return fleet.rallypoint(f"{command}-{len(fleet.processes)}", command, "job",
                            f"--endpoint={where}", *rest)  # fmt: skip


def test_spare_replaces_a_lost_node_and_unused_spare_ends(fleet: Fleet) -> None:
    _server, where = fleet.server()
    one, two = (agent(fleet, where, name, "--nnodes=2") for name in ("one", "two"))
    before = [process.round(2) for process in (one, two)]
    spare = agent(fleet, where, "spare", "--nnodes=2")
    spare.expect("this node is a spare")
    killed = two.kill()
    took = spare.round(2)
    one.round(2, before[0])
    print(f"figures: a spare took over {(took.at - killed) * 1000:.0f} ms after the kill")
    assert took.at - killed < 10.0
    late = agent(fleet, where, "late", "--nnodes=2")
    late.expect("this node is a spare")
    fleet.release()
    for process in (one, spare, late):
        process.finished(LIMIT_SECONDS)  # also the spare that was never needed: exit code 0
    assert "rank" not in late.out.text


def test_i1_newer_node_replaces_the_older_one_in_its_slot(fleet: Fleet) -> None:
    _server, where = fleet.server()
    one = agent(fleet, where, "one", "--nnodes=1:2", "--slot=a")
    one.expect("rank 0 of 1")
    two = agent(fleet, where, "two", "--nnodes=1:2", "--slot=a")
    assert one.wait(LIMIT_SECONDS) == 93, one.shown()
    assert "this node was replaced for good: " in one.err.text
    two.expect("rank 0 of 1")
    fleet.release()
    two.finished(LIMIT_SECONDS)


def test_h1_node_is_excluded_and_admitted_by_command(fleet: Fleet) -> None:
    _server, where = fleet.server()
    one, two = (agent(fleet, where, name, "--nnodes=1:2") for name in ("one", "two"))
    before = one.round(2)
    two.round(2)
    order(fleet, where, "exclude", "--slot=two", "--why=bad memory", "--for=1h").finished()
    one.round(1, before)
    assert "was excluded by " in one.out.text
    code = two.wait(LIMIT_SECONDS)
    assert code != 0
    assert "bad memory" in two.err.text
    again = agent(fleet, where, "two", "--nnodes=1:2")
    assert again.wait(LIMIT_SECONDS) == code
    assert "slot two was excluded by " in again.err.text
    assert "for 3600 s: bad memory" in again.err.text
    order(fleet, where, "admit", "--slot=two").finished()
    third = agent(fleet, where, "two", "--nnodes=1:2")
    third.round(2)
    fleet.release()
    for process in (one, third):
        process.finished(LIMIT_SECONDS)


def test_h1_node_with_repeated_failures_is_excluded(fleet: Fleet) -> None:
    script = fleet.folder / "failing.py"
    script.write_text(FAILING, encoding="utf-8")
    _server, where = fleet.server()
    options = (f"--endpoint={where}", "--run-id=job", "--nnodes=1:2", "--last-call=3",
               "--quarantine-failures=2", "--max-restarts=5", "--stop-grace=1")  # fmt: skip

    def start(name: str, bad: str) -> Process:
        argv = (f"--slot={name}", *options, str(script), str(fleet.folder / "stop"))
        return fleet.rallypoint(name, "run", *argv, env={"BAD": bad})

    good, bad = start("good", ""), start("bad", "yes")
    good.round(1, limit=LIMIT_SECONDS)
    assert bad.wait(LIMIT_SECONDS) != 0
    assert "slot bad was excluded by quarantine at " in bad.err.text
    assert " for 600 s: its workers" in bad.err.text
    assert "its workers have ended 2 of the last 16 rounds" in bad.err.text
    shown = fleet.rallypoint("status", "status", f"--endpoint={where}", "--run-id=job")
    shown.finished()
    assert "excluded slot bad, " in shown.out.text
    assert "2 of 5, 2 in a row" in shown.out.text
    (fleet.folder / "stop").touch()
    good.finished(LIMIT_SECONDS)
