"""Starts the worker processes of a round, waits for their exits, and stops them.

Each worker leads its own session and process group, with /dev/null as its stdin. One thread per
worker blocks until it exits. Where `os.waitid` exists, an exited worker stays a zombie until its
group has been killed, so that its process id, which is also the group's, is not reused meanwhile.

To stop them: SIGTERM to each group (as torchrun does, so that a wrapping shell does not shield
the program), a grace, then SIGKILL to all descendants (`process_tree`). A process that survives
SIGKILL (state D) is reported by its process id, and nothing waits for it.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from rallypoint.agent.output import WorkerOutput
from rallypoint.agent.workers import process_tree
from rallypoint.deadline import Deadline
from rallypoint.errors import ParameterError

KILL_WAIT_SECONDS = 5.0
LAST_LINES_WAIT_SECONDS = 0.5


class WorkerSpec(msgspec.Struct, frozen=True):
    """A worker to start: its rank on the node, its command and its whole environment."""

    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]


class WorkerExit(msgspec.Struct, frozen=True):
    """A worker's exit: `exit_code`, or None and the `signal`; the last `lines` of its stderr."""

    local_rank: int
    exit_code: int | None
    signal: str
    lines: tuple[str, ...]


def _exit_of(returncode: int) -> tuple[int | None, str]:
    """Return (exit code, "") or (None, signal name) of a Popen return code."""
    if returncode >= 0:
        return returncode, ""
    try:
        return None, signal.Signals(-returncode).name
    except ValueError:
        return None, f"signal {-returncode}"  # real-time signals have no name


class WorkerProcess:
    """One running worker process."""

    def __init__(self, spec: WorkerSpec, output: WorkerOutput) -> None:
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
        self.started_at = process_tree.started_at(self.pid)

    def wait(self) -> int:
        """Wait until it exits; return its code as Popen does (a signal is negative)."""
        if hasattr(os, "waitid"):
            seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            if seen is not None:  # only WNOHANG gives None
                return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
        return self._process.wait()

    def send(self, signum: int) -> None:
        """Send a signal to its whole group, if that exists."""
        if self._reaped:
            return  # its process id may be reused
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)  # macOS answers EPERM for a group of zombies

    def send_alone(self, signum: int) -> None:
        """Send a signal to the worker, but not to its children."""
        if not self._reaped and not self.exited.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signum)

    def reap(self) -> None:
        """Give the process id back to the system; only after its group was ended."""
        if self.exited.is_set():
            self._reaped = True
            self._process.wait()


class WorkerProcesses:
    """The workers of one round on this node.

    Args:
        on_exit: called once for each worker that exits, in that worker's thread.
        on_failure: gets an exception of a background thread.
        before_reap: gets the process ids that may be reused from now on.
        mark: in the environment of all workers (`process_tree.MARK`).
    """

    def __init__(
        self,
        on_exit: Callable[[WorkerExit], None],
        on_failure: Callable[[BaseException], None],
        before_reap: Callable[[tuple[int, ...]], None] = lambda _pids: None,
        mark: str = "",
    ) -> None:
        self._on_exit = on_exit
        self._on_failure = on_failure
        self._before_reap = before_reap
        self._workers: list[WorkerProcess] = []
        self._changed = threading.Condition()
        self._mark = mark
        self._grace: Deadline | None = None

    @property
    def roots(self) -> process_tree.Roots:
        """Process ids and start times of all workers that were started."""
        return {worker.pid: worker.started_at for worker in self._workers}

    def start(self, specs: Sequence[WorkerSpec], outputs: Sequence[WorkerOutput]) -> None:
        """Start all workers. Raises ParameterError; those already started then still run."""
        for spec, output in zip(specs, outputs, strict=True):
            worker = WorkerProcess(spec, output)
            self._workers.append(worker)
            self._thread(f"wait-{spec.local_rank}", partial(self._watch, worker))

    def stop(self, grace_seconds: float, on_stopped: Callable[[tuple[int, ...]], None]) -> None:
        """Begin to stop all workers; `on_stopped` gets the pids that could not be ended.

        A second call can only shorten the grace.
        """
        with self._changed:
            first = self._grace is None
            if self._grace is None or grace_seconds < self._grace.remaining():
                self._grace = Deadline(grace_seconds)
            self._changed.notify_all()
        if first:
            self._thread("stop", lambda: on_stopped(self._end()))

    def kill(self) -> tuple[int, ...]:
        """Kill all workers now; return the pids that could not be ended."""
        with self._changed:
            self._grace = Deadline(0.0)
            self._changed.notify_all()
        return self._end()

    def send(self, signum: int) -> None:
        """Send a signal to each worker, but not to its children."""
        for worker in self._workers:
            worker.send_alone(signum)

    def alive(self) -> set[int]:
        """Return the local ranks of the workers that have not exited."""
        return {worker.spec.local_rank for worker in self._alive()}

    def pid_of(self, local_rank: int) -> int | None:
        """Return a worker's process id, None once it has exited."""
        pids = {worker.spec.local_rank: worker.pid for worker in self._alive()}
        return pids.get(local_rank)

    def lines_after_signal(
        self, local_rank: int, signum: int, limit_seconds: float
    ) -> tuple[str, ...]:
        """Send a worker a signal; return the lines that it then writes to stderr."""
        for worker in self._alive():
            if worker.spec.local_rank == local_rank:
                send = partial(worker.send_alone, signum)
                return worker.output.stderr.lines_after(send, limit_seconds)
        return ()

    def _thread(self, name: str, body: Callable[[], None]) -> None:
        def run() -> None:
            try:
                body()
            except BaseException as error:  # handed on, never swallowed
                self._on_failure(error)

        threading.Thread(target=run, name=f"rallypoint-{name}", daemon=True).start()

    def _watch(self, worker: WorkerProcess) -> None:
        code, name = _exit_of(worker.wait())
        lines = worker.output.stderr.last_lines(LAST_LINES_WAIT_SECONDS)
        try:
            self._on_exit(WorkerExit(worker.spec.local_rank, code, name, lines))
        finally:
            with self._changed:
                worker.exited.set()
                self._changed.notify_all()

    def _alive(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if not worker.exited.is_set()]

    def _end(self) -> tuple[int, ...]:
        before = process_tree.family(self._mark, self.roots)  # a parent that exits leaves orphans
        for worker in self._workers:
            worker.send(signal.SIGTERM)
        with self._changed:
            while self._alive() and self._grace is not None and not self._grace.expired():
                self._changed.wait(self._grace.remaining())
        family = {**process_tree.roots_of(before), **self.roots}
        survivors = {
            process.pid for process in process_tree.end(self._mark, family, KILL_WAIT_SECONDS)
        }
        with self._changed:  # the waiting threads learn of the last exits in a moment
            self._changed.wait_for(lambda: self._alive_pids() <= survivors, KILL_WAIT_SECONDS)
        self._before_reap(tuple(self.roots))
        for worker in self._workers:
            worker.reap()
            worker.output.close()
        return tuple(sorted(survivors | self._alive_pids()))

    def _alive_pids(self) -> set[int]:
        return {worker.pid for worker in self._alive()}
