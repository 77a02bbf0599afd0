"""Asking for a round, in a thread of its own, so that a signal acts at once during it.

Before each join the node's health check has to pass (rule H1): a node that fails it takes no
seat, says what failed, and tries again with growing pauses as long as a join may take.
"""

import threading
from collections.abc import Callable

from rallypoint import backoff
from rallypoint.agent.join.handlers import AgentHandler, Round
from rallypoint.agent.join.health_check import Checkup
from rallypoint.agent.join.progress import Waiting, live_line
from rallypoint.agent.policy import events
from rallypoint.agent.policy.view_events import join_failed
from rallypoint.agent.reporting.report import is_live, say
from rallypoint.deadline import Deadline


class Joining:
    """One node's joins; one at a time.

    Args:
        handler: of the node.
        put: takes the round, or how the join failed.
        seconds: how long a join may take.
        checkup: the health check, None for none.
        examine: looks for what keeps the nodes apart when a join takes long, None: nothing does.
    """

    def __init__(
        self,
        handler: AgentHandler,
        put: Callable[[Round | events.JoinFailed], None],
        seconds: float,
        checkup: Checkup | None = None,
        examine: Callable[[], str] | None = None,
    ) -> None:
        self._handler = handler
        self._put = put
        self._seconds = seconds
        self._checkup = checkup
        self._examine = examine
        self._waiting: Waiting | None = None
        self._over = threading.Event()

    def begin(self, why: str, told: bool = False) -> None:
        """Ask for a round, and say why unless that was told; the answer is put."""
        if why and not told:
            say(f"joining the next round: {why}")
        self._over = threading.Event()
        body = threading.Thread(
            target=self._ask, args=[why, self._over], name="rallypoint-join", daemon=True
        )
        body.start()

    def end(self) -> None:
        """The answer has come, or is not waited for any more."""
        self._over.set()
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None

    def _ask(self, why: str, over: threading.Event) -> None:
        try:
            if self._checkup is not None and (wrong := self._sick(self._checkup, over)):
                self._put(events.JoinFailed(events.JoinError.UNHEALTHY, wrong))
                return
            show = live_line if is_live() else None
            ask, seconds = self._handler.waiting_for, self._seconds
            waiting = Waiting(ask, seconds, show=show, examine=self._examine)
            self._waiting = waiting
            waiting.start()
            if over.is_set():
                waiting.stop()
            self._put(self._handler.next_round(why))
        except BaseException as error:  # handed to the policy, whatever it is
            self._put(join_failed(error, self._handler.view().closed))

    def _sick(self, checkup: Checkup, over: threading.Event) -> str:
        """Return "" once the node is well, or what is wrong when no time is left (H1)."""
        deadline = Deadline(self._seconds)
        for pause in backoff.pauses():
            wrong = checkup.run()
            if not wrong:
                return ""
            if pause >= deadline.remaining():
                return (
                    f"{wrong}; this node takes no seat, and was not well within "
                    f"{self._seconds:g} s (--join-timeout)"
                )
            say(f"{wrong}; this node takes no seat; looking again in {pause:g} s")
            if over.wait(pause):
                break
        return "the agent ends"
