"""Detects hung workers by their reported progress, and reads their stacks.

A worker that has reported progress (`rallypoint.worker.step` or `beat`), and then reports none
for `--hang-timeout`, counts as hung; one that never reports any is not watched. The agent reads
the shared memory several times within the limit, by its own monotonic clock. If the agent
itself did not run for a while (stopped, or the machine slept), that time does not count.
"""

import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rallypoint.agent.policy import events
from rallypoint.agent.workers.processes import WorkerProcesses
from rallypoint.deadline import Clock
from rallypoint.wallclock import now_text
from rallypoint.worker.progress import PROGRESS_FILE, STACK_SIGNAL, ProgressReader

CHECKS = 8  # within the limit
SHORTEST_INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS = 0.02, 5.0
STACK_SECONDS = 2.0
PY_SPY_SECONDS = 10.0
SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 7 * hasattr(signal, "SIGRTMIN")


class StallDetector:
    """Decides which workers are hung.

    Args:
        limit_seconds: without progress, after which a worker counts as hung.
        now: monotonic seconds at the start.
    """

    def __init__(self, limit_seconds: float, now: float) -> None:
        self._limit_seconds = limit_seconds
        self._checked = now
        self._last: dict[int, tuple[int, float]] = {}

    @property
    def interval_seconds(self) -> float:
        """Time between checks."""
        return min(
            LONGEST_INTERVAL_SECONDS, max(SHORTEST_INTERVAL_SECONDS, self._limit_seconds / CHECKS)
        )

    def check(self, counts: dict[int, int], now: float) -> dict[int, float]:
        """Return the hung workers: local rank -> seconds without progress.

        Args:
            counts: each worker's progress counter; 0 is not watched.
            now: monotonic seconds.
        """
        late = now - self._checked - self.interval_seconds
        self._checked = now
        for rank, count in counts.items():
            before, since = self._last.get(rank, (0, now))
            if count != before:
                since = now
            elif late > self.interval_seconds:
                since += late  # the agent did not run, and perhaps the workers neither
            self._last[rank] = count, since
        return {
            rank: now - since
            for rank, (count, since) in self._last.items()
            if count and now - since >= self._limit_seconds
        }


class HangWatcher:
    """Watches the workers of one round.

    Args:
        round_number: of that round.
        limit_seconds: as in `StallDetector`; 0: nothing is watched.
        put: gets a `WorkerHung` event, once for each hung worker.
        on_failure: gets an exception of the watching thread.
        clock: monotonic clock.
    """

    def __init__(
        self,
        round_number: int,
        limit_seconds: float,
        put: Callable[[events.Event], None],
        on_failure: Callable[[BaseException], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self._round = round_number
        self._limit_seconds = limit_seconds
        self._put = put
        self._on_failure = on_failure
        self._clock = clock
        self._over = threading.Event()
        self._folder = tempfile.mkdtemp(prefix="rallypoint-progress-") if limit_seconds else ""
        self._readers: dict[int, ProgressReader] = {}

    def environment(self, local_rank: int) -> dict[str, str]:
        """Make a worker's shared memory; return the environment variables that name it."""
        if not self._limit_seconds:
            return {}
        path = Path(self._folder) / str(local_rank)
        self._readers[local_rank] = ProgressReader(path)
        return {PROGRESS_FILE: str(path), STACK_SIGNAL: str(int(SIGNAL))}

    def begin(self, processes: WorkerProcesses) -> None:
        """Watch the processes, which have been started."""
        if self._limit_seconds:
            body = threading.Thread(
                target=self._run, args=[processes], name="rallypoint-hangs", daemon=True
            )
            body.start()

    def end(self) -> None:
        """Stop watching."""
        self._over.set()

    def _run(self, processes: WorkerProcesses) -> None:
        try:
            self._watch(processes)
        except BaseException as error:  # handed on, never swallowed
            self._on_failure(error)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            for progress in self._readers.values():
                progress.close()

    def _watch(self, processes: WorkerProcesses) -> None:
        detector = StallDetector(self._limit_seconds, self._clock())
        watched = dict(self._readers)
        while watched and not self._over.wait(detector.interval_seconds):
            alive = processes.alive()
            readings = {r: p.read() for r, p in watched.items() if r in alive}
            hung = detector.check({r: count for r, (count, _) in readings.items()}, self._clock())
            for rank, still in hung.items():
                if rank in watched and rank in readings:
                    del watched[rank]
                    step = readings[rank][1]
                    stack = stack_of(processes, rank)
                    self._put(events.WorkerHung(self._round, rank, step, still, now_text(), stack))


def stack_of(processes: WorkerProcesses, local_rank: int) -> tuple[str, ...]:
    """Return a worker's stack: as its faulthandler prints it, else as py-spy reads it."""
    lines = processes.lines_after_signal(local_rank, int(SIGNAL), STACK_SECONDS)
    if lines:
        return lines
    program, pid = shutil.which("py-spy"), processes.pid_of(local_rank)
    if program is not None and pid is not None:
        try:
            seen = subprocess.run(
                [program, "dump", "--pid", str(pid)],
                capture_output=True,
                text=True,
                timeout=PY_SPY_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return (f"(no stack: {error})",)
        if seen.returncode == 0:
            return tuple(seen.stdout.splitlines())
    return ("(no stack: it did not print one, and py-spy is not installed or not permitted)",)
