"""The node's health check: a command of the user's, run before each join."""

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import IO

from rallypoint.agent.workers import process_tree

KILL_SECONDS = 5.0
LAST_BYTES = 2000
LAST_LINES = 5


class Checkup:
    """Runs a command and says what is wrong.

    Args:
        command: for the shell; exit code 0 says that the node is well.
        seconds: how long it may take.
        env: its environment.
        watch: told of its process, so that it does not outlive a killed agent.
        forget: told that it has ended.
    """

    def __init__(
        self,
        command: str,
        seconds: float,
        env: Mapping[str, str],
        watch: Callable[[process_tree.Roots], None] = lambda _roots: None,
        forget: Callable[[Iterable[int]], None] = lambda _pids: None,
    ) -> None:
        self._command = command
        self._seconds = seconds
        self._env = dict(env)
        self._watch = watch
        self._forget = forget

    def run(self) -> str:
        """Return "" if the node is well, else one sentence with the last lines it wrote."""
        with tempfile.TemporaryFile() as output:
            try:
                how = self._how(output)
            except OSError as error:
                how = f"cannot be run: {error.strerror}"
            if not how:
                return ""
            said = _last_lines(output)
        return f"the health check {self._command!r} {how}" + (f": {said}" if said else "")

    def _how(self, output: IO[bytes]) -> str:
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
            code = process.wait(self._seconds)
            how = "" if code == 0 else f"failed with {_exit(code)}"
        except subprocess.TimeoutExpired:
            how = f"took longer than {self._seconds:g} s (--health-check-timeout)"
            process_tree.end("", root, KILL_SECONDS)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)
        self._forget(root)
        return how


def _exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _last_lines(output: IO[bytes]) -> str:
    size = output.seek(0, 2)
    output.seek(max(0, size - LAST_BYTES))
    lines = output.read().decode("utf-8", "replace").split("\n")
    return " | ".join(line.strip() for line in lines[-LAST_LINES - 1 :] if line.strip())
