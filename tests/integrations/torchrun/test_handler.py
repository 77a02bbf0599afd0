import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integrations.agents import HERE, TORCHRUN, Job, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
TOLD_SECONDS = 15.0  # a killed agent is known in about 1 s; the machine may be busy
WORKER = HERE / "torchrun" / "worker.py"
NewJob = Callable[..., Job]


@pytest.fixture
def new_job(tmp_path: Path) -> Iterator[NewJob]:
    jobs: list[Job] = []

    def make(*args: str, **kwargs: str | tuple[str, ...]) -> Job:
        jobs.append(Job(tmp_path, *args, **kwargs))  # type: ignore[arg-type]
        return jobs[-1]

    yield make
    for job in jobs:
        job.end()


def assert_clean(job: Job, nodes: int) -> None:
    assert [agent.wait() for agent in job.agents] == [0] * nodes
    assert [agent.stderr for agent in job.agents] == [""] * nodes


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_agents_train_together_and_end_silently(new_job: NewJob, nodes: int) -> None:
    job = new_job(str(nodes))
    for _ in range(nodes):
        job.start()
    job.until_world(nodes, job.agents)
    job.stop()
    assert_clean(job, nodes)


def test_ddp_script_runs_unchanged(new_job: NewJob, tmp_path: Path) -> None:
    job = new_job("2")
    script = ("examples/train_ddp.py", "--epochs", "4", "--checkpoint", str(tmp_path / "saved"))
    for _ in range(2):
        job.start(*script)
    assert_clean(job, 2)
    assert "accuracy" in job.agents[0].stdout + job.agents[1].stdout


@pytest.mark.parametrize("where", ["environment", "configuration"])
def test_workers_can_host_their_own_store(new_job: NewJob, where: str) -> None:
    conf = "last_call=0.5" + (",use_agent_store=false" if where == "configuration" else "")
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if where == "environment" else {}
    job = new_job("2", conf=conf)
    for _ in range(2):
        job.start(**env)
    job.until_world(2, job.agents)
    job.stop()
    assert_clean(job, 2)


def test_third_agent_is_admitted(new_job: NewJob) -> None:
    job = new_job("2:3")
    job.start()
    job.start()
    job.until_world(2, job.agents)
    job.start()
    job.until_world(3, job.agents)
    job.stop()
    assert [agent.wait() for agent in job.agents] == [0, 0, 0]


@pytest.mark.cases("case-B1")
def test_lost_agent_starts_a_new_round_while_c10d_waits(new_job: NewJob) -> None:
    jobs = {name: new_job("2:3", backend=name) for name in ("rallypoint", "c10d")}
    took = {}
    for name, job in jobs.items():
        for _ in range(3):
            job.start()
        job.until_world(3, job.agents)
        job.agents[2].freeze()
        if name == "rallypoint":
            took[name] = job.until_world(2, job.agents[:2])
    assert took["rallypoint"] < TOLD_SECONDS
    print(f"a round of two after {took['rallypoint']:.1f} s")
    jobs["rallypoint"].stop()
    assert [agent.wait() for agent in jobs["rallypoint"].agents[:2]] == [0, 0]
    time.sleep(max(10.0, 3 * took["rallypoint"]))  # that nothing happens can only be waited for
    assert [agent.worlds()[-1] for agent in jobs["c10d"].agents[:2]] == [3, 3]


@pytest.mark.cases("case-C1")
def test_sigterm_to_one_agent_closes_nothing(new_job: NewJob) -> None:
    job = new_job("1:3", options=("--max-restarts", "3"))
    for _ in range(3):
        job.start()
    job.until_world(3, job.agents)
    gone = job.agents[1]
    gone.process.send_signal(signal.SIGTERM)
    assert gone.wait() != 0
    stayed = [agent for agent in job.agents if agent is not gone]
    job.until_world(2, stayed)
    back = job.start()
    job.until_world(3, [*stayed, back])
    job.stop()
    assert [agent.wait() for agent in [*stayed, back]] == [0, 0, 0]


def test_a_failed_worker_is_started_again(new_job: NewJob, tmp_path: Path) -> None:
    job = new_job("2", options=("--max-restarts", "2"))
    fail = tmp_path / "fail"
    for _ in range(2):
        job.start(str(WORKER), str(job.stop_file), str(fail))
    job.until_world(2, job.agents)
    fail.touch()
    job.until_world(2, job.agents, again=True)
    assert not fail.exists()
    job.stop()
    assert [agent.wait() for agent in job.agents] == [0, 0]


