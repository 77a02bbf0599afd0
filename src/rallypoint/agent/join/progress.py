"""What the user sees while a join lasts.

On a terminal one line that changes every second; elsewhere a line at growing intervals. The
coordinator is asked every few seconds at most, and the time between is counted here.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from itertools import repeat

from rallypoint.agent.reporting import report
from rallypoint.agent.reporting.messages import waiting_line
from rallypoint.deadline import Clock
from rallypoint.rendezvous.coordinator import Report

INTERVALS_SECONDS = (2.0, 5.0, 10.0, 30.0)
LIVE_SECONDS = 1.0
ASK_SECONDS = 5.0
EXAMINE_SECONDS = 10.0


def _intervals(live: bool) -> Iterator[float]:
    if live:
        yield from repeat(LIVE_SECONDS)
    yield from INTERVALS_SECONDS
    yield from repeat(INTERVALS_SECONDS[-1])


class Waiting:
    """The lines of one join.

    Args:
        ask: returns what the run is doing, None if that cannot be known; may raise, and is
            then asked again later.
        join_seconds: how long the join may take.
        tell: prints a line that stays.
        show: on a terminal, replaces the line that changes; None: there is no terminal.
        examine: looks once, after `EXAMINE_SECONDS`, for what keeps the nodes apart; returns
            what it found, "" for nothing.
        clock: monotonic clock.
    """

    def __init__(
        self,
        ask: Callable[[], Report | None],
        join_seconds: float,
        tell: Callable[[str], None] = report.say,
        show: Callable[[str], None] | None = None,
        examine: Callable[[], str] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._show = show
        self._examine = examine
        self._clock = clock
        self._over = threading.Event()
        self._showing = threading.Lock()
        self._ends = clock() + join_seconds
        self._report: Report | None = None
        self._trouble = ""
        self._asked = float("-inf")

    def start(self) -> None:
        """Begin; the first line comes after a second or two."""
        threading.Thread(target=self._run, name="rallypoint-waiting", daemon=True).start()
        if self._examine is not None:
            body, name = self._look_once, "rallypoint-doctor"
            threading.Thread(target=body, args=[self._examine], name=name, daemon=True).start()

    def stop(self) -> None:
        """End; no line is begun after this."""
        self._over.set()
        if self._show is not None:
            with self._showing:
                self._show("")

    def line(self) -> str:
        """Return what is to be shown now, "" for nothing."""
        now = self._clock()
        if self._show is None or now - self._asked >= ASK_SECONDS:
            self._asked = now
            try:
                self._report, self._trouble = self._ask(), ""
            except Exception as error:  # shown: waiting goes on, the join itself will fail
                self._trouble = f"cannot ask what is being waited for: {error}"
        if self._trouble or self._report is None:
            return self._trouble
        now = self._clock()
        return waiting_line(self._report, now - self._asked, self._ends - now)

    def _run(self) -> None:
        for interval in _intervals(self._show is not None):
            if self._over.wait(interval):
                return
            line = self.line()
            with self._showing:
                if line and not self._over.is_set():
                    (self._show or self._tell)(line)

    def _look_once(self, examine: Callable[[], str]) -> None:
        if self._over.wait(EXAMINE_SECONDS):
            return
        try:
            line = examine()
        except Exception as error:  # shown: it was only a look
            line = f"the doctor failed: {error!r}"
        if line and not self._over.is_set():
            self._tell(line)


def live_line(text: str) -> None:
    """Replace the changing line of the terminal; "" takes it away."""
    room = shutil.get_terminal_size().columns - 1
    named = f"rallypoint: {text}"
    report.replace_live_line((named if len(named) <= room else text)[:room] if text else "")
