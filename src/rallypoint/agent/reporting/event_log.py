"""Writes the agent's events to a JSON Lines file and to event handlers of installed packages.

A handler is a function that takes a `records.Record`, found by the entry point group
`rallypoint.events`. It runs in the agent's loop, so it must be quick. If it raises, the error is
printed once and the handler is not called again. A full disk ends the log, not the run.
"""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import IO, Self

import msgspec

from rallypoint.agent.policy import events
from rallypoint.agent.policy.decisions import Decision
from rallypoint.agent.reporting import records
from rallypoint.agent.reporting.console import complain
from rallypoint.errors import ParameterError

GROUP = "rallypoint.events"
Handler = Callable[[records.Record], object]


def installed() -> dict[str, Handler]:
    """Return the event handlers of all installed packages by name. Raises ParameterError."""
    found: dict[str, Handler] = {}
    for entry in entry_points(group=GROUP):
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # a plug-in may raise anything
            raise ParameterError(
                f"the event handler {entry.name!r} ({entry.value}) failed to load: "
                f"{type(error).__name__}: {error}"
            ) from error
    return found


class EventLog:
    """The event log of one agent.

    Args:
        path: file that lines are appended to; "" for none.
        run_id: of the run.
        node: label of the node.
        handlers: returns the event handlers by name.
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
        self._path = path
        self._run_id = run_id
        self._node = node
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

    def __exit__(self, *_exc: object) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def record(self, event: events.Event | None, decision: Decision) -> None:
        """Record an event and the decision about it."""
        if self._file is None and not self._handlers:
            return
        if seat := records.seat_of(event):
            self._at = seat.incarnation, seat.round
        for kind, why, data in records.entries(event, decision):
            self._sequence += 1
            where = (self._node, self._run_id, *self._at)
            self._write(
                records.Record(
                    records.SCHEMA, self._sequence, self._clock(), *where, kind, why, data
                )
            )

    def _write(self, record: records.Record) -> None:
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
            except Exception as error:  # a plug-in may raise anything
                del self._handlers[name]
                complain(f"the event handler {name!r} failed and is not called again: {error!r}")
