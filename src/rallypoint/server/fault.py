"""A fault of ours stays where it happened: one run, or one connection.

The rules of a run and the contents of its store are its own, so an error in them (a bug) says
nothing of other runs. That run is closed by name, its members are told what failed, the
traceback is logged, and the fault is counted in `status` and `/metrics`; all else goes on. The
same holds for a frame that a connection fails on. What belongs to neither still ends the server
(`Server._failed`): its state could not be relied on.
"""

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from rallypoint.net import protocol as p

if TYPE_CHECKING:
    from rallypoint.server.connection import Connection
    from rallypoint.server.server import Server

logger = logging.getLogger("rallypoint.server")

OnFault = Callable[[Exception], None]
P = ParamSpec("P")


class Guarded(Protocol):
    """Something whose faults are handled by somebody else."""

    on_fault: OnFault | None


G = TypeVar("G", bound=Guarded)


def guarded(method: Callable[Concatenate[G, P], None]) -> Callable[Concatenate[G, P], None]:
    """Hand what a method raises to `on_fault`, where there is one."""

    @functools.wraps(method)
    def call(self: G, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if self.on_fault is None:
                raise
            self.on_fault(error)

    return call


class Faults:
    """Counts and contains the faults of one server.

    Args:
        server: whose runs, stores and connections fail.
    """

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.count = 0

    def of_run(self, run_id: str, error: Exception) -> None:
        """The rules of a run have failed: close it, tell its members, leave its store."""
        self._log(f"run {run_id!r}: closed", error)
        self._server.run(run_id).fail(reason(error))
        for watcher in self._server.watchers:
            watcher(run_id)

    def of_space(self, run_id: str, error: Exception) -> None:
        """The store of a run has failed: it answers no call any more, and the run is closed."""
        self._log(f"the store of run {run_id!r}: closed, and its run", error)
        space = self._server.spaces.get(run_id)
        if space is not None:
            space.fail(reason(error))
        self._server.run(run_id).fail(reason(error))
        for watcher in self._server.watchers:
            watcher(run_id)

    def of_connection(self, connection: "Connection", error: Exception) -> None:
        """A frame could not be handled: end the connection, for good."""
        self._log(f"the connection of {connection.peer}: ended", error)
        connection.goodbye(p.GOODBYE_PROTOCOL, reason(error))

    def of_question(self, error: Exception) -> str:
        """A question could not be answered; return what to say."""
        self._log("a question: not answered", error)
        return reason(error)

    def _log(self, what: str, error: Exception) -> None:
        self.count += 1
        logger.error("internal error, %s; all else goes on", what, exc_info=error)


def reason(error: Exception) -> str:
    """Return what those concerned are told."""
    return (
        f"an internal error of the server ({type(error).__name__}: {error}): please report it, "
        "with what the server has logged"
    )
