"""What an agent does about each event. PURE.

    decide(state, event) -> Decision(state, actions, reason)

An agent is in one of five phases, and one function per phase handles all events:

    Joining    a join is in progress; no worker runs
    Pausing    a round is sealed; its workers start after a backoff pause
    Working    the workers of a round run
    Stopping   workers are being stopped; `then` says what follows: the next join, or the exit
    Over       Exit was decided; every event is ignored

The first cause wins: what ends the round for this node first (a failed worker, a lost node, a
fence, a signal) is the reported reason, and later worker exits are its consequences. Two
events override it while the workers stop, since they change what follows: the run is closed,
or this agent receives a signal.

The coordinator, not the agent, enforces the restart budget (rule B1): it counts failed rounds
and closes the run. An agent never closes a run (rule L3).
"""

from functools import singledispatch

import msgspec

from rallypoint import backoff
from rallypoint.agent.policy import events, exit_codes, membership_change
from rallypoint.agent.policy.exit_codes import EXIT_DONE, EXIT_FAILED
from rallypoint.agent.policy.membership_change import MembershipRules, MembershipState, Outcome
from rallypoint.core.events import Assignment
from rallypoint.core.state import Failure


class _Value(msgspec.Struct, frozen=True):
    """Base of the states."""


# -- state --------------------------------------------------------------------------------


class Joining(_Value, frozen=True):
    """A join is in progress."""


class Pausing(_Value, frozen=True):
    """The round is sealed; its workers start after a pause (`rallypoint.backoff`)."""

    assignment: Assignment
    waiting: int = 0
    notices: tuple[events.Notice, ...] = ()


class Working(_Value, frozen=True):
    """Workers run.

    Args:
        assignment: this node's ranks in the round.
        done: local ranks of the workers that succeeded.
        membership: changes that wait for the workers to save.
    """

    assignment: Assignment
    done: frozenset[int] = frozenset()
    membership: MembershipState = MembershipState()


class Stopping(_Value, frozen=True):
    """Workers are being stopped; `then` follows."""

    then: events.Join | events.Exit
    signalled: bool = False


class Over(_Value, frozen=True):
    """Exit was decided."""


Phase = Joining | Pausing | Working | Stopping | Over


class AgentState(_Value, frozen=True):
    """One agent.

    Args:
        node: label of the node, for failures.
        local_world_size: number of workers on this node.
        stop_grace_seconds: from SIGTERM to SIGKILL.
        rules: when membership changes happen.
        max_restarts: the run's restart budget, for the exit code.
        phase: what the agent is doing.
    """

    node: str
    local_world_size: int
    stop_grace_seconds: float = 30.0
    rules: MembershipRules = MembershipRules()
    max_restarts: int = 0
    phase: Phase = Joining()


class Decision(_Value, frozen=True):
    """The result of an event. Actions are carried out in order."""

    state: AgentState
    actions: tuple[events.Action, ...] = ()
    reason: str = ""


def begin(state: AgentState) -> Decision:
    """Return the first decision of an agent: join."""
    return Decision(_to(state, Joining()), (events.Join(""),), "joining")


def decide(state: AgentState, event: events.Event) -> Decision:
    """Return what an agent in `state` does about `event`."""
    return _in_phase(state.phase, state, event)


@singledispatch
def _in_phase(_phase: object, state: AgentState, _event: events.Event) -> Decision:
    return Decision(state)


def _to(state: AgentState, phase: Phase) -> AgentState:
    return msgspec.structs.replace(state, phase=phase)


def _exit(state: AgentState, end: events.Exit, before: tuple[events.Action, ...] = ()) -> Decision:
    return Decision(_to(state, Over()), (*before, end), end.text)


@_in_phase.register
def _joining(phase: Joining, state: AgentState, event: events.Event) -> Decision:
    match event:
        case events.Sealed(assignment=seat) if seconds := backoff.pause_seconds(seat.failing):
            why = backoff.crash_loop(seat.failing, seconds)
            timer = events.StartBackoffTimer(seat.round, seconds, why)
            return Decision(_to(state, Pausing(seat)), (timer,), why)
        case events.Sealed(assignment=seat):
            return _start(state, seat)
        case events.JoinFailed() as failed:
            return _exit(state, exit_codes.of_join(failed, state.max_restarts))
        case events.Signal() | events.PreemptSignal():
            end = exit_codes.of_signal(event)
            return _exit(state, end, (events.Leave(end.text),))
        case events.AgentFailed(text=text):
            return _exit(state, events.Exit(EXIT_FAILED, text), (events.Leave(text),))
    return Decision(state)  # other events end the join too, and its answer says why


