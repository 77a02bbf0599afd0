"""What an agent does, as one function of values. PURE.

    decide(state, event) -> Decision(state, actions, reason)

An agent is in one of four phases, and each event is met by that phase's one function:

    Joining    asking for a round; no worker runs
    Working    workers of one round run
    Stopping   workers are being ended; `then` says what for: the next round, or the exit
    Over       Exit was said; nothing is done any more

First cause wins: whatever ends the round for this node first (its own worker, another's
loss, a fence, a signal) is the reason that is reported, and what its workers die of
afterwards is a consequence. Two things outrank it while the workers stop, because they
change what comes next: the run's closing, and a signal to this agent.

The restart budget (rule B1) is not judged here: the coordinator counts the run's failing
rounds and closes the run. An agent never closes a run (rule L3).
"""

from functools import singledispatch

import msgspec

from rallypoint.agent.events import (
    Action,
    AdmitDue,
    AgentFailed,
    Event,
    Exit,
    Fenced,
    Finish,
    Join,
    JoinError,
    JoinFailed,
    Leave,
    NodesWaiting,
    ReportFailure,
    RoundOpened,
    RunClosed,
    Sealed,
    Signal,
    StartAdmitTimer,
    StartWorkers,
    StopWorkers,
    WorkerExited,
    WorkersStopped,
)
from rallypoint.rendezvous.core.events import Assignment
from rallypoint.rendezvous.core.state import Failure

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SIGNAL_BASE = 128


class _Value(msgspec.Struct, frozen=True):
    """Base of the policy's states."""


# -- state --------------------------------------------------------------------------------


class Joining(_Value, frozen=True):
    """A join is under way."""


class Working(_Value, frozen=True):
    """Workers run. `done` are the local ranks that ended well; `admitting`: a timer runs."""

    assignment: Assignment
    done: frozenset[int] = frozenset()
    waiting: int = 0
    admitting: bool = False


class Stopping(_Value, frozen=True):
    """Workers are ending; then this is done."""

    then: Join | Exit
    signalled: bool = False


class Over(_Value, frozen=True):
    """Exit was said."""


class AgentState(_Value, frozen=True):
    """One agent.

    Args:
        node: label of the node, for failures.
        local_world_size: workers of this node.
        stop_grace_seconds: time that workers have between being asked and being killed.
        admit_seconds: wait after a newcomer, so that several give one new round (C5).
        phase: where it stands.
    """

    node: str
    local_world_size: int
    stop_grace_seconds: float = 30.0
    admit_seconds: float = 0.1
    phase: Joining | Working | Stopping | Over = Joining()


class Decision(_Value, frozen=True):
    """What came of an event. Actions are to be done in their order."""

    state: AgentState
    actions: tuple[Action, ...] = ()
    reason: str = ""


def begin(state: AgentState) -> Decision:
    """Return the first decision of an agent: join."""
    return Decision(_to(state, Joining()), (Join(""),), "joining")


def decide(state: AgentState, event: Event) -> Decision:
    """Return what an agent in `state` does about `event`."""
    return _in_phase(state.phase, state, event)


@singledispatch
def _in_phase(_phase: object, state: AgentState, _event: Event) -> Decision:
    return Decision(state)


def _to(state: AgentState, phase: Joining | Working | Stopping | Over) -> AgentState:
    return msgspec.structs.replace(state, phase=phase)


def _exit(state: AgentState, end: Exit, before: tuple[Action, ...] = ()) -> Decision:
    return Decision(_to(state, Over()), (*before, end), end.text)


@_in_phase.register
def _joining(phase: Joining, state: AgentState, event: Event) -> Decision:
    match event:
        case Sealed(assignment=seat):
            reason = f"round {seat.round} is sealed: {seat.reason}"
            return Decision(_to(state, Working(seat)), (StartWorkers(seat),), reason)
        case JoinFailed() as failed:
            return _exit(state, _end_of_join(failed))
        case Signal() as signal:
            end = _end_by_signal(signal)
            return _exit(state, end, (Leave(end.text),))
        case AgentFailed(text=text):
            return _exit(state, Exit(EXIT_FAILED, text), (Leave(text),))
    return Decision(state)  # what else is told ends the join, whose answer says what it means


@_in_phase.register
def _working(phase: Working, state: AgentState, event: Event) -> Decision:
    seat = phase.assignment
    match event:
        case WorkerExited() if event.round == seat.round:
            return _worker_exited(phase, state, event)
        case RoundOpened(why=why) if _newer(event.incarnation, event.round, seat):
            return _stop(state, Join(why), _because_of(event))
        case Fenced(why=why):
            return _stop(state, Join(f"was fenced: {why}"), f"this node was fenced: {why}")
        case NodesWaiting(count=count):
            return _nodes_wait(phase, state, count)
        case AdmitDue() if event.round == seat.round and phase.admitting:
            return _admit(phase, state)
        case RunClosed() if event.incarnation >= seat.incarnation:
            end = _end_of_run(event)
            if event.finished:  # the others' work is done, and this node was not one of them
                end = Exit(EXIT_DONE, f"the run has finished without this node: {event.why}")
            return _stop(state, end, end.text)
        case Signal() as signal:
            end = _end_by_signal(signal)
            return _stop(state, end, end.text, (Leave(end.text),), signalled=True)
        case AgentFailed(text=text):
            return _stop(state, Exit(EXIT_FAILED, text), text, (Leave(text),))
    return Decision(state)


