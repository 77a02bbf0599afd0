"""How long a join waits: its own limit, which does not run while the node is parked.

A node that waits for the next round, or is a spare, waits for the work of others (rule N1):
such a join is not stuck. It is notified when the next round opens or the run closes, and from
then on its join has its whole time. While the coordinator is away the time runs.
"""

import threading
from collections.abc import Callable

from rallypoint.deadline import Deadline
from rallypoint.rendezvous.view import View

Wait = Callable[[Callable[[], bool], float], bool]
"""Waits until a predicate holds, at most so many seconds; returns whether it does."""


def wait_for_seat(
    wait: Wait,
    view: Callable[[], View],
    decided: Callable[[], bool],
    deadline: Deadline,
) -> Deadline | None:
    """Wait until a join is decided.

    Args:
        wait: returns early with each change of what the two functions say.
        view: what the node knows so far.
        decided: whether there is an answer.
        deadline: of the join; begun anew, with the same timeout, when the node was parked.

    Returns:
        The deadline that holds now: `deadline`, or the one begun anew. None once it has passed.
    """

    def is_parked() -> bool:
        seen = view()
        return seen.parked is not None and seen.connected

    while not wait(decided, deadline.capped(threading.TIMEOUT_MAX)):
        if not is_parked():
            return None
        wait(lambda: decided() or not is_parked(), threading.TIMEOUT_MAX)
        deadline = Deadline(deadline.timeout)
    return deadline