def _start(
    state: AgentState, seat: Assignment, *missed: events.NodesWaiting | events.NoticesChanged
) -> Decision:
    reason = f"round {seat.round} is sealed: {seat.reason}"
    started = Decision(_to(state, Working(seat)), (events.StartWorkers(seat),), reason)
    for event in missed:  # during the pause
        then = decide(started.state, event)
        actions = (*started.actions, *then.actions)
        started = Decision(then.state, actions, then.reason or started.reason)
    return started


@_in_phase.register
def _pausing(phase: Pausing, state: AgentState, event: events.Event) -> Decision:
    seat = phase.assignment
    match event:
        case events.BackoffElapsed() if event.round == seat.round:
            missed = (events.NodesWaiting(phase.waiting), events.NoticesChanged(phase.notices))
            return _start(state, seat, *missed)
        case events.NodesWaiting(count=count):
            return Decision(_to(state, Pausing(seat, count, phase.notices)))
        case events.NoticesChanged(notices=notices):
            return Decision(_to(state, Pausing(seat, phase.waiting, notices)))
        case events.RoundOpened(why=why) if _newer(event.incarnation, event.round, seat):
            return Decision(_to(state, Joining()), (events.Join(why),), _reason_of(event))
        case events.Fenced(why=why) as fenced:
            if end := exit_codes.of_fence(fenced):
                return _exit(state, end)
            return Decision(_to(state, Joining()), (events.Join(f"was fenced: {why}"),), why)
        case events.RunClosed() if event.incarnation >= seat.incarnation:
            return _exit(state, exit_codes.of_run(event, state.max_restarts))
        case events.Signal() | events.PreemptSignal():
            end = exit_codes.of_signal(event)
            return _exit(state, end, (events.Leave(end.text),))
        case events.AgentFailed(text=text):
            return _exit(state, events.Exit(EXIT_FAILED, text), (events.Leave(text),))
    return Decision(state)


@_in_phase.register
def _working(phase: Working, state: AgentState, event: events.Event) -> Decision:
    seat = phase.assignment
    match event:
        case events.WorkerExited() if event.round == seat.round:
            return _worker_exited(phase, state, event)
        case events.WorkerHung() if event.round == seat.round:
            return _worker_hung(phase, state, event)
        case events.RoundOpened(why=why) if _newer(event.incarnation, event.round, seat):
            return _stop_for_next(phase, state, events.Join(why), _reason_of(event))
        case events.Fenced(why=why) as fenced:
            if end := exit_codes.of_fence(fenced):
                return _stop(state, end, end.text)
            join = events.Join(f"was fenced: {why}")
            return _stop_for_next(phase, state, join, f"this node was fenced: {why}")
        case (
            events.NodesWaiting()
            | events.NoticesChanged()
            | events.ChangeTimerElapsed()
            | events.WorkersSaved()
        ):
            outcome = membership_change.decide(phase.membership, state.rules, seat, event)
            return _membership_changed(phase, state, outcome)
        case events.RunClosed() if event.incarnation >= seat.incarnation:
            end = exit_codes.of_run(event, state.max_restarts)
            if event.finished:  # the other nodes succeeded before this node did
                end = events.Exit(EXIT_DONE, f"the run has finished without this node: {event.why}")
            return _stop(state, end, end.text)
        case events.Signal() as signal:
            outcome = membership_change.asked_to_leave(
                phase.membership, state.rules, seat, exit_codes.of_signal(signal)
            )
            return _membership_changed(phase, state, outcome)
        case events.SignalToForward(name=name, number=number):
            return _forward(state, name, number)
        case events.PreemptSignal() as signal:
            outcome = membership_change.will_leave(
                phase.membership, state.rules, seat, exit_codes.of_signal(signal)
            )
            return _membership_changed(phase, state, outcome)
        case events.AgentFailed(text=text):
            return _stop(state, events.Exit(EXIT_FAILED, text), text, (events.Leave(text),))
    return Decision(state)


