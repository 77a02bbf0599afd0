"""What a server says of itself: health, load, and the list of its runs."""

import functools
import os
import time
from typing import TYPE_CHECKING

import msgspec
import psutil

from rallypoint import __version__
from rallypoint.core import explain
from rallypoint.core.state import PLACES, State, round_number
from rallypoint.net import protocol as p
from rallypoint.net.tokens import Rights
from rallypoint.rendezvous.reports.status import RunLine, ServerStatus

if TYPE_CHECKING:
    from rallypoint.server.runs import RunHost
    from rallypoint.server.server import Server

RUNS_SHOWN = 500


def server_status(server: "Server") -> ServerStatus:
    """Return how a server is, and its newest runs, open ones first."""
    now = server.loop.time()
    shown = newest_runs(server, RUNS_SHOWN)
    return ServerStatus(
        endpoint=server.where,
        version=__version__,
        protocol=p.PROTOCOL_VERSION,
        pid=os.getpid(),
        uptime_seconds=now - server.started_at,
        wall_time=time.time(),
        connections=len(server.connections),
        requests=server.requests,
        bytes_in=server.bytes_in,
        bytes_out=server.bytes_out,
        faults=server.faults.count,
        lag_seconds=server.lag_seconds,
        worst_lag_seconds=server.worst_lag_seconds,
        memory_bytes=_process().memory_info().rss,
        store_bytes=sum(space.keys.stored_bytes for space in server.spaces.values()),
        run_count=len(server.runs),
        runs=tuple(run_line(run, now) for run in shown),
        access=server.access,
        role=server.role,
        durable=None if server.keeper is None else server.keeper.scribe.durability(),
    )


def visible(status: ServerStatus, rights: Rights) -> ServerStatus:
    """Leave out the runs that a client's token does not reach."""
    if rights.run is None:
        return status
    runs = tuple(run for run in status.runs if rights.reaches(run.run_id))
    return msgspec.structs.replace(status, runs=runs, run_count=len(runs))


def newest_runs(server: "Server", limit: int) -> "list[RunHost]":
    """Return the runs that were made last; open ones first."""
    newest = list(reversed(server.runs.values()))
    newest.sort(key=lambda run: explain.phase_name(run.state) == "closed")  # stable
    return newest[:limit]


def run_line(run: "RunHost", now: float) -> RunLine:
    """Return a run's line in the list."""
    state, at = run.state, run.chronicle.phase_at
    return RunLine(
        run_id=state.run_id,
        phase=explain.phase_name(state),
        round=round_number(state.phase),
        nodes=live(state),
        reason=explain.describe(state),
        since_seconds=None if at is None else now - at,
    )


def live(state: State) -> int:
    """Return the number of live nodes."""
    return sum(len(getattr(state, place)) for place in PLACES)


@functools.cache
def _process() -> psutil.Process:
    return psutil.Process()
