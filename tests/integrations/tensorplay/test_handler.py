import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tensorplay import distributed as dist
from tensorplay.distributed.elastic.rendezvous import get_registry, registry
from tests.integrations.agents import HERE, Job, until
from tests.integrations.rounds import make_round

from rallypoint.integrations import tensorplay
from rallypoint.integrations.tensorplay.handler import KEYS, RoundStore

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
WORKER = HERE / "tensorplay" / "worker.py"
USAGE = HERE / "tensorplay" / "usage.py"
NewJob = Callable[..., Job]


@pytest.fixture
def new_job(tmp_path: Path) -> Iterator[NewJob]:
    jobs: list[Job] = []

    def make(nnodes: str) -> Job:
        jobs.append(Job(tmp_path, nnodes, launcher=tensorplay.__name__, worker=WORKER))
        return jobs[-1]

    yield make
    for job in jobs:
        job.end()


def test_tensorplay_launcher_trains_with_our_handler(new_job: NewJob) -> None:
    job = new_job("2")
    for _ in range(2):
        job.start(str(WORKER))
    assert [agent.wait() for agent in job.agents] == [0, 0]
    assert [agent.stderr for agent in job.agents] == ["", ""]
    for agent in job.agents:
        found = re.search(r"end rank=\d world=2 restart=0 loss=(.+)->(.+)", agent.stdout)
        assert found is not None
        assert float(found[2]) < float(found[1]) / 100


def test_agents_join_and_leave(new_job: NewJob) -> None:
    job = new_job("1:3")
    first = job.start()
    job.until_world(1, [first])
    second = job.start()
    job.until_world(2, [first, second])
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() != 0
    job.until_world(1, [first], again=True)
    job.stop()
    assert first.wait() == 0


def program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None
    return found


def test_permanent_failure_ends_all_agents(new_job: NewJob) -> None:
    job = new_job("2")
    bad = job.start("--no-python", "--max-restarts", "0", program("false"))
    good = job.start("--no-python", program("sleep"), "100")
    assert bad.wait() == 1
    until(lambda: good.process.poll() is not None, "the other ends too")
    assert "its workers failed" in good.stderr


def test_handler_is_registered_once() -> None:
    tensorplay.register()
    tensorplay.register()
    registry._register_out_of_tree_handlers(get_registry())  # what a later release may call


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_tensorplay_code_runs_with_our_imports() -> None:
    theirs = USAGE.read_text()
    ours = theirs.replace("tensorplay.distributed.elastic.rendezvous", "rallypoint.rendezvous")
    ours = ours.replace("from tensorplay.distributed import", "from rallypoint import")
    assert "tensorplay" not in ours.split('"""', 2)[2]
    for script in (theirs, ours):
        assert run(script).endswith("all used\n")


def our_store() -> dist.Store:
    return RoundStore(make_round(KEYS)[0])


@pytest.mark.parametrize("make", [our_store, dist.HashStore], ids=["ours", "theirs"])
def test_store_behaves_like_tensorplays_stores(make: Callable[[], dist.Store]) -> None:
    store = make()
    store.set("key", "value")
    assert store.get("key") == store.get("key", timeout=1) == b"value"
    assert [store.add("count", 2), store.add("count", 3)] == [2, 5]
    assert store.compare_set("key", "value", "other") == b"other"
    assert store.compare_set("key", "value", "third") == b"other"
    assert store.compare_and_swap("new", b"", b"1") == (True, b"")
    assert store.compare_and_swap("new", b"1", b"2") == (True, b"1")
    assert store.compare_and_swap("key", b"nothing", b"1") == (False, b"other")
    assert (store.has("key"), store.has("none")) == (True, False)
    assert store.wait(["key", "count"], timeout=1) in (True, None)
    store.delete_key("key")
    assert not store.has("key")


def test_expired_wait_raises_the_launchers_timeout_error() -> None:
    store = our_store()
    with pytest.raises(dist.StoreTimeoutError):
        store.get("none", timeout=0.1)
    with pytest.raises(dist.StoreTimeoutError):
        store.wait(["none"], timeout=0.1)
