"""Events as they happen: JSON lines in a file, and handlers of installed packages.

A handler is a function that takes a `records.Record`; it is found through the entry point
group `rallypoint.events`. It is called in the agent's loop, so it must be quick; one that
raises is complained of once and not called again. A full disk costs the log, not the run.
"""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from types import TracebackType
from typing import IO, Self

import msgspec

from rallypoint.agent.policy import events
from rallypoint.agent.policy.decisions import Decision
from rallypoint.agent.reporting import records
from rallypoint.agent.reporting.report import complain
from rallypoint.errors import ParameterError

GROUP = "rallypoint.events"
Handler = Callable[[records.Record], object]


def installed() -> dict[str, Handler]:
    """Return the handlers of all installed packages by name; a broken one is an error."""
    found: dict[str, Handler] = {}
    for entry in entry_points(group=GROUP):
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # a plug-in may fail in any way at all
            raise ParameterError(
                f"the handler of events {entry.name!r} ({entry.value}) failed to load: "
                f"{type(error).__name__}: {error}"
            ) from error
    return found


class Journal:
    """The log of one agent.

    Args:
        path: lines are added to this file; "" for none.
        run_id: of the run.
        node: label of the node.
        handlers: returns the handlers by name.
        clock: wall clock, seconds since 1970.
    """

    def __init__(
        self,
        path: str,
        run_id: str,
        node: str,
        handlers: Callable[[], Mapping[str, Handler]] = installed,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._run_id, self._node = path, run_id, node
        self._find = handlers
        self._clock = clock
        self._handlers: dict[str, Handler] = {}
        self._file: IO[bytes] | None = None
        self._sequence = 0
        self._at = (0, 0)

    def __enter__(self) -> Self:
        """Open the file. Raises ParameterError when it cannot be written."""
        self._handlers = dict(self._find())
        if self._path:
            try:
                self._file = open(self._path, "ab", buffering=0)
            except OSError as error:
                raise ParameterError(f"--events {self._path}: {error.strerror}") from error
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def note(self, event: events.Event | None, decision: Decision) -> None:
        """Write down a decision."""
        if self._file is None and not self._handlers:
            return
        if seat := records.seat_of(event):
            self._at = seat.incarnation, seat.round
        for kind, why, data in records.told(event, decision):
            self._sequence += 1
            where = (self._node, self._run_id, *self._at)
            self._tell(
                records.Record(
                    records.SCHEMA, self._sequence, self._clock(), *where, kind, why, data
                )
            )

    def _tell(self, record: records.Record) -> None:
        if self._file is not None:
            try:
                self._file.write(msgspec.json.encode(record) + b"\n")
            except OSError as error:
                self._file.close()
                self._file = None
                complain(f"--events {self._path}: {error.strerror}; going on without it")
        for name, handler in list(self._handlers.items()):
            try:
                handler(record)
            except Exception as error:  # a plug-in may fail in any way at all
                del self._handlers[name]
                complain(f"the handler of events {name!r} failed, going on without: {error!r}")
