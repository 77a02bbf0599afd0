"""The agent's loop: one queue of events in, the policy's actions out.

Everything that happens (what the coordinator pushed, a worker's exit, a timer, a signal, the
end of a join) is put in one queue by whoever saw it; the loop takes one at a time, asks
`policy.decide`, and does what it says. The loop owns all state: no lock.

However the loop ends, its workers are ended and its node leaves; it never closes a run (case-C9).
"""

import queue
import signal
import threading
import traceback
from collections import deque

from rallypoint.agent.config import AgentConfig
from rallypoint.agent.health_server import HealthEndpoint
from rallypoint.agent.join.departures import Farewell
from rallypoint.agent.join.handlers import AgentHandler, Round
from rallypoint.agent.join.health_check import Checkup
from rallypoint.agent.join.joining import Joining
from rallypoint.agent.policy import decisions, events
from rallypoint.agent.policy.view_events import ViewTracker
from rallypoint.agent.reporting import exit_codes
from rallypoint.agent.reporting.event_log import Journal
from rallypoint.agent.reporting.messages import stopping_line
from rallypoint.agent.reporting.report import complain, final_report, say
from rallypoint.agent.signals import signals_to
from rallypoint.agent.workers.group import Crew
from rallypoint.agent.workers.save_requests import Changes
from rallypoint.core.state import Failure
from rallypoint.errors import ParameterError, RallypointError
from rallypoint.rendezvous.view import View

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Agent:
    """One node's agent; `run` is called once, from the main thread if signals are to act."""

    def __init__(self, config: AgentConfig, handler: AgentHandler) -> None:
        self._config = config
        self._handler = handler
        self._inbox: queue.SimpleQueue[events.Event | View | Round] = queue.SimpleQueue()
        self._pending: deque[events.Event] = deque()
        self._state = decisions.AgentState(
            node=config.node,
            local_world_size=config.context.local_world_size,
            stop_grace_seconds=config.stop_grace_seconds,
            rules=config.rules,
            max_restarts=config.context.max_restarts,
        )
        self._views = ViewTracker()
        self._round: Round | None = None
        self._failures: list[Failure] = []
        self._farewell = Farewell(handler, config.close_seconds)

    def run(self) -> int:
        """Take part until the run ends or this node goes; return the exit code."""
        config, put = self._config, self._inbox.put
        unwatch = self._handler.on_change(put)
        try:
            with (
                Journal(config.events_file, config.context.run_id, config.node) as self._journal,
                HealthEndpoint(config.health) as self._health,
                Crew(config, put) as self._crew,
                Changes(config.worker_store, put, self._call_workers) as self._changes,
                signals_to(self._signalled, self._signals()),
            ):
                self._joining = self._make_joining()
                return self._loop()
        except ParameterError as error:  # a file or port that was asked for cannot be had
            complain(str(error))
            return exit_codes.EXIT_USAGE
        except RallypointError as error:
            complain(str(error))
            return exit_codes.EXIT_FAILED
        except Exception:  # a fault of ours is a leave, and is shown whole
            complain(f"internal error, this node leaves:\n{traceback.format_exc()}")
            return exit_codes.EXIT_FAILED
        finally:
            unwatch()
            self._farewell.leave("its agent ends")

    def _make_joining(self) -> Joining:
        config, checkup = self._config, None
        if config.health_check:
            guard = self._crew.guard
            how = (config.health_check, config.health_check_seconds, config.base_env)
            checkup = Checkup(*how, guard.watch, guard.forget)
        put, seconds = self._inbox.put, config.join_seconds
        return Joining(self._handler, put, seconds, checkup, config.examine)

    def _call_workers(self) -> None:
        if self._config.admit_signal:
            self._crew.pass_on(signal.Signals[self._config.admit_signal])

    # -- signals ----------------------------------------------------------------------

    def _signals(self) -> tuple[signal.Signals, ...]:
        plan = self._config.signals
        more = [*plan.passed_on, *([plan.preempt] if plan.preempt else [])]
        return tuple(dict.fromkeys((*SIGNALS, *(signal.Signals[name] for name in more))))

    def _signalled(self, number: signal.Signals) -> None:
        plan = self._config.signals
        if number.name in plan.passed_on:
            self._inbox.put(events.SignalToPassOn(number.name, number))
        elif number.name == plan.preempt:
            self._inbox.put(events.PreemptSignal(number.name, number))
        else:
            self._farewell.hurry()
            self._inbox.put(events.Signal(number.name, number))

    # -- the loop ---------------------------------------------------------------------

    def _loop(self) -> int:
        decision = decisions.begin(self._state)
        event: events.Event | None = None
        while True:
            self._journal.note(event, decision)
            if line := stopping_line(event, decision):
                say(line)
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
            self._health.rests()
            item = self._inbox.get()
            if isinstance(item, View):
                self._pending.extend(self._views.changed(item, self._handler.node_id()))
            elif isinstance(item, Round):
                self._pending.extend(self._sealed(item))
            else:
                self._pending.append(item)
        return self._pending.popleft()

    def _sealed(self, sealed: Round) -> list[events.Event]:
        self._joining.end()
        self._round = sealed
        view, node = self._handler.view(), self._handler.node_id()
        return self._views.sealed(sealed.assignment, view, node)

    def _do(self, action: events.Action) -> None:
        match action:
            case events.Join(why=why, told=told):
                self._views.joins(self._handler.view())
                self._joining.begin(why, told)
            case events.StartWorkers() if self._round is not None:
                self._start_workers(self._round)
            case events.StopWorkers(grace_seconds=grace):
                self._crew.stop(grace)
            case events.PassOn(number=number):
                self._crew.pass_on(number)
            case events.ReportFailure(failure=failure):
                self._report_failure(failure)
            case events.Finish():
                self._farewell.finish()
            case events.Leave(why=why):
                self._farewell.leave(why)
            case events.GiveNotice(why=why, seconds=seconds):
                self._give_notice(why, seconds)
            case events.AskToSave():
                self._changes.ask(action)
            case events.TakeBack():
                self._changes.take_back()
            case events.LetGoOn():
                self._changes.let_go_on(action)
            case events.StartAdmitTimer(round=number, seconds=seconds, timer=timer):
                self._later(seconds, events.AdmitDue(number, timer))
            case events.StartBackoffTimer(round=number, seconds=seconds, why=why):
                say(why)
                self._later(seconds, events.BackoffOver(number))

    def _start_workers(self, sealed: Round) -> None:
        self._changes.take_back()  # what was announced was for the round before
        self._crew.start(sealed, self._changes.environment())

    def _later(self, seconds: float, event: events.Event) -> None:
        timer = threading.Timer(seconds, self._inbox.put, [event])
        timer.daemon = True
        timer.start()

    # -- the coordinator --------------------------------------------------------------

    def _report_failure(self, failure: Failure) -> None:
        self._failures.append(failure)
        say(f"its worker failed: {failure.label}")
        gone = self._config.alone and not self._handler.view().connected
        told = not gone and self._farewell.fail(failure, self._config.close_seconds)
        if self._config.alone and not told:
            self._farewell.give_up()
            self._inbox.put(events.AgentFailed("a worker failed, and the server could not be told"))

    def _give_notice(self, why: str, seconds: float | None) -> None:
        say(f"this node will leave soon: {why}; telling all nodes")

        def tell() -> None:
            try:
                self._handler.notice(why, seconds)
            except RallypointError as error:
                complain(f"the others could not be told that this node will leave: {error}")

        threading.Thread(target=tell, name="rallypoint-notice", daemon=True).start()

    def _exit(self, end: events.Exit) -> int:
        self._joining.end()
        text = final_report(end, self._failures)
        if text:
            complain(text)
        elif end.text:
            say(end.text)
        return end.code