@pytest.mark.cases("case-D3")
def test_all_agents_learn_at_once_that_one_gives_up(new_job: NewJob) -> None:
    job = new_job("2", options=("--max-restarts", "0"))
    bad = job.start("--no-python", "sh", "-c", "sleep 1; exit 3")
    good = job.start("--no-python", "sleep", "120")
    assert bad.wait() == 1
    assert until(lambda: good.process.poll() is not None, "the other ends too") < TOLD_SECONDS
    assert good.wait() == 1
    assert "RendezvousClosedError" in good.stderr
    assert "its workers failed" in good.stderr


def test_incomplete_round_names_the_missing_nodes(new_job: NewJob) -> None:
    job = new_job("2", conf="join_timeout=3")
    alone = job.start()
    assert alone.wait() == 1
    assert "RendezvousTimeoutError" in alone.stderr
    assert "1 of at least 2 nodes" in alone.stderr


def test_unused_spare_exits_with_0(new_job: NewJob) -> None:
    job = new_job("2:2")
    job.start()
    job.start()
    job.until_world(2, job.agents)
    spare = job.start()
    until(lambda: "1 spare" in spare.stderr, "the spare says what it waits for")
    job.stop()
    assert [agent.wait() for agent in job.agents] == [0, 0, 0]


@pytest.mark.parametrize("identical", ["0", "1"])
def test_ranks_count_all_workers_and_those_of_each_role(new_job: NewJob, identical: str) -> None:
    job = new_job("3")
    script = "echo $GROUP_RANK $RANK/$WORLD_SIZE $ROLE_NAME $ROLE_RANK/$ROLE_WORLD_SIZE"
    roles = [("reader", 1), ("trainer", 2), ("trainer", 1)]
    for role, workers in roles if identical == "0" else [("trainer", 2)] * 3:
        job.start(
            *("--role", role, "--nproc-per-node", str(workers), "--no-python"),
            *("sh", "-c", script),
            TORCH_ELASTIC_WORKER_IDENTICAL=identical,
        )
    assert_clean(job, 3)
    rows = [line.split() for agent in job.agents for line in agent.stdout.splitlines()]
    total = 4 if identical == "0" else 6
    assert sorted(row[1] for row in rows) == [f"{rank}/{total}" for rank in range(total)]
    for role in {row[2] for row in rows}:
        found = sorted(row[3] for row in rows if row[2] == role)
        assert found == [f"{rank}/{len(found)}" for rank in range(len(found))]


@pytest.mark.cases("case-D3")
def test_first_finished_agent_waits_only_for_the_others(new_job: NewJob) -> None:
    job = new_job("2")
    quick = job.start("--no-python", "true")
    slow = job.start("--no-python", "sleep", "4")
    assert (quick.wait(), slow.wait()) == (0, 0)
    assert (quick.stderr, slow.stderr) == ("", "")


@pytest.mark.cases("case-D3")
def test_exit_barrier_does_not_wait_for_a_killed_agent(new_job: NewJob) -> None:
    job = new_job("2")
    done = job.start("--no-python", "true")
    busy = job.start("--no-python", "sh", "-c", "echo at work; sleep 100")
    until(lambda: "at work" in busy.stdout, "the other works")
    busy.freeze()
    assert done.wait(TOLD_SECONDS) == 0
    assert done.stderr == ""


STARTS = int(os.environ.get("RALLYPOINT_STARTS", "5"))  # 50 of them: RALLYPOINT_STARTS=50
START_OFTEN = """
import sys, uuid
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
port, times = int(sys.argv[1]), int(sys.argv[2])
for number in range(times):
    elastic_launch(
        LaunchConfig(
            min_nodes=2, max_nodes=2, nproc_per_node=1, run_id=f"start-{number}",
            rdzv_backend="rallypoint", rdzv_endpoint=f"127.0.0.1:{port}", max_restarts=0,
            monitor_interval=0.02,
        ),
        "true",
    )()
print("all started")
"""


def test_fifty_starts_in_a_row(new_job: NewJob) -> None:
    port = new_job("2").port
    command = [sys.executable, "-c", START_OFTEN, str(port), "50"]
    agents = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [agent.communicate(timeout=250) for agent in agents]
    assert ends == [("all started\n", "")] * 2
    assert [agent.returncode for agent in agents] == [0, 0]


@pytest.mark.timeout(60 + 12 * STARTS)  # 1.6 s each on two idle cores, for importing torch
def test_two_launchers_repeatedly(new_job: NewJob) -> None:
    """Real torchrun processes, on one port: each start hosts where the one before has ended."""
    port, ends = new_job("2").port, []
    command = [sys.executable, "-m", TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "rallypoint", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    for number in range(STARTS):
        agents = [
            subprocess.Popen(
                [*command, "--rdzv-id", f"start-{number}", "--no-python", "echo", str(number)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        ends += [(*agent.communicate(timeout=60), agent.returncode) for agent in agents]
    assert ends == [(f"{number // 2}\n", "", 0) for number in range(2 * STARTS)]
