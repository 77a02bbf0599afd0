"""What an agent does, as one function of values. PURE.

    decide(state, event) -> Decision(state, actions, reason)

An agent is in one of five phases, and each event is met by that phase's one function:

    Joining    asking for a round; no worker runs
    Pausing    has a seat in a round; its workers wait, because those before failed
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

from rallypoint import backoff
from rallypoint.agent.policy import membership_change
from rallypoint.agent.policy.events import (
    Action,
    AdmitDue,
    AgentFailed,
    BackoffOver,
    Event,
    Exit,
    Fenced,
    Finish,
    GiveNotice,
    Join,
    JoinFailed,
    Leave,
    NodesWaiting,
    Notice,
    NoticesStand,
    PassOn,
    PreemptSignal,
    ReportFailure,
    RoundOpened,
    RunClosed,
    Sealed,
    Signal,
    SignalToPassOn,
    StartBackoffTimer,
    StartWorkers,
    StopWorkers,
    WorkerExited,
    WorkerHung,
    WorkersSaved,
    WorkersStopped,
)
from rallypoint.agent.policy.membership_change import Admission, Outcome, Rules
from rallypoint.agent.reporting import exit_codes
from rallypoint.agent.reporting.exit_codes import EXIT_DONE, EXIT_FAILED
from rallypoint.core.events import Assignment
from rallypoint.core.state import Failure


class _Value(msgspec.Struct, frozen=True):
    """Base of the policy's states."""


# -- state --------------------------------------------------------------------------------


class Joining(_Value, frozen=True):
    """A join is under way."""


class Pausing(_Value, frozen=True):
    """The round is agreed; its workers are started after a pause (`agent.backoff`)."""

    assignment: Assignment
    waiting: int = 0
    notices: tuple[Notice, ...] = ()


class Working(_Value, frozen=True):
    """Workers run. `done` are the local ranks that ended well; `admission`: what may change."""

    assignment: Assignment
    done: frozenset[int] = frozenset()
    admission: Admission = Admission()


class Stopping(_Value, frozen=True):
    """Workers are ending; then this is done."""

    then: Join | Exit
    signalled: bool = False


class Over(_Value, frozen=True):
    """Exit was said."""


Phase = Joining | Pausing | Working | Stopping | Over


class AgentState(_Value, frozen=True):
    """One agent.

    Args:
        node: label of the node, for failures.
        local_world_size: workers of this node.
        stop_grace_seconds: time that workers have between being asked and being killed.
        rules: how nodes are let in and out.
        max_restarts: the run's failure budget, for the exit code.
        phase: where it stands.
    """

    node: str
    local_world_size: int
    stop_grace_seconds: float = 30.0
    rules: Rules = Rules()
    max_restarts: int = 0
    phase: Phase = Joining()


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


def _to(state: AgentState, phase: Phase) -> AgentState:
    return msgspec.structs.replace(state, phase=phase)


def _exit(state: AgentState, end: Exit, before: tuple[Action, ...] = ()) -> Decision:
    return Decision(_to(state, Over()), (*before, end), end.text)


@_in_phase.register
def _joining(phase: Joining, state: AgentState, event: Event) -> Decision:
    match event:
        case Sealed(assignment=seat) if seconds := backoff.pause_seconds(seat.failing):
            why = backoff.crash_loop(seat.failing, seconds)
            timer = StartBackoffTimer(seat.round, seconds, why)
            return Decision(_to(state, Pausing(seat)), (timer,), why)
        case Sealed(assignment=seat):
            return _start(state, seat)
        case JoinFailed() as failed:
            return _exit(state, exit_codes.of_join(failed, state.max_restarts))
        case Signal() | PreemptSignal():
            end = exit_codes.of_signal(event)
            return _exit(state, end, (Leave(end.text),))
        case AgentFailed(text=text):
            return _exit(state, Exit(EXIT_FAILED, text), (Leave(text),))
    return Decision(state)  # what else is told ends the join, whose answer says what it means


