"""The main job: nodes meet, train on real data, lose one, admit one, and finish."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.harness import EXAMPLES, Fleet, Process, endpoint

pytestmark = pytest.mark.integration

GRACE_SECONDS = 1.0  # disconnect_grace, by default
EPOCHS = 16


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


def digits(fleet: Fleet, name: str, *options: str) -> Process:
    """Start an agent of the job, 2 to 4 nodes, slow enough to lose one during training."""
    script = str(EXAMPLES / "train_digits.py")
    training = (f"--epochs={EPOCHS}", "--step-delay=0.02", f"--checkpoint={fleet.folder}/ckpt")
    return fleet.rallypoint(
        name, "run", "--nnodes=2:4", "--run-id=digits", *options, script, *training
    )


def lose_one_take_one(fleet: Fleet, options: list[str], limit: float) -> None:
    """Run the job. `limit`: seconds from the kill to the round of two."""
    first, second, victim = (digits(fleet, f"node{i}", *options) for i in range(3))
    three = [agent.round(3) for agent in (first, second, victim)]
    assert all("round 1:" in line.text for line in three)
    first_out = next(a for a in (first, second, victim) if "rank 0" in a.out.text)
    first_out.expect(r"world size 3  epoch")

    killed_at = victim.kill()
    told = [a.expect(r"joining the next round", three[i]) for i, a in enumerate((first, second))]
    two = [a.round(2, three[i]) for i, a in enumerate((first, second))]
    for line in told:
        assert f"pid {victim.pid}" in line.text or "was lost" in line.text
    detected = max(line.at for line in told) - killed_at
    formed = max(line.at for line in two) - killed_at
    print(f"figures: detected {detected * 1000:.0f} ms, re-formed {formed * 1000:.0f} ms")
    assert formed < limit

    newcomer = digits(fleet, "node3", *options)
    again = [a.round(3, two[i]) for i, a in enumerate((first, second))]
    came = newcomer.round(3)
    let_in = came.at - newcomer.started_at
    print(f"figures: newcomer in its round {let_in * 1000:.0f} ms after its start")
    assert len({line.text.split(":")[1] for line in (*again, came)}) == 1
    assert let_in < 10.0  # the last call alone would take 30

    for agent in (first, second, newcomer):
        agent.finished(60.0)
    said = "\n".join(agent.out.text for agent in fleet.processes)
    accuracies = [line for line in said.splitlines() if line.startswith("final accuracy ")]
    assert len(accuracies) == 1
    assert float(accuracies[0].split()[-1].rstrip("%")) > 95.0
    fleet.all_gone()


@pytest.mark.cases("case-B1")
def test_three_nodes_lose_one_and_admit_one(fleet: Fleet) -> None:
    options = [f"--endpoint={endpoint()}", "--last-call=3"]
    lose_one_take_one(fleet, options, GRACE_SECONDS + 1.0)


@pytest.mark.cases("case-B1")
def test_three_nodes_lose_one_and_admit_one_without_a_server(fleet: Fleet) -> None:
    lease = 2.0
    options = [
        "--backend=file", f"--endpoint={fleet.folder}/job.rallypoint", "--last-call=3",
        f"--lease={lease}",
    ]  # fmt: skip
    lose_one_take_one(fleet, options, lease + 1.0)
    assert fleet.servers() == []
