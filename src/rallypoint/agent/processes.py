"""Workers as processes: started, watched without polling, and ended with all their children.

Each worker leads its own session and process group, with /dev/null as its stdin. A waiter
thread a worker sleeps in the kernel until it exits. Where the system can (`os.waitid`), an
exited worker is left unreaped until its group has been ended: its process id, which is also
the group's, cannot be given to a stranger in the meantime.

Ending them: SIGTERM to each group (as torchrun does, so that a shell that started the real
program does not hold it up), a grace, then SIGKILL to the group and to every descendant that
left it (found by psutil while the parent still lives). What outlives a SIGKILL (state D) is
reported by its process id and holds nobody up.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import psutil

from rallypoint.agent.output import WorkerOutput
from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError

KILL_WAIT_SECONDS = 5.0
LAST_LINES_WAIT_SECONDS = 0.5


class Spec(msgspec.Struct, frozen=True):
    """One worker to start: its rank on the node, its command and its whole environment."""

    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]


class Ended(msgspec.Struct, frozen=True):
    """How a worker ended: `exit_code`, or None and the `signal`; `lines` of its stderr."""

    local_rank: int
    exit_code: int | None
    signal: str
    lines: tuple[str, ...]


def _how(returncode: int) -> tuple[int | None, str]:
    """Return (exit code, "") or (None, signal name) of a Popen return code."""
    if returncode >= 0:
        return returncode, ""
    try:
        return None, signal.Signals(-returncode).name
    except ValueError:
        return None, f"signal {-returncode}"  # real-time signals have no name


class Worker:
    """One running worker process."""

    def __init__(self, spec: Spec, output: WorkerOutput) -> None:
        """Start it. Raises ParameterError when its command cannot be run."""
        self.spec = spec
        self.output = output
        self.exited = threading.Event()
        self._reaped = False
        streams = output.open()
        try:
            self._process = subprocess.Popen(
                spec.argv,
                env=dict(spec.env),
                stdin=subprocess.DEVNULL,
                stdout=streams.stdout,
                stderr=streams.stderr,
                start_new_session=True,
            )
        except OSError as error:
            output.abandon()
            raise ParameterError(
                f"cannot start {spec.argv[0]!r}: {error.strerror}; "
                "check that it is there, in PATH, and executable"
            ) from error
        output.begin()
        self.pid = self._process.pid

    def wait(self) -> int:
        """Wait for its exit; return the code as Popen gives it (a signal as a negative)."""
        if hasattr(os, "waitid"):
            seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            if seen is not None:  # only WNOHANG gives None
                return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
        return self._process.wait()

    def send(self, signum: int) -> None:
        """Send a signal to its whole group; nothing happens if that is gone."""
        if self._reaped:
            return  # its id may be another's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)  # macOS answers EPERM for a group of zombies

    def descendants(self) -> list[psutil.Process]:
        """Return its children and theirs, as far as they can be seen now."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.Error:
            return []

    def reap(self) -> None:
        """Give the process id back to the system; only after its group was ended."""
        if self.exited.is_set():
            self._reaped = True
            self._process.wait()


class WorkerGroup:
    """The workers of one round on this node.

    Args:
        on_exit: called once for each worker that exits, from a thread of its own.
        on_failure: called with an exception of a background thread.
        before_reap: called with the process ids that are about to be given back.
    """

    def __init__(
        self,
        on_exit: Callable[[Ended], None],
        on_failure: Callable[[BaseException], None],
        before_reap: Callable[[tuple[int, ...]], None] = lambda _pids: None,
    ) -> None:
        self._on_exit = on_exit
        self._on_failure = on_failure
        self._before_reap = before_reap
        self._workers: list[Worker] = []
        self._changed = threading.Condition()
        self._grace: Deadline | None = None
        self._strays: dict[int, psutil.Process] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of all workers that were started, which are also their groups' ids."""
        return tuple(worker.pid for worker in self._workers)

    def start(self, specs: Sequence[Spec], outputs: Sequence[WorkerOutput]) -> None:
        """Start all workers. Raises ParameterError; those already started then still run."""
        for spec, output in zip(specs, outputs, strict=True):
            worker = Worker(spec, output)
            self._workers.append(worker)
            self._thread(f"wait-{spec.local_rank}", partial(self._watch, worker))

    def stop(self, grace_seconds: float, on_stopped: Callable[[tuple[int, ...]], None]) -> None:
        """Begin to end all workers; `on_stopped` is told the pids that could not be ended.

        A second call only shortens the grace.
        """
        with self._changed:
            first = self._grace is None
            if self._grace is None or grace_seconds < self._grace.remaining():
                self._grace = Deadline(grace_seconds)
            self._changed.notify_all()
        if first:
            self._thread("stop", lambda: on_stopped(self._end()))

    def kill(self) -> tuple[int, ...]:
        """End all workers now, without grace; return the pids that could not be ended."""
        with self._changed:
            self._grace = Deadline(0.0)
            self._changed.notify_all()
        return self._end()

    def _thread(self, name: str, body: Callable[[], None]) -> None:
        def run() -> None:
            try:
                body()
            except BaseException as error:  # handed on, never swallowed
                self._on_failure(error)

        threading.Thread(target=run, name=f"rallypoint-{name}", daemon=True).start()

    def _watch(self, worker: Worker) -> None:
        code, name = _how(worker.wait())
        lines = worker.output.last_lines(LAST_LINES_WAIT_SECONDS)
        try:
            self._on_exit(Ended(worker.spec.local_rank, code, name, lines))
        finally:
            with self._changed:
                worker.exited.set()
                self._changed.notify_all()

    def _alive(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.exited.is_set()]

    def _end(self) -> tuple[int, ...]:
        self._find_strays()
        for worker in self._workers:
            worker.send(signal.SIGTERM)
        with self._changed:
            while self._alive() and self._grace is not None and not self._grace.expired():
                self._changed.wait(self._grace.remaining())
        self._find_strays()
        for worker in self._workers:
            worker.send(signal.SIGKILL)
        for stray in self._strays.values():
            with contextlib.suppress(psutil.Error):
                stray.kill()  # psutil compares the start time: a reused pid is not touched
        limit = Deadline(KILL_WAIT_SECONDS)
        with self._changed:
            while self._alive() and not limit.expired():
                self._changed.wait(limit.remaining())
        psutil.wait_procs(list(self._strays.values()), timeout=limit.remaining())
        self._before_reap(self.pids)
        for worker in self._workers:
            worker.reap()
            worker.output.close()
        stray_pids = (stray.pid for stray in self._strays.values() if stray.is_running())
        return (*(worker.pid for worker in self._alive()), *stray_pids)

    def _find_strays(self) -> None:
        for worker in self._workers:
            for process in worker.descendants():
                self._strays.setdefault(process.pid, process)


def now_text() -> str:
    """Return the local time of day and date, for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S")
