"""Rounds as OpenTelemetry spans (extra `otel`; RALLYPOINT_TRACES=1 asks for them).

Each round is one span from its opening to its end, with an event at its sealing. The span is
made when the round has ended, so nothing is held open for hours. Only opentelemetry-api is used:
the SDK decides where the spans go, as `opentelemetry-instrument rallypoint serve ...` does from
the usual OTEL_* variables. Without an SDK they go nowhere.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rallypoint.errors import ParameterError
from rallypoint.rendezvous.reports.history import Entry
from rallypoint.server.server import Server

VARIABLE = "RALLYPOINT_TRACES"
NODES_NAMED = 64


def asked(environment: Mapping[str, str]) -> bool:
    """Return whether spans are wanted. Raises ParameterError if they cannot be made."""
    if environment.get(VARIABLE, "0").strip().lower() in ("", "0", "false", "no"):
        return False
    if find_spec("opentelemetry") is None:
        raise ParameterError(f"{VARIABLE} needs the extra `otel`: pip install 'rallypoint[otel]'")
    return True


@contextmanager
def traced(server: Server, environment: Mapping[str, str]) -> Iterator[None]:
    """Make spans of a server's rounds within the block, if they are asked for."""
    if not asked(environment):
        yield
        return
    from opentelemetry import trace

    traces = Traces(server, trace.get_tracer("rallypoint"))
    server.watchers.add(traces.changed)
    try:
        yield
    finally:
        server.watchers.discard(traces.changed)
        traces.end()


class Traces:
    """Makes the spans of a server's rounds.

    Args:
        server: calls `changed` after each step of a run.
        tracer: OpenTelemetry's.
    """

    def __init__(self, server: Server, tracer: Any) -> None:
        self._server = server
        self._tracer = tracer
        self._done: dict[str, tuple[int, int]] = {}  # the newest round of each run with a span
        self._epoch_ns = time.time_ns() - int(server.loop.time() * 1e9)

    def changed(self, run_id: str) -> None:
        """Look for rounds that have ended."""
        run = self._server.runs.get(run_id)
        if run is None:
            self._done.pop(run_id, None)
            return
        new: list[Entry] = []
        for entry in reversed(run.history.rounds):
            if (entry.incarnation, entry.number) <= self._done.get(run_id, (0, 0)):
                break
            if entry.ended_at is not None:
                new.append(entry)
        for entry in reversed(new):
            self._done[run_id] = (entry.incarnation, entry.number)
            self._span(run_id, entry, entry.ended_at, entry.ended_because)

    def end(self) -> None:
        """The server ends: make spans of the rounds that are still open."""
        now = self._server.loop.time()
        for run_id, run in self._server.runs.items():
            rounds = run.history.rounds
            if rounds and rounds[-1].ended_at is None:
                self._span(run_id, rounds[-1], now, "the server ended; the round was still on")

    def _span(self, run_id: str, entry: Entry, ended_at: float | None, why: str) -> None:
        attributes: dict[str, Any] = {
            "rallypoint.run": run_id,
            "rallypoint.incarnation": entry.incarnation,
            "rallypoint.round": entry.number,
            "rallypoint.nodes": entry.size,
            "rallypoint.ended_because": why,
        }
        if entry.opened_because:
            attributes["rallypoint.opened_because"] = entry.opened_because
        if entry.lost:
            attributes["rallypoint.lost"] = list(entry.lost)
        if entry.record is not None:
            seats = entry.record.seats[:NODES_NAMED]
            attributes["rallypoint.members"] = [seat.node.label for seat in seats]
        name, opened = f"round {entry.number}", self._ns(entry.opened_at)
        span = self._tracer.start_span(name, start_time=opened, attributes=attributes)
        if entry.sealed_at is not None:
            reason = {"rallypoint.sealed_because": entry.sealed_because}
            span.add_event("sealed", reason, self._ns(entry.sealed_at))
        span.end(self._ns(entry.opened_at if ended_at is None else ended_at))

    def _ns(self, at: float) -> int:
        return self._epoch_ns + int(at * 1e9)
