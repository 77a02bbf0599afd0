"""Real launcher processes for the tests: started, read, signalled, and ended in any case."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from rallypoint.net.addresses import free_port

TORCHRUN = "torch.distributed.run"
HERE = Path(__file__).parent
LIMIT_SECONDS = 60.0  # for what takes a second or two on a machine with nothing else to do


def until(condition: Callable[[], bool], what: str, limit: float = LIMIT_SECONDS) -> float:
    """Wait until `condition` holds; return how long it took."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < limit, f"not within {limit:g} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


class Agent:
    """One launcher process; its output and its workers' are in files."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        folder.mkdir()
        self.stdout_file, self.stderr_file = folder / "stdout", folder / "stderr"
        with self.stdout_file.open("wb") as out, self.stderr_file.open("wb") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, env=env, start_new_session=True
            )

    @property
    def stdout(self) -> str:
        return self.stdout_file.read_text()

    @property
    def stderr(self) -> str:
        return self.stderr_file.read_text()

    def worlds(self) -> list[int]:
        """Return the world size at each start of its worker."""
        starts = [line for line in self.stdout.splitlines() if line.startswith("start")]
        return [int(line.split("world=")[1].split()[0]) for line in starts]

    def wait(self, limit: float = LIMIT_SECONDS) -> int:
        return self.process.wait(limit)

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def freeze(self) -> None:
        """Take the node away as a power cut does: nobody closes its workers' connections."""
        # The server, which one of the agents started, is another machine's for this purpose.
        workers = [child for child in self.workers() if "serve" not in child.cmdline()]
        for worker in workers:
            worker.send_signal(signal.SIGSTOP)
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)
        self.frozen = workers

    def end(self) -> None:
        """End it and all that it started, whatever their state."""
        left: list[psutil.Process] = list(getattr(self, "frozen", []))
        with suppress(psutil.NoSuchProcess):
            left += self.workers()
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)
        for worker in left:
            with suppress(psutil.NoSuchProcess):
                worker.kill()


class Job:
    """Several agents of one run.

    Args:
        folder: for their output and the file that ends the workers.
        nnodes: as torchrun's.
        backend: as torchrun's.
        conf: as torchrun's --rdzv-conf.
        options: more options of torchrun.
        launcher: the module that is run; its options are torchrun's.
        worker: the workers' script.
    """

    def __init__(
        self,
        folder: Path,
        nnodes: str,
        backend: str = "rallypoint",
        conf: str = "last_call=0.5",
        options: tuple[str, ...] = (),
        launcher: str = TORCHRUN,
        worker: Path = HERE / "torchrun" / "worker.py",
    ) -> None:
        self.folder = folder
        self.stop_file = folder / f"stop-{backend}"
        self.port = free_port("127.0.0.1")
        self.agents: list[Agent] = []
        self._options = [
            *("--nnodes", nnodes, "--nproc-per-node", "1", "--rdzv-id", f"job-{self.port}"),
            *("--rdzv-backend", backend, "--rdzv-endpoint", f"127.0.0.1:{self.port}"),
            *("--rdzv-conf", conf, *options),
        ]
        self._backend, self._launcher, self._worker = backend, launcher, worker

    def start(self, *command: str, **env: str) -> Agent:
        """Start one more agent; the worker is the job's where no command is given."""
        run = [sys.executable, "-m", self._launcher, *self._options]
        run += command or (str(self._worker), str(self.stop_file))
        folder = self.folder / f"{self._backend}-{len(self.agents)}"
        agent = Agent(run, folder, {**os.environ, "OMP_NUM_THREADS": "1", **env})
        self.agents.append(agent)
        return agent

    def until_world(self, size: int, agents: list[Agent], again: bool = False) -> float:
        """Wait until the newest worker of each agent works in a world of that size."""
        before = [len(agent.worlds()) if again else 0 for agent in agents]

        def there() -> bool:
            found = [agent.worlds() for agent in agents]
            return all(
                len(worlds) > count and worlds[-1] == size
                for worlds, count in zip(found, before, strict=True)
            )

        try:
            return until(there, f"a world of {size}")
        except AssertionError as error:
            texts = [f"{a.stdout}\n{a.stderr}" for a in self.agents]
            raise AssertionError(f"{error}\n" + "\n----\n".join(texts)) from None

    def stop(self) -> None:
        """Let the workers come to their end."""
        self.stop_file.touch()

    def end(self) -> None:
        for agent in self.agents:
            agent.end()
