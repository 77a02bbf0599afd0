"""The processes of the demo: starts them, reads their output, and always ends them.

Each process has three threads: one per pipe, which stamps each line, and one that waits for the
end of both pipes and of the process. A node's workers inherit its stdout, so the end of the pipe
means that the whole node is gone.

Leaving the processes ends all processes, with SIGTERM and then SIGKILL, within
`_TERM_SECONDS + _KILL_SECONDS`. Signals are events in the queue, so that a second Ctrl-C
cannot cut that short. Should the demo itself be killed, the reaper ends nodes and server.
"""

import contextlib
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from rallypoint.agent.reporting.console import complain
from rallypoint.agent.workers import process_tree
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.cli.demo_facts import SERVER, Ended, Line
from rallypoint.deadline import Deadline
from rallypoint.errors import RallypointError, RendezvousConnectionError
from rallypoint.net.token_sources import TOKEN_VARIABLE

_TERM_SECONDS = 5.0
_KILL_SECONDS = 5.0
_SERVING = re.compile(r"serving on (\S+)")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOT_OURS = ("RALLYPOINT_", "PET_")  # options of other runs


class DemoInterrupted(RallypointError):
    """A signal ended the demo.

    Args:
        name: of the signal.
        number: of the signal.
    """

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"received {name}")
        self.number = number


@dataclass(frozen=True)
class _Signalled:
    """A signal asks the demo to end."""

    name: str
    number: int


@dataclass
class _DemoProcess:
    """One process and the thread that waits for the end of all of it."""

    source: int
    process: subprocess.Popen[str]
    waiter: threading.Thread


class DemoProcesses:
    """A server, any number of nodes, a temporary folder, and one queue of what happens."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Line | Ended | _Signalled] = queue.SimpleQueue()
        self._processes: dict[int, _DemoProcess] = {}
        self._endpoint = ""
        self._run_id = f"demo-{secrets.token_hex(4)}"
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS)}
        self._env[TOKEN_VARIABLE] = secrets.token_hex(16)
        self._env.setdefault("OMP_NUM_THREADS", "1")  # the nodes share one machine's cores

    @contextlib.contextmanager
    def open(self) -> Iterator["DemoProcesses"]:
        """Make the folder and the reaper; end and remove everything when left."""
        mark = self._env[process_tree.MARK] = secrets.token_hex(16)
        with self._signals(), tempfile.TemporaryDirectory(prefix="rallypoint-demo-") as folder:
            self.folder = Path(folder)
            with Reaper(complain, mark) as self._reaper:
                try:
                    yield self
                finally:
                    self._end()

    def start_server(self, limit_seconds: float) -> str:
        """Start a server on a free port of this machine; return HOST:PORT.

        Raises RendezvousConnectionError when it does not serve within the limit.
        """
        self._start(SERVER, ["serve", "--bind", "127.0.0.1:0", "--verbose"])
        deadline = Deadline(limit_seconds)
        said = []
        while event := self.next_event(deadline):
            if isinstance(event, Ended):
                break
            if match := _SERVING.match(event.text):
                self._endpoint = match[1]
                return self._endpoint
            said.append(event.text)
        raise RendezvousConnectionError(
            f"the server did not serve within {limit_seconds:g} s; it said: {said or 'nothing'}"
        )

    def start_node(self, number: int, nnodes: str, script: Sequence[str]) -> int:
        """Start the agent of a node; return its pid.

        Args:
            number: of the node, from 1.
            nnodes: MIN:MAX of a round.
            script: path and arguments of what its worker runs.
        """
        meeting = ["--nnodes", nnodes, "--endpoint", self._endpoint, "--run-id", self._run_id]
        return self._start(number, ["run", *meeting, *script])

    def kill(self, number: int) -> None:
        """Kill a node's agent with SIGKILL; its reaper ends its workers."""
        self._processes[number].process.kill()

    def next_event(self, deadline: Deadline) -> Line | Ended | None:
        """Return the next event, None at the deadline. Raises DemoInterrupted on a signal."""
        try:
            event = self._inbox.get(timeout=deadline.remaining())
        except queue.Empty:
            return None
        if isinstance(event, _Signalled):
            raise DemoInterrupted(event.name, event.number)
        return event

    def _start(self, source: int, argv: Sequence[str]) -> int:
        process = subprocess.Popen(
            [sys.executable, "-m", "rallypoint", *argv],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches only the demo, which ends them in order
        )
        waiter = threading.Thread(target=self._wait, args=[source, process], daemon=True)
        self._processes[source] = _DemoProcess(source, process, waiter)
        self._reaper.watch({process.pid: process_tree.started_at(process.pid)})
        waiter.start()
        return process.pid

    def _wait(self, source: int, process: subprocess.Popen[str]) -> None:
        readers = [
            threading.Thread(target=self._read, args=[source, pipe, error], daemon=True)
            for pipe, error in ((process.stdout, False), (process.stderr, True))
            if pipe is not None
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        code = process.wait()
        self._reaper.forget([process.pid])
        self._inbox.put(Ended(time.monotonic(), source, code))

    def _read(self, source: int, pipe: IO[str], error: bool) -> None:
        with pipe:
            for text in pipe:
                self._inbox.put(Line(time.monotonic(), source, text.rstrip("\n"), error))

    def _end(self) -> None:
        server = [one for one in self._processes.values() if one.source == SERVER]
        nodes = [one for one in self._processes.values() if one.source != SERVER]
        for some in (nodes, server):  # nodes leave the run first, so the server ends last
            for number, limit_seconds in (
                (signal.SIGTERM, _TERM_SECONDS),
                (signal.SIGKILL, _KILL_SECONDS),
            ):
                left = [one for one in some if one.waiter.is_alive()]
                for one in left:
                    one.process.send_signal(number)
                deadline = Deadline(limit_seconds)
                for one in left:
                    one.waiter.join(deadline.remaining())
        stuck = [a.process.pid for a in self._processes.values() if a.waiter.is_alive()]
        if stuck:
            complain(f"could not end these processes or what they started: {stuck}")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def put(number: int, _frame: FrameType | None) -> None:
            self._inbox.put(_Signalled(signal.Signals(number).name, number))

        former: dict[signal.Signals, Any] = {}
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                former[number] = signal.signal(number, put)
        try:
            yield
        finally:
            for number, old in former.items():
                signal.signal(number, old)
