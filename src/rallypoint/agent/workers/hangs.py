"""Workers that live and stand still: noticed by their steps, shown with their stacks.

A worker that has told a step (`rallypoint.worker.step` or `beat`) and tells no other for
`--hang-timeout` hangs; one that never tells any is not watched. The agent looks at the
shared memory a few times within the limit, by its own monotonic clock. If the agent itself
did not run for a while (stopped, a machine that slept), the workers are given that time too.
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
from rallypoint.agent.workers.processes import WorkerGroup
from rallypoint.deadline import Clock
from rallypoint.wallclock import now_text
from rallypoint.worker.progress import PULSE_FILE, STACK_SIGNAL, PulseReader

LOOKS = 8  # within the limit
SHORTEST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.02, 5.0
STACK_SECONDS = 2.0
PY_SPY_SECONDS = 10.0
SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 7 * hasattr(signal, "SIGRTMIN")


class Stillness:
    """Judges, look by look, which worker stands still.

    Args:
        seconds: without a move after which a worker hangs.
        now: monotonic seconds at the start.
    """

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._looked = now
        self._moved: dict[int, tuple[int, float]] = {}

    @property
    def interval_seconds(self) -> float:
        """Time between looks."""
        return min(LONGEST_LOOK_SECONDS, max(SHORTEST_LOOK_SECONDS, self._seconds / LOOKS))

    def look(self, moves: dict[int, int], now: float) -> dict[int, float]:
        """Return who hangs, and since how many seconds.

        Args:
            moves: how often each worker has moved so far; 0 is not watched.
            now: monotonic seconds.
        """
        late = now - self._looked - self.interval_seconds
        self._looked = now
        for rank, count in moves.items():
            before, since = self._moved.get(rank, (0, now))
            if count != before:
                since = now
            elif late > self.interval_seconds:
                since += late  # nobody watched, and who knows whether anybody could move
            self._moved[rank] = count, since
        return {
            rank: now - since
            for rank, (count, since) in self._moved.items()
            if count and now - since >= self._seconds
        }


class HangWatch:
    """Watches the workers of one round.

    Args:
        round_number: of that round.
        seconds: as in `Stillness`; 0: nothing is watched.
        put: takes a worker that hangs, once for each.
        on_failure: takes an exception of the watching thread.
        clock: monotonic clock.
    """

    def __init__(
        self,
        round_number: int,
        seconds: float,
        put: Callable[[events.Event], None],
        on_failure: Callable[[BaseException], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self._round = round_number
        self._seconds = seconds
        self._put = put
        self._on_failure = on_failure
        self._clock = clock
        self._over = threading.Event()
        self._folder = tempfile.mkdtemp(prefix="rallypoint-pulse-") if seconds else ""
        self._pulses: dict[int, PulseReader] = {}

    def environment(self, local_rank: int) -> dict[str, str]:
        """Return what a worker needs in its environment, and make its pulse."""
        if not self._seconds:
            return {}
        path = Path(self._folder) / str(local_rank)
        self._pulses[local_rank] = PulseReader(path)
        return {PULSE_FILE: str(path), STACK_SIGNAL: str(int(SIGNAL))}

    def begin(self, group: WorkerGroup) -> None:
        """Watch; the group has been started."""
        if self._seconds:
            body = threading.Thread(
                target=self._run, args=[group], name="rallypoint-hangs", daemon=True
            )
            body.start()

    def end(self) -> None:
        """Stop watching."""
        self._over.set()

    def _run(self, group: WorkerGroup) -> None:
        try:
            self._watch(group)
        except BaseException as error:  # handed on, never swallowed
            self._on_failure(error)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            for pulse in self._pulses.values():
                pulse.close()

    def _watch(self, group: WorkerGroup) -> None:
        stillness = Stillness(self._seconds, self._clock())
        watched = dict(self._pulses)
        while watched and not self._over.wait(stillness.interval_seconds):
            alive = group.alive()
            readings = {r: p.read() for r, p in watched.items() if r in alive}
            hung = stillness.look({r: moves for r, (moves, _) in readings.items()}, self._clock())
            for rank, still in hung.items():
                if rank in watched and rank in readings:
                    del watched[rank]
                    stack = stack_of(group, rank)
                    said = (readings[rank][1], still, now_text(), stack)
                    self._put(events.WorkerHung(self._round, rank, *said))


def stack_of(group: WorkerGroup, local_rank: int) -> tuple[str, ...]:
    """Return where a worker stands, as it says itself, else as py-spy sees it."""
    lines = group.asked(local_rank, int(SIGNAL), STACK_SECONDS)
    if lines:
        return lines
    program, pid = shutil.which("py-spy"), group.pid_of(local_rank)
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
    return ("(no stack: it did not answer, and py-spy is not installed or may not look)",)
