"""The agent's loop: one queue of events in, the policy's actions out.

Everything that happens (what the coordinator pushed, a worker's exit, a timer, a signal, the
end of a join) is put in one queue by whoever saw it; the loop takes one at a time, asks
`policy.decide`, and does what it says. A join runs in a thread of its own, so that a signal
acts at once during it. The loop owns all state: no lock.

However the loop ends, its workers are ended and its node leaves; it never closes a run (C9).
"""

import queue
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from rallypoint.agent import events, policy
from rallypoint.agent.environment import WorkerContext, worker_environment
from rallypoint.agent.guard import Guard
from rallypoint.agent.handlers import AgentHandler, Round
from rallypoint.agent.output import OutputPlan
from rallypoint.agent.processes import Ended, Spec, WorkerGroup, now_text
from rallypoint.agent.report import WaitingLines, complain, final_report, say
from rallypoint.agent.signals import signals_to
from rallypoint.errors import (
    ParameterError,
    RallypointError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.rendezvous.coordinator import View
from rallypoint.rendezvous.core.state import Failure

LEAVE_SECONDS = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_JOIN_ERRORS: tuple[tuple[type[Exception], events.JoinError], ...] = (
    (RendezvousGracefulExitError, events.JoinError.NOT_NEEDED),
    (RendezvousClosedError, events.JoinError.CLOSED),
    (RendezvousTimeoutError, events.JoinError.TIMEOUT),
    (RendezvousConnectionError, events.JoinError.CONNECTION),
    (RendezvousStateError, events.JoinError.REFUSED),
)


class AgentConfig(msgspec.Struct, frozen=True):
    """What an agent is asked to run.

    Args:
        argv: the workers' command.
        context: what their environments share.
        output: where their output goes.
        node: label of this node in failures.
        base_env: environment that the workers inherit.
        stop_grace_seconds: between SIGTERM and SIGKILL.
        admit_seconds: wait after a newcomer, so that several give one new round.
        examine: looks for what keeps the nodes apart, when a join takes long (see WaitingLines).
        worker_token: makes the workers' token when they are started, since the nodes' own may
            be exchanged meanwhile; None: the one of `context`.
    """

    argv: tuple[str, ...]
    context: WorkerContext
    output: OutputPlan
    node: str
    base_env: Mapping[str, str]
    stop_grace_seconds: float = 30.0
    admit_seconds: float = 0.1
    examine: Callable[[], str] | None = None
    worker_token: Callable[[], str] | None = None


def events_of(view: View, before: View) -> list[events.Event]:
    """Return what a view tells that the one before it did not.

    A round that was opened is told each time: the policy knows by its number what is old.
    """
    told: list[events.Event] = []
    if view.error is not None and before.error is None:
        told.append(events.AgentFailed(f"lost touch with the coordinator: {view.error}"))
    if view.fenced is not None and view.fenced is not before.fenced:
        told.append(events.Fenced(view.fenced.why))
    if view.closed is not None and view.closed != before.closed:
        c = view.closed
        told.append(events.RunClosed(c.incarnation, c.by, c.why, c.finished, c.failures))
    if view.opened is not None:
        o = view.opened
        told.append(events.RoundOpened(o.incarnation, o.round, o.why, o.lost))
    if view.waiting != before.waiting:
        told.append(events.NodesWaiting(view.waiting))
    return told


class Agent:
    """One node's agent; `run` is called once, from the main thread if signals are to act."""

    def __init__(self, config: AgentConfig, handler: AgentHandler) -> None:
        self._config = config
        self._handler = handler
        self._inbox: queue.SimpleQueue[events.Event | View | Round] = queue.SimpleQueue()
        self._pending: deque[events.Event] = deque()
        self._state = policy.AgentState(
            node=config.node,
            local_world_size=config.context.local_world_size,
            stop_grace_seconds=config.stop_grace_seconds,
            admit_seconds=config.admit_seconds,
        )
        self._seen = View()
        self._fenced_at_join = self._seen.fenced
        self._round: Round | None = None
        self._workers: WorkerGroup | None = None
        self._waiting: WaitingLines | None = None
        self._failures: list[Failure] = []
        self._left = False

    def run(self) -> int:
        """Take part until the run ends or this node goes; return the exit code."""
        unwatch = self._handler.on_change(self._inbox.put)
        try:
            with Guard(complain) as self._guard, signals_to(self._signalled, SIGNALS):
                try:
                    return self._loop()
                finally:
                    self._end_workers()
        except RallypointError as error:
            complain(str(error))
            return policy.EXIT_FAILED
        except Exception:  # a fault of ours is a leave, and is shown whole
            complain(f"internal error, this node leaves:\n{traceback.format_exc()}")
            return policy.EXIT_FAILED
        finally:
            unwatch()
            self._leave("its agent ends")

    def _signalled(self, number: signal.Signals) -> None:
        self._inbox.put(events.Signal(number.name, number))

    def _loop(self) -> int:
        decision = policy.begin(self._state)
        while True:
            self._state = decision.state
            for action in decision.actions:
                if isinstance(action, events.Exit):
                    return self._exit(action)
                self._do(action)
            decision = policy.decide(self._state, self._next_event())

    def _next_event(self) -> events.Event:
        while not self._pending:
            item = self._inbox.get()
            if isinstance(item, View):
                self._pending.extend(events_of(item, self._seen))
                self._seen = item
            elif isinstance(item, Round):
                self._pending.extend(self._sealed(item))
            else:
                self._pending.append(item)
        return self._pending.popleft()

    def _sealed(self, sealed: Round) -> list[events.Event]:
        self._end_waiting()
        self._round = sealed
        # what was pushed after the sealing may have come before the join's answer
        view, before = self._handler.view(), View(fenced=self._fenced_at_join)
        self._seen = view
        return [events.Sealed(sealed.assignment), *events_of(view, before)]

    def _do(self, action: events.Action) -> None:
        match action:
            case events.Join(why=why):
                self._join(why)
            case events.StartWorkers() if self._round is not None:
                self._start_workers(self._round)
            case events.StopWorkers(grace_seconds=grace):
                self._stop_workers(grace)
            case events.ReportFailure(failure=failure):
                self._report_failure(failure)
            case events.Finish():
                self._finish()
            case events.Leave(why=why):
                self._leave(why)
            case events.StartAdmitTimer(round=number, seconds=seconds):
                timer = threading.Timer(seconds, self._inbox.put, [events.AdmitDue(number)])
                timer.daemon = True
                timer.start()

    # -- joining ----------------------------------------------------------------------

    def _join(self, why: str) -> None:
        if why:
            say(f"joining the next round: {why}")
        self._fenced_at_join = self._handler.view().fenced
        self._waiting = WaitingLines(self._handler.waiting_reason, examine=self._config.examine)
        self._waiting.start()
        body = threading.Thread(
            target=self._ask_for_round, args=[why], name="rallypoint-join", daemon=True
        )
        body.start()

    def _ask_for_round(self, why: str) -> None:
        try:
            self._inbox.put(self._handler.next_round(why))
        except BaseException as error:  # handed to the policy, whatever it is
            self._inbox.put(self._join_failed(error))

    def _join_failed(self, error: BaseException) -> events.JoinFailed:
        kind = events.JoinError.OTHER
        for error_type, name in _JOIN_ERRORS:
            if isinstance(error, error_type):
                kind = name
                break
        text = str(error)
        if not isinstance(error, RallypointError):
            text = "".join(traceback.format_exception(error))
        closed = self._handler.view().closed
        failures = closed.failures if closed is not None and not closed.finished else ()
        return events.JoinFailed(kind, text, failures)

    def _end_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None

    # -- workers ----------------------------------------------------------------------

    def _start_workers(self, sealed: Round) -> None:
        context, seat = self._config.context, sealed.assignment
        if self._config.worker_token is not None:
            context = msgspec.structs.replace(context, token=self._config.worker_token())
        if seat.size > 1 or seat.round > 1:
            say(f"round {seat.round}: rank {seat.rank} of {seat.size} nodes ({seat.reason})")
        specs, outputs = [], []
        for local_rank in range(context.local_world_size):
            env = worker_environment(
                self._config.base_env, context, seat, local_rank, sealed.master
            )
            specs.append(Spec(local_rank, self._config.argv, env))
            rank = seat.worker_offset + local_rank
            outputs.append(self._config.output.worker(context.run_id, seat.round, rank, local_rank))
        self._workers = WorkerGroup(
            self._exit_sink(seat.round), self._background_failed, self._guard.forget
        )
        try:
            self._workers.start(specs, outputs)
        except ParameterError as error:
            self._inbox.put(events.AgentFailed(str(error)))
        self._guard.watch(self._workers.pids)

    def _exit_sink(self, number: int) -> Callable[[Ended], None]:
        def put(ended: Ended) -> None:
            self._inbox.put(
                events.WorkerExited(
                    number, ended.local_rank, ended.exit_code, ended.signal, now_text(), ended.lines
                )
            )

        return put

    def _background_failed(self, error: BaseException) -> None:
        self._inbox.put(events.AgentFailed("".join(traceback.format_exception(error))))

    def _stop_workers(self, grace_seconds: float) -> None:
        if self._workers is None:
            self._inbox.put(events.WorkersStopped())
            return
        group = self._workers

        def stopped(stuck: tuple[int, ...]) -> None:
            self._warn_stuck(stuck)
            self._inbox.put(events.WorkersStopped(stuck))

        group.stop(grace_seconds, stopped)

    def _end_workers(self) -> None:
        if self._workers is not None:
            self._warn_stuck(self._workers.kill())

    def _warn_stuck(self, stuck: tuple[int, ...]) -> None:
        if stuck:
            complain(f"could not end these processes, going on without: {list(stuck)}")

    # -- the coordinator --------------------------------------------------------------

    def _report_failure(self, failure: Failure) -> None:
        self._failures.append(failure)
        try:
            self._handler.fail(failure)
        except RallypointError as error:
            complain(f"the others could not be told of a failed worker: {error}")

    def _finish(self) -> None:
        try:
            self._handler.finish()
        except RallypointError as error:
            complain(f"work is done, but the coordinator could not be told: {error}")

    def _leave(self, why: str) -> None:
        if self._left:
            return
        self._left = True
        told = threading.Thread(target=self._say_leave, args=[why], daemon=True)
        told.start()
        told.join(LEAVE_SECONDS)  # a signal must not wait for a server that is gone
        if told.is_alive():
            say(f"left without an answer of the coordinator in {LEAVE_SECONDS:g} s")

    def _say_leave(self, why: str) -> None:
        try:
            self._handler.leave(why)
        except RallypointError as error:
            say(f"left without a word to the coordinator: {error}")

    def _exit(self, end: events.Exit) -> int:
        self._end_waiting()
        text = final_report(end, self._failures)
        if text:
            complain(text)
        elif end.text:
            say(end.text)
        return end.code
