"""This node's workers, round after round: started, passed signals, watched, and ended.

One mark is in the environment of all of them, by which `agent.tree` finds whatever came from
them; a guard holds their names for the case that this process is killed. However the context
ends, nothing of the crew is left.
"""

import traceback
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from rallypoint.agent.config import AgentConfig
from rallypoint.agent.join.handlers import Round
from rallypoint.agent.policy import events
from rallypoint.agent.reporting.report import complain, say
from rallypoint.agent.workers import process_tree
from rallypoint.agent.workers.environment import worker_environment
from rallypoint.agent.workers.hangs import HangWatch
from rallypoint.agent.workers.processes import Ended, Spec, WorkerGroup
from rallypoint.agent.workers.reaper import Guard
from rallypoint.core.explain import nodes
from rallypoint.errors import ParameterError
from rallypoint.wallclock import now_text


class Crew:
    """The workers of one node.

    Args:
        config: what they run, in which environment.
        put: takes what happens to them.
    """

    def __init__(self, config: AgentConfig, put: Callable[[events.Event], None]) -> None:
        self._config = config
        self._put = put
        self._group: WorkerGroup | None = None
        self._hangs: HangWatch | None = None
        self.mark = uuid.uuid4().hex

    def __enter__(self) -> Self:
        """Start the guard. Raises OSError when no process can be started."""
        self.guard = Guard(complain, self.mark)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End all workers, without grace, and the guard."""
        try:
            if self._group is not None:
                self._unwatch()
                _warn(self._group.kill())
        finally:
            self.guard.close()

    def start(self, sealed: Round, more: Mapping[str, str]) -> None:
        """Start the workers of a round, with more in their environment."""
        context, seat = self._config.context, sealed.assignment
        if self._config.worker_token is not None:
            context = msgspec.structs.replace(context, token=self._config.worker_token())
        if seat.size > 1 or seat.round > 1:
            say(f"round {seat.round}: rank {seat.rank} of {nodes(seat.size)} ({seat.reason})")
        base = self._config.base_env
        marked = {
            process_tree.MARK: process_tree.marked(base.get(process_tree.MARK, ""), self.mark)
        }
        hangs = HangWatch(seat.round, self._config.hang_seconds, self._put, self._failed)
        specs, outputs = [], []
        for local_rank in range(context.local_world_size):
            env = worker_environment(base, context, seat, local_rank, sealed.master)
            env |= {**marked, **hangs.environment(local_rank), **more}
            specs.append(Spec(local_rank, self._config.argv, env))
            rank = seat.worker_offset + local_rank
            outputs.append(self._config.output.worker(context.run_id, seat.round, rank, local_rank))
        sink = self._exit_sink(seat.round)
        group = WorkerGroup(sink, self._failed, self.guard.forget, self.mark)
        self._group, self._hangs = group, hangs
        try:
            group.start(specs, outputs)
        except ParameterError as error:
            self._put(events.AgentFailed(str(error)))
        self.guard.watch(group.roots)
        hangs.begin(group)

    def _exit_sink(self, number: int) -> Callable[[Ended], None]:
        def put(ended: Ended) -> None:
            how = (ended.local_rank, ended.exit_code, ended.signal, now_text(), ended.lines)
            self._put(events.WorkerExited(number, *how))

        return put

    def _failed(self, error: BaseException) -> None:
        self._put(events.AgentFailed("".join(traceback.format_exception(error))))

    def stop(self, grace_seconds: float) -> None:
        """Begin to end the workers; `WorkersStopped` tells when they are gone."""
        if self._group is None:
            self._put(events.WorkersStopped())
            return
        self._unwatch()

        def stopped(stuck: tuple[int, ...]) -> None:
            _warn(stuck)
            self._put(events.WorkersStopped(stuck))

        self._group.stop(grace_seconds, stopped)

    def pass_on(self, number: int) -> None:
        """Send a signal to each worker itself."""
        if self._group is not None:
            self._group.send(number)

    def _unwatch(self) -> None:
        if self._hangs is not None:
            self._hangs.end()


def _warn(stuck: tuple[int, ...]) -> None:
    if stuck:
        shown = ", ".join(f"{pid} ({process_tree.state_of(pid) or 'gone by now'})" for pid in stuck)
        complain(f"could not end these processes, going on without: {shown}")
