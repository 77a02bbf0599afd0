"""Hosting a run's server later, where that could not be done at once.

The first attempt is made before a node joins. Where the port is another process's, that is
most often the server of the run, and the node connects to it. But it may be the server of an
earlier run, which is about to end, or the name may not be known yet (case-A4); nothing tells of
either. So while a node that joins is not connected, the attempt is made again with growing
pauses. A seat ends that, not a connection: a server that ends may have let the node in.
"""

import threading
from collections.abc import Callable

from rallypoint.deadline import Deadline
from rallypoint.errors import RallypointError, RendezvousError
from rallypoint.rendezvous.handler import DynamicRendezvousHandler

FIRST_SECONDS, LONGEST_SECONDS = 1.0, 4.0


class Hosting:
    """Holds while a node joins; a thread tries to host until there is a seat or no time left.

    The limit is that of a join (`join_timeout`). For use in one `with`.

    Args:
        attempt: starts a server if that can be done now; what it raises is told, and is the end.
        handler: of the node that joins.
        tell: takes a line for people.
    """

    def __init__(
        self,
        attempt: Callable[[], object],
        handler: DynamicRendezvousHandler,
        tell: Callable[[str], object],
    ) -> None:
        self._attempt, self._handler, self._tell = attempt, handler, tell
        self._limit = Deadline(handler.settings.timeout.join)
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="rallypoint-hosting", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_exc: object) -> None:  # an attempt that is being made goes on
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _run(self) -> None:
        unwatch = self._handler.on_change(self._look_again)
        pause = FIRST_SECONDS
        try:
            while self._is_due(pause):
                self._attempt()
                pause = min(2 * pause, LONGEST_SECONDS)
        except (RallypointError, OSError) as error:
            self._tell(f"cannot host the server of this run: {error}")
        finally:
            unwatch()

    def _look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_due(self, pause: float) -> bool:
        """Wait until the node was without a connection for a pause; False: it is all over."""
        while self._is_connected() is not None and not self._limit.expired():
            left = self._limit.remaining()
            if self._wait_until(False, left) and not self._wait_until(True, min(pause, left)):
                return not self._limit.expired()
        return False

    def _wait_until(self, connected: bool, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_connected() in (connected, None), seconds
            )

    def _is_connected(self) -> bool | None:
        """Return whether the node is connected; None: it need not be any more."""
        try:
            view = self._handler.view()
        except RendezvousError:  # its session has failed: whoever joins is told
            return None
        over = (view.assignment or view.closed or view.fenced) is not None
        return None if over or self._over else view.connected
