"""The torch example, with real torch and gloo: one agent with two workers, and two agents.

Needs an environment with torch and rallypoint; RALLYPOINT_TORCH_PYTHON names its interpreter
(default: this one). Selected by `-m torch`; .ci/run runs it with tests/integrations.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.harness import EXAMPLES, Fleet, Process, endpoint

LIMIT_SECONDS = 90.0  # importing torch takes seconds, four times over on two cores
VARIABLE = "RALLYPOINT_TORCH_PYTHON"
EPOCHS = 12

pytestmark = [
    pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(3 * LIMIT_SECONDS)
]  # fmt: skip


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        yield started


def ddp(fleet: Fleet, name: str, *options: str, epochs: int = EPOCHS) -> Process:
    script = [str(EXAMPLES / "train_ddp.py"), f"--epochs={epochs}", "--checkpoint=ckpt"]
    python = os.environ.get(VARIABLE, sys.executable)
    return fleet.rallypoint(name, "run", *options, *script, python=python)


def trained(said: str, world_size: int, epochs: int = EPOCHS) -> None:
    (accuracy,) = re.findall(r"^final accuracy ([\d.]+)%", said, re.MULTILINE)
    assert float(accuracy) > 95.0
    last = re.findall(r"^world size (\d+)  epoch +(\d+) ", said, re.MULTILINE)[-1]
    assert last == (str(world_size), str(epochs))


def test_one_agent_with_two_workers(fleet: Fleet) -> None:
    agent = ddp(fleet, "node", "--standalone", "--nproc-per-node=2")
    agent.finished(LIMIT_SECONDS)
    trained(agent.out.text, 2)
    fleet.all_gone()


def test_two_agents(fleet: Fleet) -> None:
    options = ["--nnodes=2", f"--endpoint={endpoint()}", "--run-id=ddp"]
    agents = [ddp(fleet, f"node{i}", *options) for i in range(2)]
    for agent in agents:
        agent.finished(LIMIT_SECONDS)
    trained("\n".join(agent.out.text for agent in agents), 2)
    fleet.all_gone()


@pytest.mark.cases("case-B1")
def test_two_agents_lose_one_in_training_and_admit_another(fleet: Fleet) -> None:
    epochs = 200  # some seconds alone: enough for another to come
    options = ["--nnodes=1:2", f"--endpoint={endpoint()}", "--run-id=ddp", "--max-restarts=0"]
    agents = [ddp(fleet, f"node{i}", *options, epochs=epochs) for i in range(2)]
    seats = [agent.round(2) for agent in agents]
    leader = next(i for i, seat in enumerate(seats) if "rank 0" in seat.text)
    agents[leader].expect("world size 2  epoch", limit=LIMIT_SECONDS)
    victim, first = agents[leader], agents[1 - leader]
    victim.kill()  # the other worker sees gloo's error first
    one = first.round(1, seats[1 - leader])
    another = ddp(fleet, "another", *options, epochs=epochs)
    another.round(2, limit=LIMIT_SECONDS)
    first.round(2, one)
    assert [agent.wait(LIMIT_SECONDS) for agent in (first, another)] == [0, 0]
    trained(f"{first.out.text}\n{another.out.text}", 2, epochs)
    assert "rallypoint:" not in first.err.text  # only its worker's output
    assert another.err.text == ""


@pytest.mark.cases("case-C1", "case-G4")
def test_no_step_is_lost_when_one_of_two_agents_is_asked_to_leave(fleet: Fleet) -> None:
    epochs = 200
    options = ["--nnodes=1:2", f"--endpoint={endpoint()}", "--run-id=ddp", "--max-restarts=0"]
    options += ["--admit=checkpoint"]
    agents = [ddp(fleet, f"node{i}", *options, epochs=epochs) for i in range(2)]
    seats = [agent.round(2) for agent in agents]
    leader = next(i for i, seat in enumerate(seats) if "rank 0" in seat.text)
    agents[leader].expect("world size 2  epoch", limit=LIMIT_SECONDS)
    goes, stays = agents[leader], agents[1 - leader]
    goes.send(signal.SIGTERM)
    assert goes.wait() == 128 + signal.SIGTERM
    assert goes.err.text == ""
    one = stays.round(1, seats[1 - leader])
    (step,) = re.findall(r"all workers have saved at step (\d+)", one_line(stays, "left: "))
    stays.expect(rf"world size 1  resumes after step {step}$", one, LIMIT_SECONDS)
    another = ddp(fleet, "another", *options, epochs=epochs)
    another.round(2, limit=LIMIT_SECONDS)
    two = stays.round(2, one)
    (step,) = re.findall(r"all workers have saved at step (\d+)", one_line(stays, "1 node waits; "))
    stays.expect(rf"world size 2  resumes after step {step}$", two, LIMIT_SECONDS)
    for agent in (stays, another):
        agent.finished(LIMIT_SECONDS)
    trained(stays.out.text, 2, epochs)
    fleet.all_gone()


def one_line(agent: Process, what: str) -> str:
    """Return the line that says why the agent joined again."""
    (line,) = (
        e.text for e in agent.out.lines if "joining the next round: " in e.text and what in e.text
    )
    return line
