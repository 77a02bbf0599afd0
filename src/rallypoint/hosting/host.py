"""Which machine runs the server of a run: decided at once, or while the node joins.

The machine that can bind the endpoint's address runs the server. The kernel lets exactly one
process bind it, and no host name or reverse DNS is needed to know which addresses are this
machine's. With a list of endpoints no node hosts: there the servers themselves elect a leader.

The first attempt precedes the join. A port that is taken is most often the run's server, and
the node connects to it. But it may be the server of an earlier run, which is about to end, or
the name may not resolve yet (A4), and nothing announces when either has changed. So while a
joining node has no connection, `HostingRetry` repeats the attempt with growing pauses.
"""

import errno
import threading
from collections.abc import Callable
from socket import gaierror
from typing import TypeVar

from rallypoint.deadline import Deadline
from rallypoint.errors import RallypointError, RendezvousConnectionError
from rallypoint.net.endpoints import is_list, one_host, parse_rendezvous_endpoint

FIRST_SECONDS, LONGEST_SECONDS = 1.0, 4.0
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EADDRINUSE)

Server = TypeVar("Server")


def host_if_ours(
    endpoint: str, is_host: bool | None, start: Callable[[str, int], Server]
) -> Server | None:
    """Start a server if the endpoint is an address of this machine.

    Args:
        endpoint: HOST:PORT; port 0 picks a free one.
        is_host: True: this machine must host; False: it never does; None: it hosts if it can
            bind the address.
        start: starts a server that is bound to exactly that host and port.

    Returns:
        The server; None if another machine or process hosts, if the name does not resolve yet,
        or for a list of endpoints.

    Raises:
        RendezvousConnectionError: this machine must host and cannot, or the address cannot be
            bound for another reason (no permission, for example).
        ParameterError: a token or a certificate is needed, or a list was given with is_host.
    """
    if is_host:
        one_host(endpoint)
    if is_host is False or is_list(endpoint):
        return None
    try:
        return start(*parse_rendezvous_endpoint(endpoint))
    except OSError as error:
        elsewhere = isinstance(error, gaierror) or error.errno in _NOT_OURS
        if elsewhere and not is_host:
            return None
        said = "is_host=true (--rdzv-conf), but " if is_host else ""
        raise RendezvousConnectionError(
            f"{said}this machine cannot listen on {endpoint}: {error.strerror or error}; give the "
            "endpoint an address of this machine and a free port"
        ) from error


class HostingRetry:
    """Repeats the attempt to host in a thread while a node joins; for one `with`.

    Only a seat ends it, or the end of the run; a connection does not: a server that is about
    to end may have accepted the node.

    Args:
        attempt: starts a server if that is possible now; its error ends the retries.
        limit: of the join.
        is_over: whether the node has a seat, or can no longer get one.
        is_connected: whether the node is connected to a server.
        watch: registers a function to be called when either may have changed; returns the
            function that unregisters it.
        report: takes a line about an error, for people.
    """

    def __init__(
        self,
        attempt: Callable[[], object],
        limit: Deadline,
        is_over: Callable[[], bool],
        is_connected: Callable[[], bool],
        watch: Callable[[Callable[[], None]], Callable[[], None]],
        report: Callable[[str], object],
    ) -> None:
        self._attempt = attempt
        self._limit = limit
        self._node_is_over = is_over
        self._is_connected = is_connected
        self._watch = watch
        self._report = report
        self._changed = threading.Condition()
        self._left = False
        self._thread = threading.Thread(target=self._run, name="rallypoint-hosting", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_exc: object) -> None:  # does not wait for an attempt under way
        with self._changed:
            self._left = True
            self._changed.notify_all()

    def _run(self) -> None:
        unwatch = self._watch(self._notify)
        pause = FIRST_SECONDS
        try:
            while self._is_due(pause):
                self._attempt()
                pause = min(2 * pause, LONGEST_SECONDS)
        except (RallypointError, OSError) as error:
            self._report(f"cannot host the server of this run: {error}")
        finally:
            unwatch()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_due(self, pause: float) -> bool:
        """Wait until the node has had no connection for `pause` seconds; False: it is over."""
        while not self._is_over() and not self._limit.expired():
            left = self._limit.remaining()
            if self._wait_until(False, left) and not self._wait_until(True, min(pause, left)):
                return not self._limit.expired()
        return False

    def _wait_until(self, connected: bool, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_over() or self._is_connected() is connected, seconds
            )

    def _is_over(self) -> bool:
        return self._left or self._node_is_over()
