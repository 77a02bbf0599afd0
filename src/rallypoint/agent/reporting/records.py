"""The records of an agent's event log. PURE.

A record is one line of JSON in the format `SCHEMA` (docs/events.md, and the JSON schema made
from the types below: `rallypoint/schemas/event.v1.json`). Under one schema name, kinds and
fields are only ever added.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from rallypoint.agent.policy import events
from rallypoint.agent.policy.decisions import Decision
from rallypoint.core.events import Assignment

SCHEMA = "rallypoint.event/1"


class Kind(StrEnum):
    """What happened."""

    JOIN = "join"
    JOIN_FAILED = "join-failed"
    SEALED = "sealed"
    BACKOFF = "backoff"
    STARTED = "started"
    WORKER_EXITED = "worker-exited"
    WORKER_FAILED = "worker-failed"
    WORKER_HUNG = "worker-hung"
    LOST = "lost"
    RESTART = "restart"
    WAITING = "waiting"
    ASKED_TO_SAVE = "asked-to-save"
    SAVED = "saved"
    FENCED = "fenced"
    NOTICE = "notice"
    SIGNAL = "signal"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CLOSED = "closed"
    FINISH = "finish"
    LEAVE = "leave"
    ERROR = "error"
    EXIT = "exit"


class Record(msgspec.Struct, frozen=True):
    """One line of the event log.

    Args:
        schema: the format's name and version.
        sequence: counts the records of one agent, from 1.
        at: wall clock of this machine, in seconds since 1970; for people only.
        node: label of the agent's node.
        run_id: name of the run.
        incarnation: of the run, 0 before the first round.
        round: number of the last round that this node took part in, 0 before the first.
        kind: what happened.
        why: the reason in one sentence, or "".
        data: further fields, by kind (docs/events.md).
    """

    schema: str
    sequence: int
    at: float
    node: str
    run_id: str
    incarnation: int
    round: int
    kind: Kind
    why: str
    data: dict[str, Any]


Entry = tuple[Kind, str, dict[str, Any]]


def entries(event: events.Event | None, decision: Decision) -> Iterator[Entry]:
    """Yield the entries for an event, then those for the actions.

    Notifications that change nothing give no entry, since they repeat an earlier one.
    """
    acted = bool(decision.actions or decision.reason)
    if event is not None:
        yield from _of_event(event, acted, decision)
    for action in decision.actions:
        yield from _of_action(action)


def seat_of(event: events.Event | None) -> Assignment | None:
    """Return the assignment in a `Sealed` event, None for other events."""
    return event.assignment if isinstance(event, events.Sealed) else None


def _of_event(event: events.Event, acted: bool, decision: Decision) -> Iterator[Entry]:
    match event:
        case events.Sealed(assignment=seat):
            yield Kind.SEALED, seat.reason, _seat(seat)
        case events.JoinFailed(error=error, text=text):
            yield Kind.JOIN_FAILED, text, {"error": str(error)}
        case events.WorkerExited():
            how = {"exit_code": event.exit_code, "signal": event.signal}
            yield Kind.WORKER_EXITED, "", {"local_rank": event.local_rank, **how}
        case events.WorkerHung():
            where = {"local_rank": event.local_rank, "step": event.step}
            data = {**where, "still_seconds": event.still_seconds, "stack": list(event.lines)}
            yield Kind.WORKER_HUNG, "", data
        case events.WorkersStopped(stuck=stuck):
            yield Kind.STOPPED, "", {"stuck": list(stuck)}
        case events.RoundOpened(round=number, why=why, lost=lost) if acted:
            for label in lost:
                yield Kind.LOST, why, {"node": label}
            yield Kind.RESTART, why, {"next_round": number}
        case events.NodesWaiting(count=count):
            yield Kind.WAITING, decision.reason, {"count": count}
        case events.Fenced(why=why) if acted:
            yield Kind.FENCED, why, {}
        case events.RunClosed(by=by, why=why, verdict=verdict) if acted:
            yield Kind.CLOSED, why, {"by": by, "verdict": str(verdict)}
        case events.WorkersSaved(step=step):
            yield Kind.SAVED, decision.reason, {"step": step}
        case (
            events.Signal(name=name)
            | events.SignalToForward(name=name)
            | events.PreemptSignal(name=name)
        ):
            yield Kind.SIGNAL, decision.reason, {"name": name}
        case events.AgentFailed(text=text):
            yield Kind.ERROR, text, {}


def _of_action(action: events.Action) -> Iterator[Entry]:
    match action:
        case events.Join(why=why):
            yield Kind.JOIN, why, {}
        case events.StartWorkers(assignment=seat):
            yield Kind.STARTED, "", {"first_rank": seat.worker_offset}
        case events.StartBackoffTimer(seconds=seconds, why=why):
            yield Kind.BACKOFF, why, {"seconds": seconds}
        case events.StopWorkers(grace_seconds=grace):
            yield Kind.STOPPING, "", {"grace_seconds": grace}
        case events.ReportFailure(failure=failure):
            yield Kind.WORKER_FAILED, failure.label, msgspec.structs.asdict(failure)
        case events.AskToSave(kind=kind, who=who, why=why, seconds=seconds):
            yield Kind.ASKED_TO_SAVE, why, {"change": str(kind), "who": who, "seconds": seconds}
        case events.GiveNotice(why=why):
            yield Kind.NOTICE, why, {}
        case events.Finish():
            yield Kind.FINISH, "", {}
        case events.Leave(why=why):
            yield Kind.LEAVE, why, {}
        case events.Exit(code=code, text=text):
            yield Kind.EXIT, text, {"code": code}


def _seat(seat: Assignment) -> dict[str, Any]:
    return {
        "rank": seat.rank,
        "size": seat.size,
        "first_rank": seat.worker_offset,
        "world_size": seat.world_size,
        "master": f"{seat.master_addr}:{seat.master_port}",
        "restarts": seat.restarts,
    }


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of `Record`."""
    schema = msgspec.json.schema(Record, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "What happened to one rallypoint agent",
        **schema,
    }
