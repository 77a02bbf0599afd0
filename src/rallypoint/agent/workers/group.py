"""This node's workers, round after round: starts them, sends signals, watches and stops them.

All of them carry a mark in their environment, by which `process_tree` finds their descendants.
A reaper process knows them too, in case this process is killed. However the context ends, no
worker is left.
"""

import traceback
import uuid
from collections.abc import Callable, Mapping
from typing import Self

import msgspec

from rallypoint.agent.config import AgentConfig
from rallypoint.agent.join.handlers import SealedRound
from rallypoint.agent.policy import events
from rallypoint.agent.reporting.console import complain, say
from rallypoint.agent.workers import process_tree
from rallypoint.agent.workers.environment import worker_environment
from rallypoint.agent.workers.hangs import HangWatcher
from rallypoint.agent.workers.processes import WorkerExit, WorkerProcesses, WorkerSpec
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.core.explain import nodes
from rallypoint.errors import ParameterError
from rallypoint.wallclock import now_text


class WorkerGroup:
    """The workers of one node.

    Args:
        config: their command, environment and output.
        put: gets their events.
    """

    def __init__(self, config: AgentConfig, put: Callable[[events.Event], None]) -> None:
        self._config = config
        self._put = put
        self._processes: WorkerProcesses | None = None
        self._hangs: HangWatcher | None = None
        self.mark = uuid.uuid4().hex

    def __enter__(self) -> Self:
        """Start the reaper. Raises OSError when no process can be started."""
        self.reaper = Reaper(complain, self.mark)
        return self

    def __exit__(self, *_exc: object) -> None:
        """Kill all workers, and end the reaper."""
        try:
            if self._processes is not None:
                self._end_hang_watch()
                _warn(self._processes.kill())
        finally:
            self.reaper.close()

    def start(self, sealed: SealedRound, more: Mapping[str, str]) -> None:
        """Start the workers of a round, with `more` added to their environment.

        A command that cannot be started is no exception: it is put as `AgentFailed`.
        """
        context, seat = self._config.context, sealed.assignment
        if self._config.worker_token is not None:
            context = msgspec.structs.replace(context, token=self._config.worker_token())
        if seat.size > 1 or seat.round > 1:
            say(f"round {seat.round}: rank {seat.rank} of {nodes(seat.size)} ({seat.reason})")
        base = self._config.base_env
        mark = process_tree.marked(base.get(process_tree.MARK, ""), self.mark)
        limit = self._config.supervision.hang_seconds
        hangs = HangWatcher(seat.round, limit, self._put, self._failed)
        specs, outputs = [], []
        for local_rank in range(context.local_world_size):
            env = worker_environment(base, context, seat, local_rank, sealed.master)
            env |= {process_tree.MARK: mark, **hangs.environment(local_rank), **more}
            specs.append(WorkerSpec(local_rank, self._config.argv, env))
            rank = seat.worker_offset + local_rank
            outputs.append(self._config.output.worker(context.run_id, seat.round, rank, local_rank))
        processes = WorkerProcesses(
            self._exit_sink(seat.round), self._failed, self.reaper.forget, self.mark
        )
        self._processes, self._hangs = processes, hangs
        try:
            processes.start(specs, outputs)
        except ParameterError as error:
            self._put(events.AgentFailed(str(error)))
        self.reaper.watch(processes.roots)
        hangs.begin(processes)

    def _exit_sink(self, round_number: int) -> Callable[[WorkerExit], None]:
        def put(end: WorkerExit) -> None:
            self._put(
                events.WorkerExited(
                    round_number, end.local_rank, end.exit_code, end.signal, now_text(), end.lines
                )
            )

        return put

    def _failed(self, error: BaseException) -> None:
        self._put(events.AgentFailed("".join(traceback.format_exception(error))))

    def stop(self, grace_seconds: float) -> None:
        """Begin to stop the workers; `WorkersStopped` follows."""
        if self._processes is None:
            self._put(events.WorkersStopped())
            return
        self._end_hang_watch()

        def stopped(stuck: tuple[int, ...]) -> None:
            _warn(stuck)
            self._put(events.WorkersStopped(stuck))

        self._processes.stop(grace_seconds, stopped)

    def send(self, signum: int) -> None:
        """Send a signal to each worker, but not to its children."""
        if self._processes is not None:
            self._processes.send(signum)

    def _end_hang_watch(self) -> None:
        if self._hangs is not None:
            self._hangs.end()


def _warn(stuck: tuple[int, ...]) -> None:
    if stuck:
        shown = ", ".join(f"{pid} ({process_tree.state_of(pid) or 'gone by now'})" for pid in stuck)
        complain(f"could not end these processes, going on without: {shown}")
