"""The agent's words: the failure report at the end, and one line at a time while waiting.

What goes wrong is said on stderr; what goes on is said on stdout, so that a normal run
leaves stderr to its workers (D4).
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

from rallypoint.agent.events import Exit
from rallypoint.agent.policy import EXIT_DONE, EXIT_SIGNAL_BASE
from rallypoint.rendezvous.core.state import Failure

WAIT_INTERVALS_SECONDS = (2.0, 5.0, 10.0, 30.0)
EXAMINE_SECONDS = 10.0
LATER_FAILURES_SHOWN = 8


def say(text: str) -> None:
    """Print one line about what goes on."""
    print(f"rallypoint: {text}", flush=True)


def complain(text: str) -> None:
    """Print one line about what went wrong."""
    print(f"rallypoint: {text}", file=sys.stderr, flush=True)


def final_report(end: Exit, own: Sequence[Failure] = ()) -> str:
    """Return the text that ends a run that failed, "" when there is nothing to say.

    The first failure is named with its last lines; the later ones are its consequences.

    Args:
        end: how the agent ends.
        own: failures of this node's workers, for when the coordinator has told of none.
    """
    if end.code == EXIT_DONE or end.code >= EXIT_SIGNAL_BASE:
        return ""
    failures = end.failures or tuple(own)
    lines = [end.text] if end.text else []
    if failures:
        first, *later = failures
        lines += ["", f"first failure: {_in_round(first)}", *_quoted(first.message)]
        lines += _consequences(later)
    return "\n".join(lines).strip("\n")


def _in_round(failure: Failure) -> str:
    return f"{failure.label}, in round {failure.round}" if failure.round else failure.label


def _quoted(message: str) -> list[str]:
    if not message.strip():
        return ["  (it wrote nothing to stderr)"]
    return ["  its last lines:", *(f"  | {line}" for line in message.splitlines())]


def _consequences(later: Sequence[Failure]) -> list[str]:
    if not later:
        return []
    shown = [f"  {_in_round(failure)}" for failure in later[:LATER_FAILURES_SHOWN]]
    hidden = len(later) - len(shown)
    more = [f"  and {hidden} more"] if hidden else []
    return ["", "later failures, probably its consequences:", *shown, *more]


def _intervals() -> Iterator[float]:
    yield from WAIT_INTERVALS_SECONDS
    yield from repeat(WAIT_INTERVALS_SECONDS[-1])


class WaitingLines:
    """While a join lasts, says at growing intervals what it waits for.

    Args:
        ask: returns the coordinator's reason; may raise, and is then asked again later.
        tell: prints one line.
        examine: looks once, after `EXAMINE_SECONDS`, for what keeps the nodes apart; returns
            what it found, "" for nothing.
    """

    def __init__(
        self,
        ask: Callable[[], str],
        tell: Callable[[str], None] = say,
        examine: Callable[[], str] | None = None,
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._examine = examine
        self._over = threading.Event()

    def start(self) -> None:
        """Begin; the first line comes after `WAIT_INTERVALS_SECONDS[0]`."""
        threading.Thread(target=self._run, name="rallypoint-waiting", daemon=True).start()
        if self._examine is not None:
            body, name = self._look_once, "rallypoint-doctor"
            threading.Thread(target=body, args=[self._examine], name=name, daemon=True).start()

    def stop(self) -> None:
        """End; no line is begun after this."""
        self._over.set()

    def _run(self) -> None:
        for interval in _intervals():
            if self._over.wait(interval):
                return
            try:
                line = self._ask()
            except Exception as error:  # shown: waiting goes on, the join itself will fail
                line = f"cannot ask what is being waited for: {error}"
            if line and not self._over.is_set():
                self._tell(line)

    def _look_once(self, examine: Callable[[], str]) -> None:
        if self._over.wait(EXAMINE_SECONDS):
            return
        try:
            line = examine()
        except Exception as error:  # shown: it was only a look
            line = f"the doctor failed: {error!r}"
        if line and not self._over.is_set():
            self._tell(line)
