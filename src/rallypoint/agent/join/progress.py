"""What the user sees during a join.

On a terminal one live line, updated every second; elsewhere a new line at growing intervals.
The coordinator is asked every few seconds at most; in between, times are counted locally.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from itertools import repeat

from rallypoint.agent.reporting import console
from rallypoint.agent.reporting.messages import AT_WORK, waiting_line
from rallypoint.deadline import Clock
from rallypoint.rendezvous.coordinator import Report

INTERVALS_SECONDS = (2.0, 5.0, 10.0, 30.0)
LIVE_SECONDS = 1.0
ASK_SECONDS = 5.0
EXAMINE_SECONDS = 10.0
SPARE = "this node is a spare: it joins when a node leaves"
LAST_SECONDS = 1.0  # before the join times out; no line is shown then


def _intervals(live: bool) -> Iterator[float]:
    if live:
        yield from repeat(LIVE_SECONDS)
    yield from INTERVALS_SECONDS
    yield from repeat(INTERVALS_SECONDS[-1])


class JoinProgress:
    """Shows the progress of one join.

    Args:
        ask: returns the run's report, None if unknown; if it raises, it is called again later.
        join_seconds: after which the join times out.
        say: prints a line.
        show: on a terminal, replaces the live line; None without a terminal.
        is_spare: whether this node is a spare.
        examine: called once after `EXAMINE_SECONDS`; returns what keeps the nodes apart, "" for
            nothing.
        clock: monotonic clock.
    """

    def __init__(
        self,
        ask: Callable[[], Report | None],
        join_seconds: float,
        say: Callable[[str], None] = console.say,
        show: Callable[[str], None] | None = None,
        examine: Callable[[], str] | None = None,
        is_spare: Callable[[], bool] = lambda: False,
        clock: Clock = time.monotonic,
    ) -> None:
        self._ask = ask
        self._say = say
        self._show = show
        self._examine = examine
        self._is_spare = is_spare
        self._clock = clock
        self._over = threading.Event()
        self._showing = threading.Lock()
        self._join_seconds = join_seconds
        self._ends = clock() + join_seconds
        self._report: Report | None = None
        self._error = ""
        self._asked = float("-inf")

    def start(self) -> None:
        """Begin; the first line comes after a second or two."""
        threading.Thread(target=self._run, name="rallypoint-progress", daemon=True).start()
        if self._examine is not None:
            body, name = self._examine_once, "rallypoint-doctor"
            threading.Thread(target=body, args=[self._examine], name=name, daemon=True).start()

    def stop(self) -> None:
        """End; no line is printed after this."""
        self._over.set()
        if self._show is not None:
            with self._showing:
                self._show("")

    def line(self) -> str:
        """Return the line to show now, "" for none."""
        now = self._clock()
        if self._show is None or now - self._asked >= ASK_SECONDS:
            self._asked = now
            try:
                self._report, self._error = self._ask(), ""
            except Exception as error:  # shown; if it lasts, the join itself fails
                self._error = f"cannot ask the coordinator about the run: {error}"
        if self._error or self._report is None:
            return self._error
        now = self._clock()
        if self._report.phase == AT_WORK:  # the join timeout begins anew when the round is over
            self._ends = now + self._join_seconds
            if self._is_spare():
                return f"{self._report.reason}; {SPARE}"
        if self._ends - now < LAST_SECONDS:  # the join's error says more, and may be newer
            return ""
        return waiting_line(self._report, now - self._asked, self._ends - now)

    def _run(self) -> None:
        for interval in _intervals(self._show is not None):
            if self._over.wait(interval):
                return
            line = self.line()
            with self._showing:
                if line and not self._over.is_set():
                    (self._show or self._say)(line)

    def _examine_once(self, examine: Callable[[], str]) -> None:
        if self._over.wait(EXAMINE_SECONDS):
            return
        try:
            line = examine()
        except Exception as error:  # shown; the join goes on without it
            line = f"the doctor failed: {error!r}"
        if line and not self._over.is_set():
            self._say(line)


def live_line(text: str) -> None:
    """Replace the terminal's live line; "" removes it."""
    room = shutil.get_terminal_size().columns - 1
    named = f"rallypoint: {text}"
    console.replace_live_line((named if len(named) <= room else text)[:room] if text else "")
