"""The status document of runs and servers. PURE.

`rallypoint status --json`, `/api/v1/...` and the live page show this document. `SCHEMA` names its
version: fields may be added to a version, but not removed or changed. The JSON schema is made from
the types below (`json_schema`) and shipped as `rallypoint/schemas/status.v1.json`.

All times are durations: seconds before the document was made, null where they are not known
(without a server, a run's state holds no times).
"""

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

from rallypoint.core.explain import goal_of
from rallypoint.core.state import Settings
from rallypoint.rendezvous.coordinator import (
    ExclusionLine,
    NodeStatus,
    NoticeLine,
    Report,
    RoundLine,
    RunningTimer,
)

SCHEMA = "rallypoint.status/1"
_JOINING = ("gathering", "last call")


class RunLine(msgspec.Struct, frozen=True):
    """One run in the list of a server's runs.

    Args:
        run_id: its name.
        phase: "gathering", "last call", "sealed" or "closed".
        round: number of its round.
        nodes: live nodes.
        reason: one sentence: what it waits for, or why it is where it is.
        since_seconds: how long it has been in its phase.
    """

    run_id: str
    phase: str
    round: int
    nodes: int
    reason: str
    since_seconds: float | None = None


class Durability(msgspec.Struct, frozen=True):
    """Where a server keeps its runs, and what that costs.

    Args:
        where: the journal, for people.
        commits: batches stored since its start.
        entries: entries written by them.
        commit_seconds: how long a commit took, on average.
        worst_commit_seconds: the longest.
        trouble: why nothing can be stored now, "" if that is not so.
    """

    where: str
    commits: int
    entries: int
    commit_seconds: float
    worst_commit_seconds: float
    trouble: str = ""


class ServerStatus(msgspec.Struct, frozen=True):
    """How a server is.

    Args:
        endpoint: what it listens on.
        version: of rallypoint.
        protocol: version of its wire format.
        pid: its process id.
        uptime_seconds: since its start.
        wall_time: its wall clock, seconds since 1970; for information only.
        connections: open now.
        requests: frames taken since its start.
        bytes_in: bytes taken since its start.
        faults: internal errors since its start; each has closed a run or a connection.
        bytes_out: bytes given to the kernel since its start, of frames; HTTP is not counted.
        lag_seconds: how late its event loop was at the last look (every half second).
        worst_lag_seconds: the most so far.
        memory_bytes: resident memory, 0 if that is not known.
        store_bytes: bytes in the stores of all runs.
        run_count: runs that it knows, ended ones included.
        runs: the newest of them, open ones first.
        access: who can reach it, for people: what it asks for, or that it asks for nothing.
        durable: where its runs are kept; null: in its memory alone.
        role: of several servers on one state, for people: it leads, or stands by for whom.
    """

    endpoint: str
    version: str
    protocol: int
    pid: int
    uptime_seconds: float
    wall_time: float
    connections: int
    requests: int
    bytes_in: int
    lag_seconds: float
    worst_lag_seconds: float
    memory_bytes: int
    store_bytes: int
    run_count: int
    runs: tuple[RunLine, ...] = ()
    access: str = ""
    bytes_out: int = 0
    faults: int = 0
    durable: Durability | None = None
    role: str = ""


class MemberStatus(msgspec.Struct, frozen=True):
    """One live node of a run.

    Args:
        id: random id of its process.
        label: host (address) pid, for people.
        place: "candidate", "participant", "waiting", "spare" or "finished".
        rank: among the nodes, of the last round it took part in.
        host, address, port, pid, slot, role, topology: what it says of itself.
        local_world_size: its workers.
        connected: false while it may reconnect.
        since_seconds: how long it has been in its place.
        heard_seconds: since its last heartbeat.
    """

    id: str
    label: str
    place: str
    rank: int | None
    host: str
    address: str
    port: int
    pid: int
    slot: str | None
    role: str
    topology: str | None
    local_world_size: int
    connected: bool
    since_seconds: float | None
    heard_seconds: float | None


