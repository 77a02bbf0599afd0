"""Joins the next round, in a thread, so that signals are handled meanwhile.

Before each join the node's health check must pass (rule H1). A node that fails it does not
join: it prints what failed, and repeats the check after growing pauses until the join times out.
"""

import contextlib
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import IO

from rallypoint import backoff
from rallypoint.agent.join.handlers import AgentHandler, SealedRound
from rallypoint.agent.join.progress import JoinProgress, live_line
from rallypoint.agent.policy import events
from rallypoint.agent.policy.view_events import join_failed
from rallypoint.agent.reporting.console import is_live, say
from rallypoint.agent.workers import process_tree
from rallypoint.deadline import Deadline

KILL_SECONDS = 5.0
LAST_BYTES = 2000
LAST_LINES = 5


class HealthCheck:
    """A shell command of the user's that must succeed before each join.

    Args:
        command: for /bin/sh; exit code 0 means healthy.
        limit_seconds: after which it is killed and counts as failed.
        env: its environment.
        watch: gets its process, which must not outlive a killed agent.
        forget: gets its process id once it has ended.
    """

    def __init__(
        self,
        command: str,
        limit_seconds: float,
        env: Mapping[str, str],
        watch: Callable[[process_tree.Roots], None] = lambda _roots: None,
        forget: Callable[[Iterable[int]], None] = lambda _pids: None,
    ) -> None:
        self._command = command
        self._limit_seconds = limit_seconds
        self._env = dict(env)
        self._watch = watch
        self._forget = forget

    def run(self) -> str:
        """Return "" if the node is healthy, else why not, with the command's last lines."""
        with tempfile.TemporaryFile() as output:
            try:
                problem = self._problem(output)
            except OSError as error:
                problem = f"cannot be run: {error.strerror}"
            if not problem:
                return ""
            lines = _last_lines(output)
        return f"the health check {self._command!r} {problem}" + (f": {lines}" if lines else "")

    def _problem(self, output: IO[bytes]) -> str:
        process = subprocess.Popen(
            ["/bin/sh", "-c", self._command],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        root = {process.pid: process_tree.started_at(process.pid)}
        self._watch(root)
        try:
            code = process.wait(self._limit_seconds)
            problem = "" if code == 0 else f"failed with {_exit(code)}"
        except subprocess.TimeoutExpired:
            problem = f"took longer than {self._limit_seconds:g} s (--health-check-timeout)"
            process_tree.end("", root, KILL_SECONDS)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)
        self._forget(root)
        return problem


def _exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _last_lines(output: IO[bytes]) -> str:
    size = output.seek(0, 2)
    output.seek(max(0, size - LAST_BYTES))
    lines = output.read().decode("utf-8", "replace").split("\n")
    return " | ".join(line.strip() for line in lines[-LAST_LINES - 1 :] if line.strip())


class Joiner:
    """Joins round after round, one join at a time.

    Args:
        handler: of the node.
        put: gets the sealed round, or why the join failed.
        limit_seconds: after which a join fails.
        health_check: None for none.
        examine: after a while, returns what keeps the nodes apart, "" for nothing; None for
            no examination.
    """

    def __init__(
        self,
        handler: AgentHandler,
        put: Callable[[SealedRound | events.JoinFailed], None],
        limit_seconds: float,
        health_check: HealthCheck | None = None,
        examine: Callable[[], str] | None = None,
    ) -> None:
        self._handler = handler
        self._put = put
        self._limit_seconds = limit_seconds
        self._health_check = health_check
        self._examine = examine
        self._progress: JoinProgress | None = None
        self._over = threading.Event()

    def begin(self, why: str, announced: bool = False) -> None:
        """Begin to join; print the reason, unless `announced`."""
        if why and not announced:
            say(f"joining the next round: {why}")
        self._over = threading.Event()
        body = threading.Thread(
            target=self._join, args=[why, self._over], name="rallypoint-join", daemon=True
        )
        body.start()

    def end(self) -> None:
        """Stop showing progress: the join has ended, or the agent ends."""
        self._over.set()
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _join(self, why: str, over: threading.Event) -> None:
        try:
            problem = self._wait_until_healthy(over)
            if problem:
                self._put(events.JoinFailed(events.JoinError.UNHEALTHY, problem))
                return
            progress = JoinProgress(
                self._handler.waiting_for,
                self._limit_seconds,
                show=live_line if is_live() else None,
                examine=self._examine,
                is_spare=self._is_spare,
            )
            self._progress = progress
            progress.start()
            if over.is_set():
                progress.stop()
            self._put(self._handler.next_round(why))
        except BaseException as error:  # handed to the policy, whatever it is
            self._put(join_failed(error, self._handler.view().closed))

    def _is_spare(self) -> bool:
        parked = self._handler.view().parked
        return parked is not None and parked.spare

    def _wait_until_healthy(self, over: threading.Event) -> str:
        """Return "" once the node is healthy, or the problem when the time is over (H1)."""
        if self._health_check is None:
            return ""
        deadline = Deadline(self._limit_seconds)
        for pause in backoff.pauses():
            problem = self._health_check.run()
            if not problem:
                return ""
            if pause >= deadline.remaining():
                return (
                    f"{problem}; this node did not join, since it was not healthy within "
                    f"{self._limit_seconds:g} s (--join-timeout)"
                )
            say(f"{problem}; this node does not join; checking again in {pause:g} s")
            if over.wait(pause):
                break
        return "the agent ends"
