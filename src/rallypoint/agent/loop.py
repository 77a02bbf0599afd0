"""The agent's loop: takes events from one queue and carries out the policy's actions.

Every event (a message of the coordinator, a worker's exit, a timer, a signal, the end of a
join) is put into one queue. The loop takes one at a time, calls `policy.decisions.decide`, and
carries out the actions. Only the loop changes the state, so it needs no lock.

However the loop ends, it kills its workers and its node leaves; it never closes a run (case-C9).
"""

import queue
import signal
import threading
import traceback
from collections import deque

from rallypoint.agent.config import AgentConfig
from rallypoint.agent.health_server import HealthServer
from rallypoint.agent.join.coordinator_reports import CoordinatorReports
from rallypoint.agent.join.handlers import AgentHandler, SealedRound
from rallypoint.agent.join.joining import HealthCheck, Joiner
from rallypoint.agent.policy import decisions, events, exit_codes
from rallypoint.agent.policy.view_events import ViewTracker
from rallypoint.agent.reporting.console import complain, say
from rallypoint.agent.reporting.event_log import EventLog
from rallypoint.agent.reporting.messages import final_report, stopping_line
from rallypoint.agent.signals import signals_to
from rallypoint.agent.workers.group import WorkerGroup
from rallypoint.agent.workers.save_requests import SaveRequests
from rallypoint.core.state import Failure
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.rendezvous.view import View

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Agent:
    """One node's agent. Signals are handled only if `run` is called in the main thread."""

    def __init__(self, config: AgentConfig, handler: AgentHandler) -> None:
        self._config = config
        self._handler = handler
        self._inbox: queue.SimpleQueue[events.Event | View | SealedRound] = queue.SimpleQueue()
        self._pending: deque[events.Event] = deque()
        self._state = decisions.AgentState(
            node=config.node,
            local_world_size=config.context.local_world_size,
            stop_grace_seconds=config.stop_grace_seconds,
            rules=config.rules,
            max_restarts=config.context.max_restarts,
        )
        self._views = ViewTracker()
        self._round: SealedRound | None = None
        self._failures: list[Failure] = []
        self._stopping: events.Event | None = None  # the signal that stops the workers
        self._reports = CoordinatorReports(handler, config.close_seconds)

    def run(self) -> int:
        """Take part until the run ends or this node leaves; return the exit code."""
        config, watch, put = self._config, self._config.supervision, self._inbox.put
        unwatch = self._handler.on_change(put)
        try:
            with (
                EventLog(watch.events_file, config.context.run_id, config.node) as self._event_log,
                HealthServer(watch.health) as self._health,
                WorkerGroup(config, put) as self._workers,
                SaveRequests(
                    config.worker_store, put, self._send_admit_signal
                ) as self._save_requests,
                signals_to(self._signalled, self._signals()),
            ):
                self._joiner = self._make_joiner()
                return self._loop()
        except ParameterError as error:  # a file or port in the configuration is unusable
            complain(str(error))
            return exit_codes.EXIT_USAGE
        except RallypointError as error:
            complain(str(error))
            return exit_codes.EXIT_FAILED
        except Exception:  # an internal error
            complain(f"internal error, this node leaves:\n{traceback.format_exc()}")
            return exit_codes.EXIT_FAILED
        finally:
            unwatch()
            self._reports.leave("its agent ends")

    def _make_joiner(self) -> Joiner:
        config, watch = self._config, self._config.supervision
        health_check = None
        if watch.health_check:
            health_check = HealthCheck(
                watch.health_check,
                watch.health_check_seconds,
                config.base_env,
                self._workers.reaper.watch,
                self._workers.reaper.forget,
            )
        return Joiner(
            self._handler, self._inbox.put, config.join_seconds, health_check, config.examine
        )

    def _send_admit_signal(self) -> None:
        if self._config.admit_signal:
            self._workers.send(signal.Signals[self._config.admit_signal])

    # -- signals ----------------------------------------------------------------------

    def _signals(self) -> tuple[signal.Signals, ...]:
        plan = self._config.supervision.signals
        more = [*plan.forwarded, *([plan.preempt] if plan.preempt else [])]
        return tuple(dict.fromkeys((*SIGNALS, *(signal.Signals[name] for name in more))))

    def _signalled(self, number: signal.Signals) -> None:
        plan = self._config.supervision.signals
        if number.name in plan.forwarded:
            self._inbox.put(events.SignalToForward(number.name, number))
        elif number.name == plan.preempt:
            self._inbox.put(events.PreemptSignal(number.name, number))
        else:
            self._reports.interrupt()
            self._inbox.put(events.Signal(number.name, number))

    # -- the loop ---------------------------------------------------------------------

    def _loop(self) -> int:
        decision = decisions.begin(self._state)
        event: events.Event | None = None
        while True:
            self._event_log.record(event, decision)
            if line := stopping_line(event, decision):
                say(line)
                self._stopping = event
            self._state = decision.state
            self._health.show(decision.state)
            for action in decision.actions:
                if isinstance(action, events.Exit):
                    return self._exit(action)
                self._do(action)
            event = self._next_event()
            decision = decisions.decide(self._state, event)

    def _next_event(self) -> events.Event:
        while not self._pending:
            self._health.idle()
            item = self._inbox.get()
            if isinstance(item, View):
                self._pending.extend(self._views.changed(item, self._handler.node_id()))
            elif isinstance(item, SealedRound):
                self._pending.extend(self._sealed(item))
            else:
                self._pending.append(item)
        return self._pending.popleft()

    def _sealed(self, sealed: SealedRound) -> list[events.Event]:
        self._joiner.end()
        self._round = sealed
        view, node = self._handler.view(), self._handler.node_id()
        return self._views.sealed(sealed.assignment, view, node)

    def _do(self, action: events.Action) -> None:
        match action:
            case events.Join(why=why, announced=announced):
                self._views.joins(self._handler.view())
                self._joiner.begin(why, announced)
            case events.StartWorkers() if self._round is not None:
                self._start_workers(self._round)
            case events.StopWorkers(grace_seconds=grace):
                self._workers.stop(grace)
            case events.ForwardSignal(number=number):
                self._workers.send(number)
            case events.ReportFailure(failure=failure):
                self._report_failure(failure)
            case events.Finish():
                self._reports.finish()
            case events.Leave(why=why):
                self._reports.leave(why)
            case events.GiveNotice(why=why, seconds=seconds):
                self._give_notice(why, seconds)
            case events.AskToSave():
                self._save_requests.ask(action)
            case events.CancelChange():
                self._save_requests.cancel()
            case events.ReleaseWorkers():
                self._save_requests.release(action)
            case events.StartChangeTimer(round=number, seconds=seconds, timer=timer):
                self._later(seconds, events.ChangeTimerElapsed(number, timer))
            case events.StartBackoffTimer(round=number, seconds=seconds, why=why):
                say(why)
                self._later(seconds, events.BackoffElapsed(number))

    def _start_workers(self, sealed: SealedRound) -> None:
        self._save_requests.cancel()  # an announcement for the previous round is void
        self._workers.start(sealed, self._save_requests.environment())

    def _later(self, seconds: float, event: events.Event) -> None:
        timer = threading.Timer(seconds, self._inbox.put, [event])
        timer.daemon = True
        timer.start()

    # -- the coordinator --------------------------------------------------------------

    def _report_failure(self, failure: Failure) -> None:
        self._failures.append(failure)
        say(f"a worker of this node failed: {failure.label}")
        gone = self._config.alone and not self._handler.view().connected
        told = not gone and self._reports.fail(failure)
        if self._config.alone and not told:
            self._reports.give_up()
            text = "a worker failed, and the server could not be notified"
            self._inbox.put(events.AgentFailed(text))

    def _give_notice(self, why: str, seconds: float | None) -> None:
        say(f"this node will leave soon: {why}; notifying all nodes")

        def tell() -> None:
            try:
                self._handler.notice(why, seconds)
            except RallypointError as error:
                complain(f"the others could not be notified that this node will leave: {error}")

        threading.Thread(target=tell, name="rallypoint-notice", daemon=True).start()

    def _exit(self, end: events.Exit) -> int:
        self._joiner.end()
        text = final_report(end, self._failures)
        if text:
            complain(text)
        elif isinstance(self._stopping, events.Signal) and end.code >= exit_codes.EXIT_SIGNAL_BASE:
            say(f"stopped by {self._stopping.name}")
        elif end.text:
            say(end.text)
        return end.code