@_in_phase.register
def _stopping(phase: Stopping, state: AgentState, event: events.Event) -> Decision:
    match event:
        case events.WorkersStopped():
            if isinstance(phase.then, events.Exit):
                return _exit(state, phase.then)
            return Decision(_to(state, Joining()), (phase.then,), phase.then.why)
        case events.RunClosed() if isinstance(phase.then, events.Join):
            end = exit_codes.of_run(event, state.max_restarts)
            return Decision(_to(state, Stopping(end, phase.signalled)), (), end.text)
        case events.Fenced() as fenced if isinstance(phase.then, events.Join):
            if replaced := exit_codes.of_fence(fenced):
                return Decision(_to(state, Stopping(replaced, phase.signalled)), (), replaced.text)
        case events.Signal() if phase.signalled:
            return Decision(
                state, (events.StopWorkers(0.0),), f"{event.name} again: the grace period ends"
            )
        case events.Signal():
            end = exit_codes.of_signal(event)
            if isinstance(phase.then, events.Exit) and phase.then.code != EXIT_DONE:
                end = phase.then  # it exits anyway, and its failure determines the exit code
            leave = (events.Leave(f"received {event.name}"),)
            return Decision(_to(state, Stopping(end, True)), leave, f"received {event.name}")
        case events.SignalToForward(name=name, number=number):
            return _forward(state, name, number)
        case events.PreemptSignal(name=name) if isinstance(phase.then, events.Join):
            return Decision(
                state, (events.GiveNotice(f"received {name}"),), f"{name}: announces that it leaves"
            )
        case events.AgentFailed(text=text) if isinstance(phase.then, events.Join):
            then = Stopping(events.Exit(EXIT_FAILED, text), phase.signalled)
            return Decision(_to(state, then), (events.Leave(text),), text)
    return Decision(state)  # a worker that exits now is a consequence


def _forward(state: AgentState, name: str, number: int) -> Decision:
    return Decision(
        state, (events.ForwardSignal(name, number),), f"{name} is forwarded to the workers"
    )


def _worker_exited(phase: Working, state: AgentState, event: events.WorkerExited) -> Decision:
    if event.exit_code == 0:
        done = phase.done | {event.local_rank}
        if len(done) < state.local_world_size:
            return Decision(_to(state, msgspec.structs.replace(phase, done=done)))
        # case-D3: a node goes as soon as its own work is done; a finished node is never lost (F1)
        return _exit(
            state, events.Exit(EXIT_DONE), (events.Finish(), events.Leave("its work is done"))
        )
    how = (event.exit_code, event.signal, event.at, "\n".join(event.lines))
    return _worker_failed(phase, state, event.local_rank, *how)


def _worker_hung(phase: Working, state: AgentState, event: events.WorkerHung) -> Decision:
    still = f"no progress for {event.still_seconds:.0f} s; the last step was {event.step}"
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
    join = events.Join(f"a worker of this node failed: {failure.label}", announced=True)
    return _stop_for_next(phase, state, join, failure.label, (events.ReportFailure(failure),))


def _membership_changed(phase: Working, state: AgentState, outcome: Outcome) -> Decision:
    after = msgspec.structs.replace(phase, membership=outcome.membership)
    if outcome.then is None:
        return Decision(_to(state, after), outcome.actions, outcome.reason)
    if isinstance(outcome.then, events.Join):
        return _stop(state, outcome.then, outcome.reason)
    return _leave(state, outcome.then, outcome.reason)


def _stop_for_next(
    phase: Working,
    state: AgentState,
    then: events.Join,
    reason: str,
    reports: tuple[events.ReportFailure, ...] = (),
) -> Decision:
    """Stop the workers because the round is over; exit if this node is leaving anyway."""
    end = membership_change.end_of(phase.membership)
    if end is None:
        return _stop(state, then, reason, reports)
    return _leave(state, end, reason, reports)


def _leave(
    state: AgentState, end: events.Exit, reason: str, reports: tuple[events.ReportFailure, ...] = ()
) -> Decision:
    return _stop(state, end, reason, (*reports, events.Leave(end.text)), signalled=True)


def _stop(
    state: AgentState,
    then: events.Join | events.Exit,
    reason: str,
    reports: tuple[events.ReportFailure | events.Leave, ...] = (),
    *,
    signalled: bool = False,
) -> Decision:
    """Report a failure first; stop the workers before a leave, which may block."""
    stop = events.StopWorkers(state.stop_grace_seconds)
    before = tuple(each for each in reports if isinstance(each, events.ReportFailure))
    after = tuple(each for each in reports if isinstance(each, events.Leave))
    return Decision(_to(state, Stopping(then, signalled)), (*before, stop, *after), reason)


def _newer(incarnation: int, number: int, seat: Assignment) -> bool:
    return (incarnation, number) > (seat.incarnation, seat.round)


def _reason_of(event: events.RoundOpened) -> str:
    return f"round {event.round} opens: {event.why}"