_SETTINGS = [  # name in the document, field of the core, type
    (field.name.removesuffix("_seconds"), field.name, field.type)
    for field in msgspec.structs.fields(Settings)
    if field.name not in ("max_restarts", "admit")  # the first is in `budget`
]
if TYPE_CHECKING:

    class SettingsStatus(msgspec.Struct, frozen=True):
        """What a run was opened with."""

        min_nodes: int
        max_nodes: int
        target_nodes: int | None

else:
    SettingsStatus = msgspec.defstruct(
        "SettingsStatus",
        [(name, kind) for name, _, kind in _SETTINGS],
        frozen=True,
        module=__name__,
        namespace={
            "__doc__": "What a run was opened with (durations in seconds; null: no limit, or "
            "max_nodes)."
        },
    )


class Budget(msgspec.Struct, frozen=True):
    """The failure budget: rounds that failing workers have cost, and may (null: any).

    `in_a_row` are the newest of them, with none between that ended in another way.
    """

    used: int
    allowed: int | None
    in_a_row: int = 0


class FailureStatus(msgspec.Struct, frozen=True):
    """A worker that failed; `message` holds its last lines."""

    node: str
    rank: int
    local_rank: int
    exit_code: int | None
    signal: str
    at: str
    message: str
    round: int


class ShutOut(msgspec.Struct, frozen=True):
    """A node that was shut out, and why."""

    id: str
    why: str


class RunStatus(msgspec.Struct, frozen=True):
    """One run.

    Args:
        run_id: its name.
        source: where this comes from, for people.
        phase: "gathering", "last call", "sealed" or "closed".
        since_seconds: how long it has been in its phase.
        incarnation: counts the openings of the run.
        round: number of the round that the phase is about.
        reason: one sentence: what it waits for, or why it is where it is.
        opened_by: label of the node that opened it.
        settings: null before the first join.
        members: every live node, in rank order, then by place.
        missing: who has not come: known nodes by label, and how many others.
        timers: waits that end by themselves.
        rounds: the rounds so far, oldest first (the newest few dozen).
        budget: the failure budget.
        failures: of the last failing round, first one first, after the first one of its row.
        shut_out: the newest nodes that were shut out.
        exclusions: of nodes, the oldest first.
        notices: of nodes that will leave.
    """

    run_id: str
    source: str
    phase: str
    since_seconds: float | None
    incarnation: int
    round: int
    reason: str
    opened_by: str
    settings: SettingsStatus | None
    members: tuple[MemberStatus, ...]
    missing: tuple[str, ...]
    timers: tuple[RunningTimer, ...]
    rounds: tuple[RoundLine, ...]
    budget: Budget
    failures: tuple[FailureStatus, ...]
    shut_out: tuple[ShutOut, ...]
    exclusions: tuple[ExclusionLine, ...] = ()
    notices: tuple[NoticeLine, ...] = ()

    @property
    def is_there(self) -> bool:
        """Whether there is such a run: a node has opened it, or somebody has closed it."""
        return self.settings is not None or self.phase != "gathering"


class Status(msgspec.Struct, frozen=True):
    """The whole document; `server` is null where there is none (a serverless run)."""

    schema: str
    source: str
    server: ServerStatus | None
    runs: tuple[RunStatus, ...]


def run_status(report: Report) -> RunStatus:
    """Return a report in the form of the document."""
    allowed = report.settings.max_restarts if report.settings else None
    return RunStatus(
        run_id=report.run_id,
        source=report.server,
        phase=report.phase,
        since_seconds=report.since_seconds,
        incarnation=report.incarnation,
        round=report.round,
        reason=report.reason,
        opened_by=report.opened_by,
        settings=_settings(report.settings),
        members=tuple(_member(member) for member in sorted(report.members, key=_order)),
        missing=absent(report),
        timers=report.timers,
        rounds=report.rounds,
        budget=Budget(report.restarts, allowed, report.failing),
        failures=tuple(
            FailureStatus(
                f.node, f.rank, f.local_rank, f.exit_code, f.signal, f.at, f.message, f.round
            )
            for f in report.failures
        ),
        shut_out=tuple(ShutOut(node, why) for node, why in report.shut_out),
        exclusions=report.exclusions,
        notices=report.notices,
    )