@_in_phase.register
def _stopping(phase: Stopping, state: AgentState, event: Event) -> Decision:
    match event:
        case WorkersStopped():
            if isinstance(phase.then, Exit):
                return _exit(state, phase.then)
            return Decision(_to(state, Joining()), (phase.then,), phase.then.why)
        case RunClosed() if isinstance(phase.then, Join):
            end = _end_of_run(event)
            return Decision(_to(state, Stopping(end, phase.signalled)), (), end.text)
        case Signal() if phase.signalled:
            return Decision(state, (StopWorkers(0.0),), f"{event.name} again: no more grace")
        case Signal():
            end = _end_by_signal(event)
            if isinstance(phase.then, Exit) and phase.then.code != EXIT_DONE:
                end = phase.then  # it is going anyway, and its failure is what counts
            leave = (Leave(f"received {event.name}"),)
            return Decision(_to(state, Stopping(end, True)), leave, f"received {event.name}")
        case AgentFailed(text=text) if isinstance(phase.then, Join):
            then = Stopping(Exit(EXIT_FAILED, text), phase.signalled)
            return Decision(_to(state, then), (Leave(text),), text)
    return Decision(state)  # what dies now is a consequence


def _worker_exited(phase: Working, state: AgentState, event: WorkerExited) -> Decision:
    seat = phase.assignment
    if event.exit_code == 0:
        done = phase.done | {event.local_rank}
        if len(done) < state.local_world_size:
            return Decision(_to(state, msgspec.structs.replace(phase, done=done)))
        # D3: a node goes as soon as its own work is done; a finished node is never lost (F1)
        return _exit(state, Exit(EXIT_DONE), (Finish(), Leave("its work is done")))
    failure = Failure(
        node=state.node,
        rank=seat.worker_offset + event.local_rank,
        local_rank=event.local_rank,
        exit_code=event.exit_code,
        signal=event.signal,
        at=event.at,
        message="\n".join(event.lines),
        round=seat.round,
    )
    told = (ReportFailure(failure),)
    return _stop(state, Join(f"its worker failed: {failure.label}"), failure.label, told)


def _nodes_wait(phase: Working, state: AgentState, count: int) -> Decision:
    begins = count > 0 and not phase.admitting
    after = msgspec.structs.replace(phase, waiting=count, admitting=phase.admitting or begins)
    timer = (StartAdmitTimer(phase.assignment.round, state.admit_seconds),) if begins else ()
    return Decision(_to(state, after), timer, _waiting(count) if begins else "")


def _admit(phase: Working, state: AgentState) -> Decision:
    if phase.waiting == 0:
        return Decision(_to(state, msgspec.structs.replace(phase, admitting=False)))
    reason = _waiting(phase.waiting)
    return _stop(state, Join(reason), reason)


def _waiting(count: int) -> str:
    return "1 node waits" if count == 1 else f"{count} nodes wait"


def _stop(
    state: AgentState,
    then: Join | Exit,
    reason: str,
    tell: tuple[ReportFailure | Leave, ...] = (),
    *,
    signalled: bool = False,
) -> Decision:
    """Others are told first about a failure; stopping goes before a leave, which may block."""
    stop = StopWorkers(state.stop_grace_seconds)
    leaving = bool(tell) and isinstance(tell[0], Leave)
    actions: tuple[Action, ...] = (stop, *tell) if leaving else (*tell, stop)
    return Decision(_to(state, Stopping(then, signalled)), actions, reason)


def _newer(incarnation: int, number: int, seat: Assignment) -> bool:
    return (incarnation, number) > (seat.incarnation, seat.round)


def _because_of(event: RoundOpened) -> str:
    return f"round {event.round} opens: {event.why}"


def _end_by_signal(signal: Signal) -> Exit:
    return Exit(EXIT_SIGNAL_BASE + signal.number, f"received {signal.name}")


def _end_of_run(closed: RunClosed) -> Exit:
    if closed.finished:
        return Exit(EXIT_DONE)
    return Exit(EXIT_FAILED, f"the run was closed by {closed.by}: {closed.why}", closed.failures)


def _end_of_join(failed: JoinFailed) -> Exit:
    if failed.error is JoinError.NOT_NEEDED:
        return Exit(EXIT_DONE)
    return Exit(EXIT_FAILED, failed.text, failed.failures)
