"""How long a join waits: its own limit, which does not run while the node is parked.

A node that waits for the next round, or is a spare, waits for the work of others (rule N1):
that is no join that hangs. It is told when the next round opens or the run closes, and from
then on its join has its whole time. While the coordinator is away the time runs.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from rallypoint.deadline import Deadline
from rallypoint.rendezvous.coordinator import View


class Waits(Protocol):
    """What can be waited on: a `threading.Condition` that is held, or a session that is not."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float, /) -> bool:
        """Wait until the predicate holds, at most so many seconds; return whether it does."""


def wait_for_seat(
    changed: Waits,
    view: Callable[[], View],
    decided: Callable[[], bool],
    deadline: Deadline,
) -> bool:
    """Wait until a join is decided; return whether it is, False once its time is over.

    Args:
        changed: notified with each change of what the two functions say.
        view: what the node was told so far.
        decided: whether there is an answer.
        deadline: of the join; begun anew, with the same timeout, when the node was parked.
    """

    def is_parked() -> bool:
        seen = view()
        return seen.parked is not None and seen.connected

    while not changed.wait_for(decided, deadline.capped(threading.TIMEOUT_MAX)):
        if not is_parked():
            return False
        changed.wait_for(lambda: decided() or not is_parked(), threading.TIMEOUT_MAX)
        deadline = Deadline(deadline.timeout)
    return True