def _start(state: AgentState, seat: Assignment, *told: NodesWaiting | NoticesStand) -> Decision:
    reason = f"round {seat.round} is sealed: {seat.reason}"
    started = Decision(_to(state, Working(seat)), (StartWorkers(seat),), reason)
    for event in told:  # during the pause
        then = decide(started.state, event)
        actions = (*started.actions, *then.actions)
        started = Decision(then.state, actions, then.reason or started.reason)
    return started


@_in_phase.register
def _pausing(phase: Pausing, state: AgentState, event: Event) -> Decision:
    seat = phase.assignment
    match event:
        case BackoffOver() if event.round == seat.round:
            told = (NodesWaiting(phase.waiting), NoticesStand(phase.notices))
            return _start(state, seat, *told)
        case NodesWaiting(count=count):
            return Decision(_to(state, Pausing(seat, count, phase.notices)))
        case NoticesStand(notices=notices):
            return Decision(_to(state, Pausing(seat, phase.waiting, notices)))
        case RoundOpened(why=why) if _newer(event.incarnation, event.round, seat):
            return Decision(_to(state, Joining()), (Join(why),), _because_of(event))
        case Fenced(why=why) as fenced:
            if end := exit_codes.of_fence(fenced):
                return _exit(state, end)
            return Decision(_to(state, Joining()), (Join(f"was fenced: {why}"),), why)
        case RunClosed() if event.incarnation >= seat.incarnation:
            return _exit(state, exit_codes.of_run(event, state.max_restarts))
        case Signal() | PreemptSignal():
            end = exit_codes.of_signal(event)
            return _exit(state, end, (Leave(end.text),))
        case AgentFailed(text=text):
            return _exit(state, Exit(EXIT_FAILED, text), (Leave(text),))
    return Decision(state)


@_in_phase.register
def _working(phase: Working, state: AgentState, event: Event) -> Decision:
    seat = phase.assignment
    match event:
        case WorkerExited() if event.round == seat.round:
            return _worker_exited(phase, state, event)
        case WorkerHung() if event.round == seat.round:
            return _worker_hung(phase, state, event)
        case RoundOpened(why=why) if _newer(event.incarnation, event.round, seat):
            return _go_on(phase, state, Join(why), _because_of(event))
        case Fenced(why=why) as fenced:
            if end := exit_codes.of_fence(fenced):
                return _stop(state, end, end.text)
            join = Join(f"was fenced: {why}")
            return _go_on(phase, state, join, f"this node was fenced: {why}")
        case NodesWaiting() | NoticesStand() | AdmitDue() | WorkersSaved():
            outcome = membership_change.decide(phase.admission, state.rules, seat, event)
            return _admitted(phase, state, outcome)
        case RunClosed() if event.incarnation >= seat.incarnation:
            end = exit_codes.of_run(event, state.max_restarts)
            if event.finished:  # the others' work is done, and this node was not one of them
                end = Exit(EXIT_DONE, f"the run has finished without this node: {event.why}")
            return _stop(state, end, end.text)
        case Signal() as signal:
            outcome = membership_change.asked_to_go(
                phase.admission, state.rules, seat, exit_codes.of_signal(signal)
            )
            return _admitted(phase, state, outcome)
        case SignalToPassOn(name=name, number=number):
            return Decision(state, (PassOn(name, number),), f"{name} is passed on to the workers")
        case PreemptSignal() as signal:
            outcome = membership_change.will_go(
                phase.admission, state.rules, seat, exit_codes.of_signal(signal)
            )
            return _admitted(phase, state, outcome)
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
            end = exit_codes.of_run(event, state.max_restarts)
            return Decision(_to(state, Stopping(end, phase.signalled)), (), end.text)
        case Fenced() as fenced if isinstance(phase.then, Join):
            if replaced := exit_codes.of_fence(fenced):
                return Decision(_to(state, Stopping(replaced, phase.signalled)), (), replaced.text)
        case Signal() if phase.signalled:
            return Decision(state, (StopWorkers(0.0),), f"{event.name} again: no more grace")
        case Signal():
            end = exit_codes.of_signal(event)
            if isinstance(phase.then, Exit) and phase.then.code != EXIT_DONE:
                end = phase.then  # it is going anyway, and its failure is what counts
            leave = (Leave(f"received {event.name}"),)
            return Decision(_to(state, Stopping(end, True)), leave, f"received {event.name}")
        case SignalToPassOn(name=name, number=number):
            return Decision(state, (PassOn(name, number),), f"{name} is passed on to the workers")
        case PreemptSignal(name=name) if isinstance(phase.then, Join):
            return Decision(state, (GiveNotice(f"received {name}"),), f"{name}: gives notice")
        case AgentFailed(text=text) if isinstance(phase.then, Join):
            then = Stopping(Exit(EXIT_FAILED, text), phase.signalled)
            return Decision(_to(state, then), (Leave(text),), text)
    return Decision(state)  # what dies now is a consequence


