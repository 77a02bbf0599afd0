"""Contains our own bugs: one ends a run or a connection, not the server.

The rules of a run and the contents of its store are its own, so an error in them says nothing
about other runs. That run is closed by name, its members get the reason, the traceback is
logged, and the fault is counted in `status` and `/metrics`. The same holds for a frame that a
connection fails on. An error anywhere else ends the server (`Server._failed`), since its state
could not be relied on.
"""

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

logger = logging.getLogger("rallypoint.server")

OnFault = Callable[[Exception], None]
P = ParamSpec("P")


class Guarded(Protocol):
    """An object whose errors another one handles."""

    on_fault: OnFault | None


G = TypeVar("G", bound=Guarded)


def guarded(method: Callable[Concatenate[G, P], None]) -> Callable[Concatenate[G, P], None]:
    """Pass what a method raises to `on_fault`, if that is set."""

    @functools.wraps(method)
    def call(self: G, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if self.on_fault is None:
                raise
            self.on_fault(error)

    return call


class FaultLog:
    """Logs and counts the contained faults of one server."""

    def __init__(self) -> None:
        self.count = 0

    def contain(self, what: str, error: Exception) -> str:
        """Log and count an error; return what to tell the clients concerned.

        Args:
            what: failed, and what becomes of it, for the log.
            error: to be logged with its traceback.
        """
        self.count += 1
        logger.error("internal error, %s; all else goes on", what, exc_info=error)
        return reason(error)


def reason(error: Exception) -> str:
    """Return the text for clients about an internal error."""
    return (
        f"an internal error of the server ({type(error).__name__}: {error}): please report it, "
        "with what the server has logged"
    )