def absent(report: Report) -> tuple[str, ...]:
    """Return the missing nodes: participants of the previous round, free ranks, or a number.

    A node that never joined has no name. It is named by the rank that is left over if all others
    ask for one, and is counted otherwise.
    """
    settings = report.settings
    if settings is None or report.phase not in _JOINING:
        return ()
    here = [m.node for m in report.members if m.place == "candidate"]
    known = list(report.missing)
    least = settings.min_nodes - len(here) - len(known)
    wanted = goal_of(settings) - len(here) - len(known)
    hints = {node.node_rank for node in here}
    if here and None not in hints:
        ranks = [rank for rank in range(settings.min_nodes) if rank not in hints]
        known += [f"the node that asks for rank {rank}" for rank in ranks[: max(0, least)]]
    elif least > 0 and (done := done_sentence(report)):
        known.append(f"{_count(least)} more (min_nodes={settings.min_nodes}): {done}")
    elif least > 0:
        known.append(f"{_never_connected(least)} (min_nodes={settings.min_nodes})")
    elif settings.target_nodes and wanted > 0:
        known.append(f"{_never_connected(wanted)} (target_nodes={goal_of(settings)})")
    return tuple(known)


def _never_connected(count: int) -> str:
    return f"{_count(count)} that {'has' if count == 1 else 'have'} never connected"


def done_sentence(report: Report) -> str:
    """Return who has finished and will not return, "" if nobody has."""
    done = [member.node.label for member in report.members if member.place == "finished"]
    if not done:
        return ""
    have = "has" if len(done) == 1 else "have"
    shown = ", ".join(done[:_DONE_SHOWN])
    more = f" and {len(done) - _DONE_SHOWN} more" if len(done) > _DONE_SHOWN else ""
    return f"{shown}{more} {have} finished and will not return"


def no_such_run(run: RunStatus, server: ServerStatus | None) -> str:
    """Return that there is no such run, and the names of others, the most similar first."""
    text = f"{run.source} has no run {run.run_id!r}: no node has joined it"
    if server is None:
        return text
    names = [line.run_id for line in server.runs if line.run_id != run.run_id]
    nearest = difflib.get_close_matches(run.run_id, names, _RUNS_NAMED, cutoff=0.0)
    more = len(names) < server.run_count or len(nearest) < len(names)
    there = ", ".join(map(repr, nearest)) + (", ..." if more else "")
    return f"{text}; runs there: {there}" if there else f"{text}; no run is there"


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of `Status`."""
    schema = msgspec.json.schema(Status, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "What rallypoint runs are doing",
        **schema,
    }


def _count(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


_DONE_SHOWN = 3
_RUNS_NAMED = 5
_PLACES = ("participant", "candidate", "waiting", "spare", "finished")


def _order(member: NodeStatus) -> tuple[int, int, str]:
    rank = member.rank if member.rank is not None else 1 << 30
    return _PLACES.index(member.place), rank, member.node.label


def _member(member: NodeStatus) -> MemberStatus:
    node = member.node
    return MemberStatus(
        id=node.id,
        label=node.label,
        place=member.place,
        rank=member.rank,
        host=node.host,
        address=node.address,
        port=node.port,
        pid=node.pid,
        slot=node.slot,
        role=node.role,
        topology=node.topology,
        local_world_size=node.local_world_size,
        connected=member.connected,
        since_seconds=member.since_seconds,
        heard_seconds=member.heard_seconds,
    )


def _settings(settings: Settings | None) -> SettingsStatus | None:
    if settings is None:
        return None
    values = {name: getattr(settings, field) for name, field, _ in _SETTINGS}
    return msgspec.convert(values, SettingsStatus)
