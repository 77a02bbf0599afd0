"""case-G4: nodes come and go, workers save first, and no step is computed twice."""

import os
import re
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.integration.harness import EXAMPLES, Fleet, Line, Process, endpoint

import train_digits as digits
from rallypoint import worker
from rallypoint.store.memory import MemoryStore

pytestmark = pytest.mark.integration

HERE = Path(__file__).resolve().parent
EPOCHS = 40
BATCHES = 12  # steps of an epoch

# A worker that asks at each step whether to save, and prints what it did.
ASKING = """
import pathlib, sys, time
from rallypoint import worker
stop, step = pathlib.Path(sys.argv[1]), 0
while not stop.exists():
    step += 1
    if worker.should_save(step):
        change = worker.pending_change()
        print(f"rank {worker.rank()} saves at step {step}", flush=True)
        worker.saved(step)
        print(f"rank {worker.rank()} goes on", flush=True)
    time.sleep(0.01)
"""

# A worker without steps: a signal tells it to look.
CALLED = """
import pathlib, signal, sys, threading
from rallypoint import worker
def look(number, frame):
    change = worker.pending_change()
    print(f"pending: {change.kind}, {change.who}, {change.why}, "
          f"{change.seconds_left:.0f} s left", flush=True)
signal.signal(signal.SIGUSR1, look)
print("ready", flush=True)
stop = pathlib.Path(sys.argv[1])
while not stop.exists():
    threading.Event().wait(0.02)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as started:
        paths = [str(EXAMPLES), started.environment().get("PYTHONPATH", "")]
        started.env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        (tmp_path / "asking.py").write_text(ASKING, encoding="utf-8")
        (tmp_path / "called.py").write_text(CALLED, encoding="utf-8")
        yield started


class Step(NamedTuple):
    """A computed step: its round, and its number from the start of the run."""

    round: int
    number: int


def computed(folder: Path) -> list[Step]:
    """Read the log of rank 0's steps, in the order in which they were computed."""
    lines = (line.split() for line in (folder / "log").read_text().splitlines())
    starts = range(0, BATCHES * digits.BATCH, digits.BATCH)
    return [Step(int(r), int(e) * BATCHES + starts.index(int(s))) for r, e, s in lines]


def train(fleet: Fleet, name: str, *options: str) -> Process:
    script = [str(HERE / "logged_digits.py"), str(fleet.folder)]
    training = [f"--epochs={EPOCHS}", f"--checkpoint={fleet.folder}/states"]
    return fleet.rallypoint(name, "run", *options, *script, *training)


def accuracy_alone() -> str:
    worker.use(MemoryStore(), 0, 1)
    data, model = digits.load_data(), digits.train(EPOCHS)
    return f"{model.accuracy(data.test_x, data.test_y):.1%}"


@pytest.mark.cases("case-G4")
@pytest.mark.timeout(300)
def test_training_survives_four_scale_ups_and_four_losses(fleet: Fleet) -> None:
    options = ["--nnodes=1:4", f"--endpoint={endpoint()}", "--run-id=g4", "--admit=checkpoint"]
    options += ["--last-call=2", "--admit-grace=60"]
    (fleet.folder / "states").mkdir()
    live = [train(fleet, f"node{i}", *options) for i in range(2)]
    seats = {agent.name: agent.round(2) for agent in live}
    for turn in range(4):
        newcomer = train(fleet, f"newcomer{turn}", *options)
        seats = {a.name: a.round(3, seats[a.name], limit=60.0) for a in live} | {
            newcomer.name: newcomer.round(3)
        }
        live.append(newcomer)
        works(live, seats)
        victim = live.pop(turn % 3)  # rank 0's node too
        victim.kill()
        seats = {a.name: a.round(2, seats[a.name], limit=60.0) for a in live}
        works(live, seats)
    (fleet.folder / "fast").touch()
    for agent in live:
        agent.finished(60.0)
    check_steps(fleet, live[-1])
    (accuracy,) = re.findall("^final accuracy (.*)$", "\n".join(a.out.text for a in live), re.M)
    assert abs(float(accuracy.rstrip("%")) - float(accuracy_alone().rstrip("%"))) <= 1.0
    fleet.all_gone()


def works(live: list[Process], seats: dict[str, Line]) -> None:
    """Wait until the round of these seats has computed some steps."""
    (first,) = (agent for agent in live if "rank 0 of" in seats[agent.name].text)
    (number,) = re.findall(r"round (\d+)", seats[first.name].text)
    line = seats[first.name]
    for _ in range(5):
        line = first.expect(rf"step of round {number}$", line)


def check_steps(fleet: Fleet, last: Process) -> None:
    """At a scale-up no step is repeated; a loss repeats the steps that were not saved."""
    said = "\n".join(agent.out.text for agent in fleet.processes)
    scale_ups = {int(n) for n in re.findall(r"waits?; all workers have saved at step (\d+)", said)}
    assert len(scale_ups) == 4
    steps, losses = computed(fleet.folder), 0
    for before, after in pairwise(steps):
        if before.round == after.round:
            assert after.number == before.number + 1
        elif after.number in scale_ups:
            assert after.number == before.number + 1
            scale_ups.remove(after.number)
        else:
            losses += 1
            assert after.number <= before.number + 1
            assert before.number - after.number <= BATCHES  # an epoch is saved, or a change
    assert (losses, scale_ups) == (4, set())
    assert steps[-1].number == EPOCHS * BATCHES - 1