def _worker_exited(phase: Working, state: AgentState, event: WorkerExited) -> Decision:
    if event.exit_code == 0:
        done = phase.done | {event.local_rank}
        if len(done) < state.local_world_size:
            return Decision(_to(state, msgspec.structs.replace(phase, done=done)))
        # case-D3: a node goes as soon as its own work is done; a finished node is never lost (F1)
        return _exit(state, Exit(EXIT_DONE), (Finish(), Leave("its work is done")))
    how = (event.exit_code, event.signal, event.at, "\n".join(event.lines))
    return _worker_failed(phase, state, event.local_rank, *how)


def _worker_hung(phase: Working, state: AgentState, event: WorkerHung) -> Decision:
    still = f"no step for {event.still_seconds:.0f} s, the last was step {event.step}"
    message = "\n".join((*event.lines, still))
    return _worker_failed(phase, state, event.local_rank, None, "", event.at, message)


def _worker_failed(
    phase: Working,
    state: AgentState,
    local_rank: int,
    exit_code: int | None,
    signal: str,
    at: str,
    message: str,
) -> Decision:
    seat = phase.assignment
    rank = seat.worker_offset + local_rank
    failure = Failure(
        state.node, rank, local_rank, exit_code, signal, at, message, round=seat.round
    )
    join = Join(f"its worker failed: {failure.label}", told=True)
    return _go_on(phase, state, join, failure.label, (ReportFailure(failure),))


def _admitted(phase: Working, state: AgentState, outcome: Outcome) -> Decision:
    after = msgspec.structs.replace(phase, admission=outcome.admission)
    if outcome.then is None:
        return Decision(_to(state, after), outcome.actions, outcome.reason)
    if isinstance(outcome.then, Join):
        return _stop(state, outcome.then, outcome.reason)
    return _leave(state, outcome.then, outcome.reason)


def _go_on(
    phase: Working, state: AgentState, then: Join, reason: str, tell: tuple[ReportFailure, ...] = ()
) -> Decision:
    """The round is over: stop for the next one, or for good if this node leaves anyway."""
    end = membership_change.end_of(phase.admission)
    return _stop(state, then, reason, tell) if end is None else _leave(state, end, reason, tell)


def _leave(
    state: AgentState, end: Exit, reason: str, tell: tuple[ReportFailure, ...] = ()
) -> Decision:
    return _stop(state, end, reason, (*tell, Leave(end.text)), signalled=True)


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
    before = tuple(each for each in tell if isinstance(each, ReportFailure))
    after = tuple(each for each in tell if isinstance(each, Leave))
    return Decision(_to(state, Stopping(then, signalled)), (*before, stop, *after), reason)


def _newer(incarnation: int, number: int, seat: Assignment) -> bool:
    return (incarnation, number) > (seat.incarnation, seat.round)


def _because_of(event: RoundOpened) -> str:
    return f"round {event.round} opens: {event.why}"
