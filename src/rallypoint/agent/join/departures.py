"""Words to the coordinator: that a worker failed, that the work is done, that this node goes.

Each has a limit, says what it waits for once that takes long, and is cut short by a signal:
nobody waits without knowing for what, least of all for a server that is gone.
"""

import threading
from collections.abc import Callable

from rallypoint.agent.join.handlers import AgentHandler
from rallypoint.agent.reporting.report import complain, say
from rallypoint.core.state import Failure
from rallypoint.errors import RallypointError

LEAVE_SECONDS = 5.0
SAY_AFTER_SECONDS = 2.0


class Farewell:
    """One node's last words.

    Args:
        handler: of the node.
        finish_seconds: how long it may take to tell that the work is done.
    """

    def __init__(self, handler: AgentHandler, finish_seconds: float = 30.0) -> None:
        self._handler = handler
        self._finish_seconds = finish_seconds
        self._left = False
        self._deaf = False  # the coordinator has not answered
        self._changed = threading.Condition()
        self._signals = 0

    def hurry(self) -> None:
        """A signal came: an answer that is waited for now is not waited for any more."""
        with self._changed:
            self._signals += 1
            self._changed.notify_all()

    def finish(self) -> None:
        """Say that this node's work is done."""
        try:
            told = self._call(self._handler.finish, self._finish_seconds, "that its work is done")
        except RallypointError as error:
            self._deaf = True
            complain(f"work is done, but the coordinator could not be told: {error}")
            return
        if not told:
            complain(
                "work is done, but the coordinator did not answer (--close-timeout); the others "
                "may count this node as lost, and work again without it"
            )

    def fail(self, failure: Failure, limit_seconds: float) -> bool:
        """Say that a worker failed; return whether that was heard in time."""
        try:
            told = self._call(lambda: self._handler.fail(failure), limit_seconds, "of the failure")
        except RallypointError as error:
            complain(f"the others could not be told of a failed worker: {error}")
            return False
        self._deaf = False  # by the time this node goes it may hear again
        if not told:
            complain("the others could not be told of a failed worker: no answer (--close-timeout)")
        return told

    def give_up(self) -> None:
        """The coordinator will not come back: no answer is waited for any more."""
        self._deaf = True

    def leave(self, why: str) -> None:
        """Go, once; where the coordinator is deaf already, without waiting for it."""
        if self._left:
            return
        self._left = True
        limit = 0.0 if self._deaf else LEAVE_SECONDS
        try:
            told = self._call(lambda: self._handler.leave(why), limit, "that this node goes")
        except RallypointError as error:
            say(f"left without a word to the coordinator: {error}")
            return
        if not told and limit:
            say(f"left without an answer of the coordinator in {limit:g} s")

    def _call(self, body: Callable[[], None], limit_seconds: float, what: str) -> bool:
        """Return whether it was done in time; raises what it raised."""
        outcome: list[BaseException | None] = []

        def run() -> None:
            error: BaseException | None = None
            try:
                body()
            except BaseException as caught:  # raised again, by the caller
                error = caught
            with self._changed:
                outcome.append(error)
                self._changed.notify_all()

        threading.Thread(target=run, name="rallypoint-farewell", daemon=True).start()
        with self._changed:
            signals, first = self._signals, min(SAY_AFTER_SECONDS, limit_seconds)

            def settled() -> bool:
                return bool(outcome) or self._signals > signals

            if not self._changed.wait_for(settled, first) and limit_seconds > first:
                say(f"telling the coordinator {what}: no answer yet, up to {limit_seconds:g} s")
                self._changed.wait_for(settled, limit_seconds - first)
            if not outcome:
                self._deaf = True
                return False
        if outcome[0] is not None:
            raise outcome[0]
        return True