def asking(fleet: Fleet, name: str, *options: str, script: str = "asking.py") -> Process:
    return fleet.agent(name, *options, script, str(fleet.stop_file))


@pytest.mark.cases("case-G4", "case-C1")
@pytest.mark.parametrize("where", ["server", "server with a token", "file"])
def test_node_asked_to_leave_waits_until_all_workers_saved(fleet: Fleet, where: str) -> None:
    options = ["--nnodes=1:2", "--run-id=leave", "--admit=checkpoint", "--last-call=10"]
    if where == "file":
        options += ["--backend=file", f"--endpoint={fleet.folder}/run.rallypoint"]
    else:
        options.append(f"--endpoint={endpoint()}")
    if where == "server with a token":
        fleet.env["RALLYPOINT_TOKEN"] = "a-secret-that-is-long-enough-to-be-one"
    agents = [asking(fleet, f"node{i}", *options) for i in range(2)]
    seats = [agent.round(2) for agent in agents]
    stays, goes = agents
    goes.send(signal.SIGTERM)
    saves = [agent.expect(r"rank \d saves at step") for agent in agents]
    steps = [re.findall(r"at step (\d+)", line.text) for line in saves]
    assert steps[0] == steps[1]
    assert goes.wait() == 128 + signal.SIGTERM
    assert goes.err.text == ""
    stays.round(1, seats[0])
    assert not any("goes on" in agent.out.text for agent in agents)
    assert f"left: received SIGTERM; all workers have saved at step {steps[0][0]}" in stays.out.text
    fleet.release()
    stays.finished()
    fleet.all_gone()


def test_second_signal_ends_the_agent_at_once(fleet: Fleet) -> None:
    options = ["--standalone", "--admit=checkpoint"]
    agent = asking(fleet, "node", *options, script="called.py")  # never saves
    agent.expect("ready")
    agent.send(signal.SIGTERM)
    agent.expect("received SIGTERM: the workers have 60 s to save first")
    agent.send(signal.SIGTERM)
    assert agent.wait() == 128 + signal.SIGTERM
    fleet.all_gone()


def test_workers_that_do_not_save_have_a_grace_period(fleet: Fleet) -> None:
    options = ["--nnodes=1:2", f"--endpoint={endpoint()}", "--run-id=late", "--last-call=0.1"]
    options += ["--admit=checkpoint", "--admit-grace=2", "--admit-signal=usr1"]
    agent = asking(fleet, "node", *options, script="called.py")
    ready = agent.expect("ready")
    other = asking(fleet, "other", *options, script="called.py")
    asked = agent.expect("1 node waits: the workers have 2 s to save first", ready)
    agent.expect(r"pending: joining, 1 node, 1 node waits, \d s left", ready)
    two = agent.round(2)
    other.round(2)
    assert two.at - asked.at >= 2.0
    assert "the workers have not saved in 2 s" in agent.out.text
    fleet.release()
    for each in (agent, other):
        each.finished()
    fleet.all_gone()


def test_admit_never_waits_for_a_round_opened_otherwise(fleet: Fleet) -> None:
    options = ["--nnodes=1:3", f"--endpoint={endpoint()}", "--run-id=never", "--admit=never"]
    options += ["--last-call=1"]
    agents = [fleet.agent(f"node{i}", *options) for i in range(2)]
    seats = [agent.round(2) for agent in agents]
    newcomer = fleet.agent("newcomer", *options)
    newcomer.expect("waits|parked|is running")
    agents[1].kill()
    agents[0].round(2, seats[0])
    newcomer.round(2)
    fleet.release()
    for agent in (agents[0], newcomer):
        agent.finished()
    fleet.all_gone()


def test_newcomer_that_leaves_while_waiting_starts_no_round(fleet: Fleet) -> None:
    options = ["--nnodes=1:2", f"--endpoint={endpoint()}", "--run-id=off", "--last-call=0.1"]
    options += ["--admit=checkpoint"]
    agent = asking(fleet, "node", *options, script="called.py")
    agent.expect("ready")
    newcomer = asking(fleet, "newcomer", *options, script="called.py")
    agent.expect("1 node waits: the workers have 60 s to save first")
    newcomer.send(signal.SIGTERM)
    assert newcomer.wait() == 128 + signal.SIGTERM
    fleet.release()
    agent.finished()
    assert "joining the next round" not in agent.out.text
    fleet.all_gone()


def test_node_given_notice_leaves_after_all_workers_saved(fleet: Fleet) -> None:
    where = endpoint()
    options = ["--nnodes=1:3", f"--endpoint={where}", "--run-id=notice"]
    agents = [asking(fleet, f"node{i}", *options, f"--slot=slot{i}") for i in range(3)]
    seats = {agent: agent.round(3) for agent in agents}
    order = [f"--endpoint={where}", "--slot=slot2", "--why=maintenance", "--in=30s"]
    fleet.rallypoint("order", "notify", "notice", *order).finished()
    saves = {agent.expect(r"rank \d saves at step").text.split()[-1] for agent in agents}
    assert len(saves) == 1
    assert agents[2].wait() == 128 + signal.SIGTERM
    assert "this node leaves: maintenance; all workers have saved" in agents[2].out.text
    for agent in agents[:2]:
        agent.round(2, seats[agent])
        assert "maintenance: the workers have 30 s to save first" in agent.out.text
        assert "goes on" not in agent.out.text
    fleet.release()
    for agent in agents[:2]:
        agent.finished()
    fleet.all_gone()
