"""Reports to the coordinator: a worker failed, the work is done, this node leaves.

Each call has a limit, prints a line when it takes long, and ends early at a signal, so that no
agent waits silently, or for a server that is gone.
"""

import threading
from collections.abc import Callable

from rallypoint.agent.join.handlers import AgentHandler
from rallypoint.agent.reporting.console import complain, say
from rallypoint.core.state import Failure
from rallypoint.errors import RallypointError

LEAVE_SECONDS = 5.0
SAY_AFTER_SECONDS = 2.0


class CoordinatorReports:
    """One node's failure reports, its finish and its leave.

    Args:
        handler: of the node.
        limit_seconds: for a failure report, and for a finish.
    """

    def __init__(self, handler: AgentHandler, limit_seconds: float = 30.0) -> None:
        self._handler = handler
        self._limit_seconds = limit_seconds
        self._left = False
        self._unresponsive = False  # whether the coordinator did not answer
        self._changed = threading.Condition()
        self._signals = 0

    def interrupt(self) -> None:
        """End a wait for an answer: a signal came."""
        with self._changed:
            self._signals += 1
            self._changed.notify_all()

    def finish(self) -> None:
        """Report that this node's work is done."""
        try:
            told = self._call(self._handler.finish, self._limit_seconds, "that its work is done")
        except RallypointError as error:
            self._unresponsive = True
            complain(f"the work is done, but the coordinator could not be notified: {error}")
            return
        if not told:
            complain(
                "the work is done, but the coordinator did not answer (--close-timeout); the "
                "others may count this node as lost, and repeat work without it"
            )

    def fail(self, failure: Failure) -> bool:
        """Report that a worker failed; return whether the coordinator answered in time."""
        limit = self._limit_seconds
        try:
            told = self._call(lambda: self._handler.fail(failure), limit, "of the failure")
        except RallypointError as error:
            complain(f"the others could not be notified of the failed worker: {error}")
            return False
        self._unresponsive = False  # it may answer again by the time this node leaves
        if not told:
            complain(
                "the others could not be notified of the failed worker: no answer (--close-timeout)"
            )
        return told

    def give_up(self) -> None:
        """Do not wait for the coordinator any more: it will not come back."""
        self._unresponsive = True

    def leave(self, why: str) -> None:
        """Leave, once; do not wait for the answer of an unresponsive coordinator."""
        if self._left:
            return
        self._left = True
        limit = 0.0 if self._unresponsive else LEAVE_SECONDS
        try:
            told = self._call(lambda: self._handler.leave(why), limit, "that this node leaves")
        except RallypointError as error:
            say(f"left without notifying the coordinator: {error}")
            return
        if not told and limit:
            say(f"left; the coordinator did not answer within {limit:g} s")

    def _call(self, body: Callable[[], None], limit_seconds: float, what: str) -> bool:
        """Run `body` in a thread; return whether it ended in time. Raises what it raised."""
        outcome: list[BaseException | None] = []

        def run() -> None:
            error: BaseException | None = None
            try:
                body()
            except BaseException as caught:  # raised again by the caller
                error = caught
            with self._changed:
                outcome.append(error)
                self._changed.notify_all()

        threading.Thread(target=run, name="rallypoint-departures", daemon=True).start()
        with self._changed:
            signals, first = self._signals, min(SAY_AFTER_SECONDS, limit_seconds)

            def settled() -> bool:
                return bool(outcome) or self._signals > signals

            if not self._changed.wait_for(settled, first) and limit_seconds > first:
                say(f"notifying the coordinator {what}: no answer yet, up to {limit_seconds:g} s")
                self._changed.wait_for(settled, limit_seconds - first)
            if not outcome:
                self._unresponsive = True
                return False
        if outcome[0] is not None:
            raise outcome[0]
        return True
